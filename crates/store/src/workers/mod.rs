//! Workers: registration, heartbeat, removal, listing, and the sweep of the dead. The lease belongs to the worker.

pub mod count;
pub mod heartbeat;
pub mod list;
pub mod register;
pub mod remove;
pub mod serve;
pub mod sweep;

use domain::lease::{Lease, service_since};
use domain::{Affinity, Label, Name, TenantId, Time, WorkerId};

use crate::codec::from_json;
use crate::error::StoreError;
use crate::lines::Takes;
use crate::tx::{Column, First, Param, Row, Sql, Tx};

/// A worker's row.
#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub tenant: TenantId,
    pub name: String,
    pub queues: Vec<Name>,
    /// All, when `None`.
    pub kinds: Option<Vec<Name>>,
    /// All, when `None`.
    pub affinities: Option<Vec<Label>>,
    /// What it has loaded: what it said last, or what it was last given.
    pub affinity: Affinity,
    pub lease: Lease,
    pub draining: bool,
    pub registered_at: Time,
    pub last_claim_at: Option<Time>,
    dead_at: Option<Time>,
    service_since: Time,
    service_beat_at: Time,
}

const COLUMNS_FROM: usize = 13;
/// How exactly it is known when a worker made its last claim.
const CLAIM_NOTED_MS: i64 = 1_000;

const LOAD: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at
       from workers w join service s on s.id = 1 where w.id = $1"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, s.since, s.beat_at
     from workers w join service s on s.id = 1 where w.id = any($1::uuid[])",
);
const RENEW: Sql = Sql::both(&["update workers set lease_until = $2, affinity = coalesce($3, affinity),
         last_claim_at = coalesce($4, last_claim_at)
     where id = $1 and dead_at is null"]);

pub(crate) async fn load(tx: &mut Tx<'_>, ids: &[WorkerId]) -> Result<Vec<Worker>, StoreError> {
    let rows = tx.query_each(&LOAD, &[Column::uuids(ids.iter().map(|id| id.uuid()))], &[]).await?;
    rows.iter().map(Worker::read).collect()
}

/// The same, for an operation that begins with it.
pub(crate) fn load_first(ids: &[WorkerId]) -> First<'static> {
    First { sql: LOAD, columns: vec![Column::uuids(ids.iter().map(|id| id.uuid()))], params: Vec::new() }
}

impl Worker {
    pub(crate) fn takes(&self) -> Takes {
        Takes { queues: self.queues.clone(), kinds: self.kinds.clone(), affinities: self.affinities.clone() }
    }

    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        let names = |text: String| -> Result<Vec<Name>, StoreError> {
            Ok(from_json::<Vec<String>>(&text)?.iter().map(|name| Name::stored(name)).collect())
        };
        let labels = |text: String| -> Result<Vec<Label>, StoreError> {
            Ok(from_json::<Vec<String>>(&text)?.iter().map(|label| Label::stored(label)).collect())
        };
        Ok(Self {
            id: WorkerId::new(row.uuid(0)?),
            tenant: TenantId(row.int(1)?),
            name: row.text(2)?,
            queues: names(row.text(3)?)?,
            kinds: row.opt_text(4)?.map(names).transpose()?,
            affinities: row.opt_text(5)?.map(labels).transpose()?,
            affinity: row.opt_text(6)?.map(|label| Label::stored(&label)),
            lease: Lease { term_ms: row.int(7)?, until: row.time(8)? },
            draining: row.bool(9)?,
            registered_at: row.time(10)?,
            last_claim_at: row.opt_time(11)?,
            dead_at: row.opt_time(12)?,
            service_since: row.time(COLUMNS_FROM)?,
            service_beat_at: row.time(COLUMNS_FROM + 1)?,
        })
    }

    /// A worker whose lease has passed is dead for good, swept or not. An outage, or a clock that jumped, counts before
    /// the service's next beat has noticed it: the worker may be quicker.
    pub fn is_alive(&self, now: Time) -> bool {
        let since = service_since(self.service_since, self.service_beat_at, now);
        self.dead_at.is_none() && !self.lease.has_passed(since, now)
    }

    /// Renews the lease where that is worth a write.
    pub(crate) async fn touch(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        if self.lease.wants_renewal(tx.now()) {
            self.renew(tx, &None, None).await?;
        }
        Ok(())
    }

    /// Renews it after a claim that gave jobs, where that is worth a write, or tells something new of the worker.
    pub(crate) async fn claimed(&self, tx: &mut Tx<'_>, affinity: &Affinity) -> Result<(), StoreError> {
        let now = tx.now();
        let is_noted = self.last_claim_at.is_some_and(|last| (0..=CLAIM_NOTED_MS).contains(&now.ms_since(last)));
        let is_held = affinity.is_none() || *affinity == self.affinity;
        if !is_noted || !is_held || self.lease.wants_renewal(now) {
            self.renew(tx, affinity, Some(now)).await?;
        }
        Ok(())
    }

    pub(crate) async fn renew(
        &self,
        tx: &mut Tx<'_>,
        affinity: &Affinity,
        last_claim_at: Option<Time>,
    ) -> Result<Time, StoreError> {
        let until = tx.now().plus_ms(self.lease.term_ms);
        let params = [
            Param::from(self.id),
            Param::Time(until),
            Param::text(affinity.as_ref().map(Label::as_str)),
            Param::time(last_claim_at),
        ];
        tx.execute_later(&RENEW, &[], &params).await?;
        Ok(until)
    }
}
