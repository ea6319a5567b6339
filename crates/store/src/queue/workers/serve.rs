//! Claims and settlements of workers of the built-in tenant that serve other tenants. Claims go round-robin over the
//! tenants with ready jobs, each for as many jobs as its weight. Every guarded write uses the job's own tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use domain::limits::CLAIM_BYTES;
use domain::{Affinity, JobId, Name, TenantId, WorkerId};

use crate::access::tokens::Serves;
use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::queue::claim::{Claimed, ClaimedJob};
use crate::queue::settle::{Outcome, SettleStatus, Settled};
use crate::store::Store;
use crate::workflows::journal::write::{JournalResult, JournalWrite, Journaled};

/// Weighted round-robin over tenants. All serving workers of this node share it, so that turns rotate by tenant and
/// not by worker.
#[derive(Default)]
pub(crate) struct TenantRotation(Mutex<RotationState>);

/// The tenant with the current turn and the number of jobs that remain in it.
#[derive(Clone, Copy, Default)]
struct RotationState {
    tenant: i64,
    remaining: i64,
}

/// A tenant with ready jobs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    tenant: TenantId,
    name: Name,
    weight: i64,
}

impl TenantRotation {
    fn last(&self) -> RotationState {
        *self.0.lock().expect("lock poisoned")
    }

    /// Records that the tenant got `taken` of the `offered` jobs in its turn. A tenant with fewer jobs than offered
    /// loses the rest of its turn.
    fn record_claim(&self, tenant: TenantId, credit: i64, offered: usize, taken: usize) {
        let remaining = if taken < offered { 0 } else { (credit - taken as i64).max(0) };
        *self.0.lock().expect("lock poisoned") = RotationState { tenant: tenant.0, remaining };
    }
}

/// Returns the tenants in turn order, each with its credit of jobs. A tenant with an unfinished turn comes first.
fn rotation_order(mut waiting: Vec<Candidate>, last: RotationState) -> Vec<(Candidate, i64)> {
    let continues = |tenant: TenantId| tenant.0 == last.tenant && last.remaining > 0;
    waiting.sort_by_key(|candidate| {
        let id = candidate.tenant;
        (!continues(id), id.0 <= last.tenant, id.0)
    });
    let credit = |candidate: Candidate| {
        let credit = if continues(candidate.tenant) { last.remaining } else { candidate.weight };
        (candidate, credit)
    };
    waiting.into_iter().map(credit).collect()
}

impl Serves {
    pub fn includes(&self, tenant: TenantId) -> bool {
        match self {
            Serves::Everyone => true,
            Serves::Tenants(tenants) => tenants.iter().any(|(id, _)| *id == tenant),
        }
    }
}

impl Store {
    /// Claims up to `max` jobs of the worker's own tenant and of the tenants it serves, in turns.
    pub async fn claim_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        max: usize,
        affinity: Affinity,
    ) -> Result<Claimed, StoreError> {
        let Some(registered) = self.worker(tenant, worker).await? else { return Ok(Claimed::NotFound) };
        let waiting = self.read(ListTenantsWithReadyJobs { queues: registered.queues.clone() }).await?;
        let served = waiting.into_iter().filter(|(id, _)| *id == tenant || serves.includes(*id));
        let candidates = served.map(|(id, name)| {
            let weight = self.tokens().quota(id).and_then(|quota| quota.weight).unwrap_or(1).max(1);
            Candidate { tenant: id, name, weight }
        });
        let waiting = rotation_order(candidates.collect(), self.tenant_rotation().last());
        let mut jobs: Vec<ClaimedJob> = Vec::new();
        let mut loaded = affinity.clone();
        let mut may_have_more = false;
        let mut weights: i64 = waiting.iter().map(|(candidate, _)| candidate.weight).sum();
        for (Candidate { tenant: of, name, weight }, credit) in waiting {
            let capacity = max - jobs.len();
            let bytes: usize = jobs.iter().map(|job| job.payload.len()).sum();
            if capacity == 0 || bytes >= CLAIM_BYTES {
                break;
            }
            // Capacity that earlier tenants did not use is shared by the remaining ones.
            let share = (capacity * weight as usize).div_ceil(weights as usize);
            weights -= weight;
            let claimed = match self.claim_of(of, tenant, worker, (share, CLAIM_BYTES - bytes), loaded.clone()).await {
                Ok(claimed) => claimed,
                // Return the jobs claimed so far. If this tenant's error persists, the next call reports it.
                Err(error) if !jobs.is_empty() && !matches!(error, StoreError::InDoubt { .. }) => {
                    tracing::warn!(tenant = of.0, %error, "cannot claim from a tenant's queues; returning the jobs claimed so far");
                    break;
                }
                Err(error) => return Err(error),
            };
            match claimed {
                Claimed::Jobs { jobs: taken, draining: false, may_have_more: by_others, .. } => {
                    may_have_more |= by_others;
                    self.tenant_rotation().record_claim(of, credit, share, taken.len());
                    loaded = taken.iter().rev().find_map(|job| job.affinity.clone()).or(loaded);
                    let first = jobs.len();
                    jobs.extend(taken);
                    if of != tenant {
                        jobs[first..].iter_mut().for_each(|job| job.tenant = Some(name.clone()));
                    }
                }
                // Return the jobs claimed so far. The next call reports this result.
                other if jobs.is_empty() => return Ok(other),
                _ => break,
            }
        }
        if jobs.is_empty() {
            // No tenant had a job. Claiming from the worker's own queues also reports whether the worker is alive.
            let mut claimed = self.claim(tenant, worker, max, affinity).await?;
            if let Claimed::Jobs { may_have_more: own, .. } = &mut claimed {
                *own |= may_have_more;
            }
            return Ok(claimed);
        }
        Ok(Claimed::Jobs { jobs, claim_filter: registered.claim_filter(), draining: false, may_have_more })
    }

    /// Settles outcomes, each in its job's own tenant. Jobs of tenants that the token does not serve are reported as
    /// not found.
    pub async fn settle_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        if let Some(index) = self.facts_without_subject(tenant, worker, &outcomes).await? {
            return Ok(Settled::FactsWithoutSubject(index));
        }
        if let Some((index, key)) = self.missing_wake_key(worker, &outcomes).await? {
            return Ok(Settled::NoSuchKey(index, key));
        }
        let of = self.read(FindJobTenants { jobs: outcomes.iter().map(|outcome| outcome.job).collect() }).await?;
        let served = |job: &JobId| of.get(job).copied().filter(|of| serves.includes(*of)).unwrap_or(tenant);
        let mut groups: BTreeMap<TenantId, Vec<(usize, Outcome)>> = BTreeMap::new();
        let count = outcomes.len();
        for (index, outcome) in outcomes.into_iter().enumerate() {
            groups.entry(served(&outcome.job)).or_default().push((index, outcome));
        }
        let mut statuses = vec![SettleStatus::NotFound; count];
        for (of, group) in groups {
            let (indexes, outcomes): (Vec<usize>, Vec<Outcome>) = group.into_iter().unzip();
            match self.settle_of(of, tenant, worker, outcomes).await? {
                Settled::Results(results) => {
                    indexes.into_iter().zip(results).for_each(|(index, status)| statuses[index] = status);
                }
                refused => return Ok(refused),
            }
        }
        Ok(Settled::Results(statuses))
    }

    /// Records operations, each in its job's own tenant. Jobs of tenants that the token does not serve are reported as
    /// not found. Each tenant has a commit of its own; a repeated request records nothing twice.
    pub async fn journal_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        writes: Vec<JournalWrite>,
    ) -> Result<Journaled, StoreError> {
        let of = self.read(FindJobTenants { jobs: writes.iter().map(|write| write.job).collect() }).await?;
        let served = |job: &JobId| of.get(job).copied().filter(|of| serves.includes(*of)).unwrap_or(tenant);
        let mut groups: BTreeMap<TenantId, Vec<(usize, JournalWrite)>> = BTreeMap::new();
        let count = writes.len();
        for (index, write) in writes.into_iter().enumerate() {
            groups.entry(served(&write.job)).or_default().push((index, write));
        }
        let not_found = JournalResult { status: SettleStatus::NotFound, entries: Vec::new() };
        let mut results = vec![not_found; count];
        for (of, group) in groups {
            let (indexes, writes): (Vec<usize>, Vec<JournalWrite>) = group.into_iter().unzip();
            match self.journal_of(of, tenant, worker, writes).await? {
                Journaled::Results(recorded) => {
                    indexes.into_iter().zip(recorded).for_each(|(index, result)| results[index] = result);
                }
                Journaled::Refused { write, op, error } => {
                    return Ok(Journaled::Refused { write: indexes[write], op, error });
                }
                Journaled::NoSuchWorker => return Ok(Journaled::NoSuchWorker),
            }
        }
        Ok(Journaled::Results(results))
    }

    /// Returns the job's tenant if the token serves it.
    pub async fn served_tenant_of(&self, job: JobId, serves: &Serves) -> Result<Option<TenantId>, StoreError> {
        let of = self.read(FindJobTenants { jobs: vec![job] }).await?;
        Ok(of.get(&job).copied().filter(|of| serves.includes(*of)))
    }
}

/// Finds the tenants with a ready job in one of these queues.
struct ListTenantsWithReadyJobs {
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

impl Operation for ListTenantsWithReadyJobs {
    type Output = Vec<(TenantId, Name)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query_each(&WAITING, &[Column::texts(self.queues.iter().map(Name::as_str))], &[]).await?;
        let read = |row: &crate::db::tx::Row| Ok((TenantId(row.int("id")?), Name::stored(&row.text("name")?)));
        let mut waiting = rows.iter().map(read).collect::<Result<Vec<_>, StoreError>>()?;
        waiting.sort();
        waiting.dedup();
        Ok(waiting)
    }
}

struct FindJobTenants {
    jobs: Vec<JobId>,
}

const TENANTS_OF: Sql = Sql::new(
    &["select id, tenant from jobs where id = $1 union all select id, tenant from ended where id = $1"],
    "select id, tenant from jobs where id = any($1::uuid[]) union all select id, tenant from ended where id = any($1::uuid[])",
);

impl Operation for FindJobTenants {
    type Output = HashMap<JobId, TenantId>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let rows = tx.query_each(&TENANTS_OF, &[Column::jobs(self.jobs.iter().copied())], &[]).await?;
        rows.iter().map(|row| Ok((row.job("id")?, TenantId(row.int("tenant")?)))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Claims one job at a time while every tenant has more. Returns the tenants in the order of the claims.
    fn turns(weights: &[(i64, i64)], claims: usize) -> Vec<i64> {
        let tenant_rotation = TenantRotation::default();
        let waiting = || {
            let candidate = |(id, weight): &(i64, i64)| Candidate {
                tenant: TenantId(*id),
                name: Name::stored("t"),
                weight: *weight,
            };
            weights.iter().map(candidate).collect::<Vec<_>>()
        };
        let next = |_| {
            let (first, credit) = rotation_order(waiting(), tenant_rotation.last()).remove(0);
            tenant_rotation.record_claim(first.tenant, credit, 1, 1);
            first.tenant.0
        };
        (0..claims).map(next).collect()
    }

    /// Requirement Q12.
    #[test]
    fn each_tenant_gets_jobs_by_its_weight() {
        assert_eq!(turns(&[(1, 1), (2, 1)], 6), [1, 2, 1, 2, 1, 2]);
        assert_eq!(turns(&[(1, 3), (2, 1), (3, 2)], 12), [1, 1, 1, 2, 3, 3, 1, 1, 1, 2, 3, 3]);
    }

    /// Requirement Q12.
    #[test]
    fn a_tenant_without_jobs_loses_the_rest_of_its_share() {
        let tenant_rotation = TenantRotation::default();
        tenant_rotation.record_claim(TenantId(1), 3, 2, 1);
        assert_eq!(tenant_rotation.last().remaining, 0);
        tenant_rotation.record_claim(TenantId(1), 3, 2, 2);
        assert_eq!(tenant_rotation.last().remaining, 1);
    }
}
