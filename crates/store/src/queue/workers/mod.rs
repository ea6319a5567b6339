//! Workers: registration, heartbeat, removal, listing, and the sweep of dead workers. A lease belongs to the worker,
//! not to a job: one renewal covers all of its claims.

mod attempt_timeouts;
pub mod count;
pub mod heartbeat;
pub mod jobs;
pub mod list;
pub(crate) mod living;
pub mod register;
pub mod remove;
pub mod serve;
pub mod sweep;

use domain::queue::lease::{Lease, service_since};
use domain::{Affinity, Label, Name, TenantId, Time, WorkerId};

use crate::db::codec::from_json;
use crate::db::tx::{Column, Param, Prefetch, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::claim_gate::ClaimFilter;

/// A worker's row.
#[derive(Clone, Debug)]
pub struct Worker {
    pub id: WorkerId,
    pub tenant: TenantId,
    pub name: String,
    pub queues: Vec<Name>,
    /// `None` means all.
    pub kinds: Option<Vec<Name>>,
    /// `None` means all.
    pub affinities: Option<Vec<Label>>,
    /// The affinity (model) it has loaded: the last one that it reported or that a claim gave it.
    pub affinity: Affinity,
    pub lease: Lease,
    pub draining: bool,
    pub registered_at: Time,
    pub last_claim_at: Option<Time>,
    /// The node whose process the worker belongs to: a slot of a pool, or the node's own operations.
    pub node: Option<String>,
    dead_at: Option<Time>,
    service_since: Time,
    service_beat_at: Time,
}

/// Precision of `last_claim_at`. Saves a write per claim.
const LAST_CLAIM_PRECISION_MS: i64 = 1_000;

const LOAD: Sql = Sql::new(
    &["select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
           w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, s.since, s.beat_at
       from workers w join service s on s.id = 1 where w.id = $1"],
    "select w.id, w.tenant, w.name, w.queues, w.kinds, w.affinities, w.affinity, w.lease_ms, w.lease_until,
         w.draining, w.registered_at, w.last_claim_at, w.dead_at, w.node, s.since, s.beat_at
     from workers w join service s on s.id = 1 where w.id = any($1::uuid[])",
);
const RENEW: Sql = Sql::both(&["update workers set lease_until = $2, affinity = coalesce($3, affinity),
         last_claim_at = coalesce($4, last_claim_at)
     where id = $1 and dead_at is null"]);

pub(crate) async fn load(tx: &mut Tx<'_>, ids: &[WorkerId]) -> Result<Vec<Worker>, StoreError> {
    let rows = tx.query_each(&LOAD, &[Column::uuids(ids.iter().map(|id| id.uuid()))], &[]).await?;
    rows.iter().map(Worker::read).collect()
}

/// Prefetches [`load`] for an operation that begins with it.
pub(crate) fn prefetch_workers(ids: &[WorkerId]) -> Prefetch<'static> {
    Prefetch { sql: LOAD, columns: vec![Column::uuids(ids.iter().map(|id| id.uuid()))], params: Vec::new() }
}

impl Worker {
    pub(crate) fn claim_filter(&self) -> ClaimFilter {
        ClaimFilter { queues: self.queues.clone(), kinds: self.kinds.clone(), affinities: self.affinities.clone() }
    }

    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        let names = |text: String| -> Result<Vec<Name>, StoreError> {
            Ok(from_json::<Vec<String>>(&text)?.iter().map(|name| Name::stored(name)).collect())
        };
        let labels = |text: String| -> Result<Vec<Label>, StoreError> {
            Ok(from_json::<Vec<String>>(&text)?.iter().map(|label| Label::stored(label)).collect())
        };
        Ok(Self {
            id: WorkerId::new(row.uuid("id")?),
            tenant: TenantId(row.int("tenant")?),
            name: row.text("name")?,
            queues: names(row.text("queues")?)?,
            kinds: row.opt_text("kinds")?.map(names).transpose()?,
            affinities: row.opt_text("affinities")?.map(labels).transpose()?,
            affinity: row.opt_text("affinity")?.map(|label| Label::stored(&label)),
            lease: Lease { term_ms: row.int("lease_ms")?, until: row.time("lease_until")? },
            draining: row.bool("draining")?,
            registered_at: row.time("registered_at")?,
            last_claim_at: row.opt_time("last_claim_at")?,
            node: row.opt_text("node")?,
            dead_at: row.opt_time("dead_at")?,
            service_since: row.time("since")?,
            service_beat_at: row.time("beat_at")?,
        })
    }

    /// Returns true while the lease is valid. A worker whose lease expired stays dead, even before the sweep marks it.
    /// An outage or a clock jump extends the lease here before the service's next heartbeat records it, because the
    /// worker may return earlier.
    pub fn is_alive(&self, now: Time) -> bool {
        let since = service_since(self.service_since, self.service_beat_at, now);
        self.dead_at.is_none() && !self.lease.has_expired(since, now)
    }

    /// Renews the lease if it is due for renewal.
    pub(crate) async fn touch(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        if self.lease.needs_renewal(tx.now()) {
            self.renew(tx, &None, None).await?;
        }
        Ok(())
    }

    /// Records a claim that returned jobs. Writes only if the lease is due for renewal, the affinity changed or
    /// `last_claim_at` is too old.
    pub(crate) async fn claimed(&self, tx: &mut Tx<'_>, affinity: &Affinity) -> Result<(), StoreError> {
        let now = tx.now();
        let is_recent =
            self.last_claim_at.is_some_and(|last| (0..=LAST_CLAIM_PRECISION_MS).contains(&now.ms_since(last)));
        let is_loaded = affinity.is_none() || *affinity == self.affinity;
        if !is_recent || !is_loaded || self.lease.needs_renewal(now) {
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
        tx.defer(&RENEW, &[], &params).await?;
        Ok(until)
    }
}
