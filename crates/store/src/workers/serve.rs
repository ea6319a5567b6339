//! Workers of the built-in tenant that serve others (Q12): their claims go round-robin over the tenants that have work waiting,
//! and every guarded write uses the job's own tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicI64, Ordering};

use domain::{Affinity, JobId, Name, TenantId, WorkerId};

use crate::error::StoreError;
use crate::jobs::claim::{Claimed, ClaimedJob};
use crate::jobs::settle::{Outcome, Settled, Status};
use crate::store::Store;
use crate::tokens::Serves;
use crate::tx::{Column, Operation, Sql, Tx};

/// Whose turn was last, on this node. All its serving workers share it, so that tenants and not workers take turns.
#[derive(Default)]
pub(crate) struct Turn(AtomicI64);

impl Serves {
    pub fn includes(&self, tenant: TenantId) -> bool {
        match self {
            Serves::Everyone => true,
            Serves::Tenants(tenants) => tenants.iter().any(|(id, _)| *id == tenant),
        }
    }
}

impl Store {
    /// Up to `max` jobs of the worker's own tenant and of those it serves, each in turn.
    pub async fn claim_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        max: usize,
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        let Some(known) = self.worker(tenant, worker).await? else { return Ok(Claimed::NotFound) };
        let mut waiting = self.read(Waiting { queues: known.queues.clone() }).await?;
        waiting.retain(|(id, _)| *id == tenant || serves.includes(*id));
        let last = self.turn().0.load(Ordering::Relaxed);
        waiting.sort_by_key(|(id, _)| (id.0 <= last, id.0));
        let mut jobs: Vec<ClaimedJob> = Vec::new();
        let mut held = affinity.clone();
        let mut left = waiting.len();
        for (of, name) in waiting {
            let room = max - jobs.len();
            if room == 0 {
                break;
            }
            // What those before left over is shared by those that are still to come.
            let share = room.div_ceil(left);
            left -= 1;
            self.turn().0.store(of.0, Ordering::Relaxed);
            match self.claim_of(of, tenant, worker, share, held.clone()).await? {
                Claimed::Jobs { jobs: taken, draining: false, .. } => {
                    held = taken.iter().rev().find_map(|job| job.affinity.clone()).or(held);
                    let first = jobs.len();
                    jobs.extend(taken);
                    if of != tenant {
                        jobs[first..].iter_mut().for_each(|job| job.tenant = Some(name.clone()));
                    }
                }
                // Whatever the worker was given before is in its hands; the next call hears this again.
                told if jobs.is_empty() => return Ok(told),
                _ => break,
            }
        }
        if jobs.is_empty() {
            // Nobody has work: its own queues are looked at, which also tells whether the worker lives.
            return self.claim(tenant, worker, max, affinity).await;
        }
        Ok(Claimed::Jobs { jobs, queues: known.queues, draining: false })
    }

    /// Ends attempts, each in its own job's tenant. A job that the worker does not serve is not there.
    pub async fn settle_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        let of = self.read(TenantsOf { jobs: outcomes.iter().map(|outcome| outcome.job).collect() }).await?;
        let served = |job: &JobId| of.get(job).copied().filter(|of| serves.includes(*of)).unwrap_or(tenant);
        let mut groups: BTreeMap<TenantId, Vec<(usize, Outcome)>> = BTreeMap::new();
        let count = outcomes.len();
        for (place, outcome) in outcomes.into_iter().enumerate() {
            groups.entry(served(&outcome.job)).or_default().push((place, outcome));
        }
        let mut statuses = vec![Status::NotFound; count];
        for (of, group) in groups {
            let (places, outcomes): (Vec<usize>, Vec<Outcome>) = group.into_iter().unzip();
            match self.settle_of(of, tenant, worker, outcomes).await? {
                Settled::Results(results) => {
                    places.into_iter().zip(results).for_each(|(place, status)| statuses[place] = status);
                }
                Settled::NoSuchWorker => return Ok(Settled::NoSuchWorker),
            }
        }
        Ok(Settled::Results(statuses))
    }

    /// The tenant whose job it is, if it is one that is served.
    pub async fn served_tenant_of(&self, job: JobId, serves: &Serves) -> Result<Option<TenantId>, StoreError> {
        let of = self.read(TenantsOf { jobs: vec![job] }).await?;
        Ok(of.get(&job).copied().filter(|of| serves.includes(*of)))
    }
}

/// The tenants that have a job ready in one of these queues.
struct Waiting {
    queues: Vec<Name>,
}

const WAITING: Sql = Sql::new(
    &["select distinct n.id, n.name from lanes l join tenants n on n.id = l.tenant
       where l.queue = $1 and exists (select 1 from jobs j where j.lane = l.lane and j.due_at is null
           and j.parked is null and j.worker is null) limit 10000"],
    "select distinct n.id, n.name from unnest($1::text[]) as q(queue) join lanes l on l.queue = q.queue
         join tenants n on n.id = l.tenant
     where exists (select 1 from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
         and j.worker is null) limit 10000",
);

impl Operation for Waiting {
    type Output = Vec<(TenantId, Name)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query_each(&WAITING, &[Column::texts(self.queues.iter().map(Name::as_str))], &[]).await?;
        let read = |row: &crate::tx::Row| Ok((TenantId(row.int(0)?), Name::stored(&row.text(1)?)));
        let mut waiting = rows.iter().map(read).collect::<Result<Vec<_>, StoreError>>()?;
        waiting.sort();
        waiting.dedup();
        Ok(waiting)
    }
}

struct TenantsOf {
    jobs: Vec<JobId>,
}

const TENANTS_OF: Sql = Sql::new(
    &["select id, tenant from jobs where id = $1 union all select id, tenant from ended where id = $1"],
    "select id, tenant from jobs where id = any($1::uuid[]) union all select id, tenant from ended where id = any($1::uuid[])",
);

impl Operation for TenantsOf {
    type Output = HashMap<JobId, TenantId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query_each(&TENANTS_OF, &[Column::jobs(self.jobs.iter().copied())], &[]).await?;
        rows.iter().map(|row| Ok((row.job(0)?, TenantId(row.int(1)?)))).collect()
    }
}
