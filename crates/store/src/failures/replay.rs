//! Runs a whole failure group again: a new job for each that failed and was not retried since (S7).

use domain::{JobId, TenantId};
use uuid::Uuid;

use crate::caller::Caller;
use crate::dead_letters::replay::{Replayed as Letter, Work};
use crate::error::StoreError;
use crate::jobs::retry::Retried;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// The new jobs.
    pub made: Vec<JobId>,
    /// Those that were retried before.
    pub before: u64,
    /// Those whose jobs are pruned, and of which no dead letter is left that could be replayed.
    pub gone: u64,
}

impl Store {
    /// Retries up to `limit` jobs of the group. Twice is once: a job that was retried is left alone.
    pub async fn replay_failures(
        &self,
        tenant: TenantId,
        group: Uuid,
        limit: usize,
        by: &Caller,
    ) -> Result<Option<Replayed>, StoreError> {
        let Some(jobs) = self.read(Members { tenant, group, limit }).await? else { return Ok(None) };
        let mut replayed = Replayed::default();
        for job in jobs {
            match self.retry_job(tenant, job, None, by.clone()).await? {
                Retried::Made(made) => replayed.made.push(made.id),
                Retried::Before(_) | Retried::Otherwise(_) => replayed.before += 1,
                Retried::NotFound => self.replay_letter_of(tenant, job, by, &mut replayed).await?,
                Retried::NotEnded(_) => replayed.gone += 1,
            }
        }
        Ok(Some(replayed))
    }

    /// The dead letter of a job that is pruned has kept all that a replay needs.
    async fn replay_letter_of(
        &self,
        tenant: TenantId,
        job: JobId,
        by: &Caller,
        replayed: &mut Replayed,
    ) -> Result<(), StoreError> {
        let letter = match self.dead_letter_of(tenant, job).await? {
            Some(letter) => self.replay_dead_letter(tenant, letter, None, by.clone()).await?,
            None => Letter::NotFound,
        };
        match letter {
            Letter::Made(Work::Job(made)) => replayed.made.push(made),
            Letter::Before(_) | Letter::Otherwise(_) => replayed.before += 1,
            _ => replayed.gone += 1,
        }
        Ok(())
    }
}

struct Members {
    tenant: TenantId,
    group: Uuid,
    limit: usize,
}

const EXISTS: Sql = Sql::both(&["select 1 from failure_groups where id = $1 and tenant = $2"]);
const MEMBERS: Sql = Sql::both(&["select m.job from failure_jobs m left join ended e on e.id = m.job
     where m.group_id = $1 and m.tenant = $2 and e.retried_as is null
         and not exists (select 1 from dead_letters d where d.job = m.job and d.tenant = m.tenant
             and d.queue is not null and d.resolution = 'replayed')
     order by m.job desc limit $3"]);

impl Operation for Members {
    type Output = Option<Vec<JobId>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let (group, tenant) = (Param::Uuid(self.group), Param::Int(self.tenant.0));
        if tx.query_opt(&EXISTS, &[group, tenant]).await?.is_none() {
            return Ok(None);
        }
        let rows = tx.query(&MEMBERS, &[group, tenant, Param::Int(self.limit as i64)]).await?;
        rows.iter().map(|row| row.job(0)).collect::<Result<Vec<_>, _>>().map(Some)
    }
}
