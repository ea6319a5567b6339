//! Replays a failure group: creates a new job for each failed job that has not been retried yet.

use domain::{JobId, TenantId};
use uuid::Uuid;

use crate::access::caller::Caller;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::retry::Retried;
use crate::store::Store;
use crate::triggers::dead_letters::replay::{DeadLetterReplay, ReplayedWork};

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupReplay {
    /// The new jobs.
    pub made: Vec<JobId>,
    /// Jobs that had been retried before.
    pub already_retried: u64,
    /// Jobs that were pruned and have no dead letter that can be replayed.
    pub unavailable: u64,
}

impl Store {
    /// Retries up to `limit` jobs of the group. Idempotent: a job that has been retried is skipped. Returns `None` if
    /// the group does not exist.
    pub async fn replay_failures(
        &self,
        tenant: TenantId,
        group: Uuid,
        limit: usize,
        by: &Caller,
    ) -> Result<Option<GroupReplay>, StoreError> {
        let Some(jobs) = self.read(ListGroupMembers { tenant, group, limit }).await? else { return Ok(None) };
        let mut replayed = GroupReplay::default();
        for job in jobs {
            match self.retry_job(tenant, job, None, by.clone()).await? {
                Retried::Created(made) => replayed.made.push(made.id),
                Retried::AlreadyRetried(_) | Retried::OtherPayload(_) => replayed.already_retried += 1,
                Retried::NotFound => self.replay_letter_of(tenant, job, by, &mut replayed).await?,
                Retried::NotEnded(_) => replayed.unavailable += 1,
            }
        }
        Ok(Some(replayed))
    }

    /// Replays the dead letter of a pruned job. The letter stores everything that a replay needs.
    async fn replay_letter_of(
        &self,
        tenant: TenantId,
        job: JobId,
        by: &Caller,
        replayed: &mut GroupReplay,
    ) -> Result<(), StoreError> {
        let letter = match self.dead_letter_of(tenant, job).await? {
            Some(letter) => self.replay_dead_letter(tenant, letter, None, by.clone()).await?,
            None => DeadLetterReplay::NotFound,
        };
        match letter {
            DeadLetterReplay::Created(ReplayedWork::Job(made)) => replayed.made.push(made),
            DeadLetterReplay::AlreadyReplayed(_) | DeadLetterReplay::OtherPayload(_) => replayed.already_retried += 1,
            _ => replayed.unavailable += 1,
        }
        Ok(())
    }
}

struct ListGroupMembers {
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

impl Operation for ListGroupMembers {
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
        rows.iter().map(|row| row.job("job")).collect::<Result<Vec<_>, _>>().map(Some)
    }
}
