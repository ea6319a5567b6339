//! Calls a job off (Q11): at once when it waits; when it runs, its worker hears with its heartbeat and what it holds
//! stays held until the worker answers or its lease passes.

use domain::job::Event;
use domain::{JobId, JobState, Name, TenantId};

use crate::counters::Changes;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::queues::drained;
use crate::jobs::transition::{self, Step};
use crate::lanes::LaneCache;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Canceled {
    /// Now or before: saying it twice is once.
    Canceled(JobId),
    /// It has succeeded or failed.
    AlreadyEnded(JobState),
    /// A worker has it, and only one that waits was to be called off.
    AtWork,
    NotFound,
}

impl Store {
    pub async fn cancel(&self, tenant: TenantId, job: JobId, actor: String) -> Result<Canceled, StoreError> {
        self.cancel_which(tenant, Which::Id(job), actor).await
    }

    /// Cancels a job unless a worker has it.
    pub async fn cancel_waiting(&self, tenant: TenantId, job: JobId, actor: String) -> Result<Canceled, StoreError> {
        self.cancel_which(tenant, Which::Waiting(job), actor).await
    }

    /// Cancels the live job that has the unique key.
    pub async fn cancel_by_key(
        &self,
        tenant: TenantId,
        queue: Name,
        key: String,
        actor: String,
    ) -> Result<Canceled, StoreError> {
        self.cancel_which(tenant, Which::Key(queue, key), actor).await
    }

    async fn cancel_which(&self, tenant: TenantId, which: Which, actor: String) -> Result<Canceled, StoreError> {
        let cancel = Cancel { tenant, which, actor, lanes: self.lanes().clone() };
        let (canceled, effects) = self.write(cancel).await?;
        self.announce(&effects);
        Ok(canceled)
    }
}

enum Which {
    Id(JobId),
    Waiting(JobId),
    Key(Name, String),
}

struct Cancel {
    tenant: TenantId,
    which: Which,
    actor: String,
    lanes: LaneCache,
}

const BY_KEY: Sql = Sql::both(&["select job from unique_keys where tenant = $1 and queue = $2 and key = $3
     and (until is null or until > $4)"]);
const ENDED: Sql = Sql::both(&["select state from ended where id = $1 and tenant = $2"]);

impl Operation for Cancel {
    const WATCHES_TRIGGERS: bool = true;
    type Output = (Canceled, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Canceled, Effects), StoreError> {
        let mut effects = Effects::default();
        let id = match &self.which {
            Which::Id(id) | Which::Waiting(id) => *id,
            Which::Key(queue, key) => {
                let (tenant, now) = (Param::Int(self.tenant.0), Param::Time(tx.now()));
                let params = [tenant, Param::Text(queue.as_str()), Param::Text(key), now];
                match tx.query_opt(&BY_KEY, &params).await? {
                    Some(row) => row.job(0)?,
                    None => return Ok((Canceled::NotFound, effects)),
                }
            }
        };
        let live = transition::load(tx, &[id]).await?.remove(&id).filter(|job| job.tenant == self.tenant);
        let Some(before) = live else {
            let row = tx.query_opt(&ENDED, &[Param::from(id), Param::Int(self.tenant.0)]).await?;
            let state = row.map(|row| row.text(0)).transpose()?.and_then(|state| JobState::parse(&state));
            let answer = match state {
                Some(JobState::Canceled) => Canceled::Canceled(id),
                Some(state) => Canceled::AlreadyEnded(state),
                None => Canceled::NotFound,
            };
            return Ok((answer, effects));
        };
        if before.state.is_claimed() && matches!(self.which, Which::Waiting(_)) {
            return Ok((Canceled::AtWork, effects));
        }
        let lane = self.lanes.of(tx, &[before.lane]).await?.remove(&before.lane).expect("asked for");
        let job = before.job(&lane.kind, &Default::default())?;
        let after =
            job.apply(Event::Cancel, tx.now()).map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        let revoke = before.state.is_claimed();
        let actor = Some(self.actor.clone());
        let step = Step { actor, revoke, ..Step::new(before, after, "canceled", None, None) };
        let mut changes = Changes::default();
        transition::apply(tx, &self.lanes, vec![step], &mut changes, &mut effects).await?;
        drained(tx, &self.lanes.triggers, &changes, &mut effects).await?;
        changes.write(tx).await?;
        Ok((Canceled::Canceled(id), effects))
    }
}
