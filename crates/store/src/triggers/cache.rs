//! In-memory cache of the enabled triggers, for matching events. Each transaction that emits events compares the cached
//! version with `trigger_clock`, which every change of a trigger updates. An event therefore sees every trigger committed
//! before it, on any node. Without triggers an event costs one comparison.

use std::collections::HashMap;
use std::sync::{Arc, RwLock};

use domain::triggers::trigger::Source;
use domain::{TenantId, TriggerId};

use crate::db::clock::fill_random;
use crate::db::tx::{Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::Mode;
use crate::triggers::filter::{self, Filter};

/// The parts of a trigger that are needed to match events.
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
    /// Disabled email triggers. They match nothing, but the addresses in their filters still belong to their tenants.
    off_for_mail: Vec<(TenantId, Listener)>,
}

impl Listeners {
    pub(crate) fn of(&self, tenant: TenantId, source: Source) -> &[Listener] {
        self.by_source.get(&(tenant, source)).map_or(&[], Vec::as_slice)
    }

    /// Returns the listeners of all tenants, for events that arrive without a tenant.
    pub(crate) fn of_all(&self, source: Source) -> impl Iterator<Item = (TenantId, &Listener)> {
        let of_source = self.by_source.iter().filter(move |((_, cached), _)| *cached == source);
        of_source.flat_map(|((tenant, _), listeners)| listeners.iter().map(|listener| (*tenant, listener)))
    }

    /// Returns the email listeners of all tenants, enabled or disabled.
    pub(crate) fn naming_mail(&self) -> impl Iterator<Item = (TenantId, &Listener)> {
        self.of_all(Source::Email).chain(self.off_for_mail.iter().map(|(tenant, listener)| (*tenant, listener)))
    }

    /// Returns true if any tenant has an enabled trigger with this source.
    pub(crate) fn listen_to(&self, source: Source) -> bool {
        self.by_source.keys().any(|(_, cached)| *cached == source)
    }

    fn add(&mut self, row: &Row) {
        if let Some((tenant, source, listener)) = read_or_skip(row) {
            self.by_source.entry((tenant, source)).or_default().push(listener);
        }
    }

    fn add_off(&mut self, row: &Row) {
        self.off_for_mail.extend(read_or_skip(row).map(|(tenant, _, listener)| (tenant, listener)));
    }
}

/// Decodes a trigger. Skips, with a warning, one that this version cannot decode (for example, written by a newer node):
/// it must not fail the transactions of other work.
fn read_or_skip(row: &Row) -> Option<(TenantId, Source, Listener)> {
    read(row)
        .inspect_err(|error| tracing::warn!(%error, "cannot decode a trigger; it matches no events on this node"))
        .ok()
}

fn read(row: &Row) -> Result<(TenantId, Source, Listener), StoreError> {
    let id = TriggerId::new(row.uuid("id")?);
    let tenant = TenantId(row.int("tenant")?);
    let source = row.text("source")?;
    let source = Source::parse(&source).ok_or_else(|| StoreError::unexpected(format!("source {source}")))?;
    let filter = filter::read(source, id, &row.text("filter")?)
        .map_err(|fault| StoreError::unexpected(format!("the filter of trigger {id}: {fault}")))?;
    let mode = row.text("mode")?;
    let mode = Mode::parse(&mode).ok_or_else(|| StoreError::unexpected(format!("mode {mode}")))?;
    Ok((tenant, source, Listener { id, filter, mode }))
}

#[derive(Clone, Default)]
pub(crate) struct TriggerCache {
    cached: Arc<RwLock<Option<CachedListeners>>>,
}

#[derive(Clone)]
struct CachedListeners {
    version: i64,
    listeners: Arc<Listeners>,
}

// One statement reads the version and the triggers, so that they belong together.
const LOAD: Sql = Sql::both(&["select t.id, t.tenant, t.source, t.filter, t.mode, c.version, t.enabled
     from trigger_clock c left join triggers t on t.enabled = $1 or t.source = 'email' where c.id = 1 order by t.id"]);
const OF_SOURCE: Sql = Sql::both(&[
    "select id, tenant, source, filter, mode from triggers where tenant = $1 and source = $2 and enabled = $3",
]);

impl TriggerCache {
    /// Returns the listeners as of this transaction. Reloads them if a trigger has changed.
    pub(crate) async fn current(&self, tx: &mut Tx<'_>) -> Result<Arc<Listeners>, StoreError> {
        let version = tx.trigger_version().await?;
        let cached = self.cached.read().expect("lock poisoned").clone();
        if let Some(cached) = cached.filter(|cached| cached.version == version) {
            return Ok(cached.listeners);
        }
        let mut listeners = Listeners::default();
        let mut version = version;
        // The query runs without the tenant restriction, because the cache serves all tenants.
        for row in tx.query_all_tenants(&LOAD, &[Param::Bool(true)]).await? {
            version = row.int("version")?;
            if row.opt_uuid("id")?.is_none() {
                continue;
            }
            match row.bool("enabled")? {
                true => listeners.add(&row),
                false => listeners.add_off(&row),
            }
        }
        let cached = CachedListeners { version, listeners: Arc::new(listeners) };
        let listeners = cached.listeners.clone();
        *self.cached.write().expect("lock poisoned") = Some(cached);
        Ok(listeners)
    }

    /// Returns the cached listeners without a check of their version. `None` before the first load.
    pub(crate) fn cached(&self) -> Option<Arc<Listeners>> {
        self.cached_at().map(|(_, listeners)| listeners)
    }

    /// Returns the cached listeners with their version.
    pub(crate) fn cached_at(&self) -> Option<(i64, Arc<Listeners>)> {
        self.cached.read().expect("lock poisoned").as_ref().map(|cached| (cached.version, cached.listeners.clone()))
    }
}

/// Reads a tenant's listeners for one source from the database, bypassing the cache. Used for rare events.
pub(crate) async fn listeners_of(tx: &mut Tx<'_>, tenant: TenantId, source: Source) -> Result<Listeners, StoreError> {
    let mut listeners = Listeners::default();
    let params = [Param::Int(tenant.0), Param::Text(source.as_str()), Param::Bool(true)];
    for row in tx.query(&OF_SOURCE, &params).await? {
        listeners.add(&row);
    }
    Ok(listeners)
}

const TICK: Sql = Sql::both(&["update trigger_clock set version = $1 where id = 1"]);

/// Changes the version in `trigger_clock`. Every change of a trigger calls it in its transaction.
///
/// The new version is random and not the next number. With group commit, other operations of the same transaction may have
/// cached a version that was then rolled back. A later change must not reuse that number.
pub(crate) async fn tick(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    let mut bytes = [0; 8];
    fill_random(&mut bytes);
    tx.execute(&TICK, &[Param::Int(i64::from_le_bytes(bytes) >> 1)]).await.map(|_| ())
}
