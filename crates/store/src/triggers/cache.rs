//! What this node knows of the triggers, checked in each transaction against the clock that every change of a trigger
//! moves: a trigger made on another node is seen by every event after its commit, and where there are no triggers an
//! event costs one comparison.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use domain::trigger::Source;
use domain::{TenantId, TriggerId};

use crate::clock::fill_random;
use crate::error::StoreError;
use crate::triggers::Mode;
use crate::triggers::filter::{self, Filter};
use crate::tx::{Param, Row, Sql, Tx};

/// A trigger, as far as an event is matched against it.
#[derive(Clone, Debug)]
pub(crate) struct Listener {
    pub(crate) id: TriggerId,
    pub(crate) filter: Filter,
    pub(crate) mode: Mode,
}

/// Enabled triggers by tenant and source.
#[derive(Clone, Debug, Default)]
pub(crate) struct Listeners {
    by_source: HashMap<(TenantId, Source), Vec<Listener>>,
    /// Triggers for mail that are off: they hear nothing, and what they name is still their tenant's.
    off_for_mail: Vec<(TenantId, Listener)>,
}

impl Listeners {
    pub(crate) fn of(&self, tenant: TenantId, source: Source) -> &[Listener] {
        self.by_source.get(&(tenant, source)).map_or(&[], Vec::as_slice)
    }

    /// Everyone's, for what comes in without a tenant.
    pub(crate) fn of_all(&self, source: Source) -> impl Iterator<Item = (TenantId, &Listener)> {
        let of_source = self.by_source.iter().filter(move |((_, known), _)| *known == source);
        of_source.flat_map(|((tenant, _), listeners)| listeners.iter().map(|listener| (*tenant, listener)))
    }

    /// Everyone's for mail, on or off.
    pub(crate) fn naming_mail(&self) -> impl Iterator<Item = (TenantId, &Listener)> {
        self.of_all(Source::Email).chain(self.off_for_mail.iter().map(|(tenant, listener)| (*tenant, listener)))
    }

    /// Whether anybody does, of any tenant.
    pub(crate) fn listen_to(&self, source: Source) -> bool {
        self.by_source.keys().any(|(_, known)| *known == source)
    }

    fn add(&mut self, row: &Row) {
        if let Some((tenant, source, listener)) = readable(row) {
            self.by_source.entry((tenant, source)).or_default().push(listener);
        }
    }

    fn add_off(&mut self, row: &Row) {
        self.off_for_mail.extend(readable(row).map(|(tenant, _, listener)| (tenant, listener)));
    }
}

/// A trigger that this program cannot read, of a newer one perhaps, is passed over: it must not stop everyone's work.
fn readable(row: &Row) -> Option<(TenantId, Source, Listener)> {
    read(row).inspect_err(|error| tracing::warn!(%error, "a trigger cannot be read and hears nothing here")).ok()
}

fn read(row: &Row) -> Result<(TenantId, Source, Listener), StoreError> {
    let id = TriggerId::new(row.uuid(0)?);
    let tenant = TenantId(row.int(1)?);
    let source = row.text(2)?;
    let source = Source::parse(&source).ok_or_else(|| StoreError::unexpected(format!("source {source}")))?;
    let filter = filter::read(source, id, &row.text(3)?)
        .map_err(|fault| StoreError::unexpected(format!("the filter of trigger {id}: {fault}")))?;
    let mode = row.text(4)?;
    let mode = Mode::parse(&mode).ok_or_else(|| StoreError::unexpected(format!("mode {mode}")))?;
    Ok((tenant, source, Listener { id, filter, mode }))
}

#[derive(Clone, Default)]
pub(crate) struct TriggerCache {
    known: Arc<RwLock<Option<Known>>>,
}

#[derive(Clone)]
struct Known {
    version: i64,
    listeners: Arc<Listeners>,
}

// One statement, so that the version is that of the triggers beside it.
const LOAD: Sql = Sql::both(&["select t.id, t.tenant, t.source, t.filter, t.mode, c.version, t.enabled
     from trigger_clock c left join triggers t on t.enabled = $1 or t.source = 'email' where c.id = 1 order by t.id"]);
const OF_SOURCE: Sql = Sql::both(&[
    "select id, tenant, source, filter, mode from triggers where tenant = $1 and source = $2 and enabled = $3",
]);

impl TriggerCache {
    /// The triggers as of this transaction.
    pub(crate) async fn current(&self, tx: &mut Tx<'_>) -> Result<Arc<Listeners>, StoreError> {
        let version = tx.trigger_version().await?;
        let known = self.known.read().expect("no reader panics").clone();
        if let Some(known) = known.filter(|known| known.version == version) {
            return Ok(known.listeners);
        }
        let mut listeners = Listeners::default();
        let mut version = version;
        // Whoever has them read remembers them for every tenant.
        for row in tx.query_everyones(&LOAD, &[Param::Bool(true)]).await? {
            version = row.int(5)?;
            if row.opt_uuid(0)?.is_none() {
                continue;
            }
            match row.bool(6)? {
                true => listeners.add(&row),
                false => listeners.add_off(&row),
            }
        }
        let known = Known { version, listeners: Arc::new(listeners) };
        let listeners = known.listeners.clone();
        *self.known.write().expect("no writer panics") = Some(known);
        Ok(listeners)
    }

    /// As this node last knew them.
    pub(crate) fn last_known(&self) -> Option<Arc<Listeners>> {
        self.last_known_at().map(|(_, listeners)| listeners)
    }

    /// The same, with the clock at which they were so.
    pub(crate) fn last_known_at(&self) -> Option<(i64, Arc<Listeners>)> {
        self.known.read().expect("no reader panics").as_ref().map(|known| (known.version, known.listeners.clone()))
    }
}

/// The triggers of one source, asked of the database: for what happens rarely.
pub(crate) async fn listeners_of(tx: &mut Tx<'_>, tenant: TenantId, source: Source) -> Result<Listeners, StoreError> {
    let mut listeners = Listeners::default();
    let params = [Param::Int(tenant.0), Param::Text(source.as_str()), Param::Bool(true)];
    for row in tx.query(&OF_SOURCE, &params).await? {
        listeners.add(&row);
    }
    Ok(listeners)
}

const TICK: Sql = Sql::both(&["update trigger_clock set version = $1 where id = 1"]);

/// Every change of a trigger moves the clock, in its own transaction. It moves to a number never seen before and not to
/// the next one: a commit that failed may have been seen by others who shared it, and must not be taken for a later one.
pub(crate) async fn tick(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    tx.execute(&TICK, &[Param::Int(i64::from_le_bytes(bytes) >> 1)]).await.map(|_| ())
}
