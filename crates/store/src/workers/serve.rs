//! Workers of the built-in tenant that serve others (Q12): their claims go round-robin over the tenants that have work
//! waiting, each for as many jobs as its weight says, and every guarded write uses the job's own tenant.

use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;

use domain::{Affinity, JobId, Name, TenantId, WorkerId};

use crate::error::StoreError;
use crate::jobs::claim::{Claimed, ClaimedJob};
use crate::jobs::settle::{Outcome, Settled, Status};
use crate::store::Store;
use crate::tokens::Serves;
use crate::tx::{Column, Operation, Sql, Tx};

/// Whose turn it is, on this node. All its serving workers share it, so that tenants and not workers take turns.
#[derive(Default)]
pub(crate) struct Turn(Mutex<Last>);

/// Whose turn was last, and how many jobs are left of it.
#[derive(Clone, Copy, Default)]
struct Last {
    tenant: i64,
    left: i64,
}

/// A tenant with work waiting.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    tenant: TenantId,
    name: Name,
    weight: i64,
}

impl Turn {
    fn last(&self) -> Last {
        *self.0.lock().expect("nobody panics with it in hand")
    }

    /// A tenant took this many of what it was offered in its turn. One that had no more waits for its next.
    fn took(&self, tenant: TenantId, credit: i64, offered: usize, taken: usize) {
        let left = if taken < offered { 0 } else { (credit - taken as i64).max(0) };
        *self.0.lock().expect("nobody panics with it in hand") = Last { tenant: tenant.0, left };
    }
}

/// In the order of their turns, each with what it may still take in it: whose turn is not over goes on.
fn in_turn(mut waiting: Vec<Candidate>, last: Last) -> Vec<(Candidate, i64)> {
    let goes_on = |tenant: TenantId| tenant.0 == last.tenant && last.left > 0;
    waiting.sort_by_key(|candidate| {
        let id = candidate.tenant;
        (!goes_on(id), id.0 <= last.tenant, id.0)
    });
    let credit = |candidate: Candidate| {
        let credit = if goes_on(candidate.tenant) { last.left } else { candidate.weight };
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
        let waiting = self.read(Waiting { queues: known.queues.clone() }).await?;
        let served = waiting.into_iter().filter(|(id, _)| *id == tenant || serves.includes(*id));
        let candidates = served.map(|(id, name)| {
            let weight = self.tokens().quota(id).and_then(|quota| quota.weight).unwrap_or(1).max(1);
            Candidate { tenant: id, name, weight }
        });
        let waiting = in_turn(candidates.collect(), self.turn().last());
        let mut jobs: Vec<ClaimedJob> = Vec::new();
        let mut held = affinity.clone();
        let mut hindered = false;
        let mut weights: i64 = waiting.iter().map(|(candidate, _)| candidate.weight).sum();
        for (Candidate { tenant: of, name, weight }, credit) in waiting {
            let room = max - jobs.len();
            if room == 0 {
                break;
            }
            // What those before left over is shared by those that are still to come.
            let share = (room * weight as usize).div_ceil(weights as usize);
            weights -= weight;
            let claimed = match self.claim_of(of, tenant, worker, share, held.clone()).await {
                Ok(claimed) => claimed,
                // What others' queues gave is handed over; this one's trouble is met again by the next call.
                Err(error) if !jobs.is_empty() && !matches!(error, StoreError::InDoubt { .. }) => {
                    tracing::warn!(tenant = of.0, %error, "a tenant's queues could not be looked at");
                    break;
                }
                Err(error) => return Err(error),
            };
            match claimed {
                Claimed::Jobs { jobs: taken, draining: false, hindered: by_others, .. } => {
                    hindered |= by_others;
                    self.turn().took(of, credit, share, taken.len());
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
            let mut claimed = self.claim(tenant, worker, max, affinity).await?;
            if let Claimed::Jobs { hindered: own, .. } = &mut claimed {
                *own |= hindered;
            }
            return Ok(claimed);
        }
        Ok(Claimed::Jobs { jobs, takes: known.takes(), draining: false, hindered })
    }

    /// Ends attempts, each in its own job's tenant. A job that the worker does not serve is not there.
    pub async fn settle_serving(
        &self,
        tenant: TenantId,
        worker: WorkerId,
        serves: &Serves,
        outcomes: Vec<Outcome>,
    ) -> Result<Settled, StoreError> {
        if let Some(stray) = self.stray_facts(tenant, worker, &outcomes).await? {
            return Ok(Settled::StrayFacts(stray));
        }
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
                refused => return Ok(refused),
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whose jobs are claimed, one at a time, while everyone has more.
    fn turns(weights: &[(i64, i64)], claims: usize) -> Vec<i64> {
        let turn = Turn::default();
        let waiting = || {
            let candidate = |(id, weight): &(i64, i64)| Candidate {
                tenant: TenantId(*id),
                name: Name::stored("t"),
                weight: *weight,
            };
            weights.iter().map(candidate).collect::<Vec<_>>()
        };
        let next = |_| {
            let (first, credit) = in_turn(waiting(), turn.last()).remove(0);
            turn.took(first.tenant, credit, 1, 1);
            first.tenant.0
        };
        (0..claims).map(next).collect()
    }

    #[test]
    fn q12_each_tenant_gets_as_many_jobs_in_its_turn_as_it_weighs() {
        assert_eq!(turns(&[(1, 1), (2, 1)], 6), [1, 2, 1, 2, 1, 2]);
        assert_eq!(turns(&[(1, 3), (2, 1), (3, 2)], 12), [1, 1, 1, 2, 3, 3, 1, 1, 1, 2, 3, 3]);
    }

    #[test]
    fn q12_whoever_has_no_more_loses_the_rest_of_its_turn() {
        let turn = Turn::default();
        turn.took(TenantId(1), 3, 2, 1);
        assert_eq!(turn.last().left, 0);
        turn.took(TenantId(1), 3, 2, 2);
        assert_eq!(turn.last().left, 1);
    }
}
