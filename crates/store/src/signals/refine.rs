//! A worker says how its job goes: phase, progress, summary, and whether it is still loading (S1).
//!
//! What it says holds for its claim: the row carries the epoch, and a later attempt inherits the last known outcome alone.

use domain::job::{Event, Held};
use domain::queue::PHASES;
use domain::{Epoch, JobId, JobState, Refusal, SignalKind, State, TenantId, Time};

use crate::deliveries::notices::{self, Notice};
use crate::error::StoreError;
use crate::events::{self, jobs::JobChange};
use crate::hints::Topic;
use crate::jobs::transition;
use crate::lanes::LaneCache;
use crate::queues;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug, Default)]
pub struct SignalChange {
    pub epoch: Epoch,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub summary: Option<String>,
    pub eta_s: Option<f64>,
    /// The rest as JSON.
    pub last_known_outcome: Option<String>,
    pub next_actions: Option<String>,
    pub diagnostics: Option<String>,
    pub payload: Option<String>,
    /// `loading` or `working`.
    pub state: Option<JobState>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaled {
    Applied,
    Refused(Refusal),
    /// The phase is neither built in nor declared by the queue.
    UnknownPhase,
    NotFound,
}

/// What is stored of a job's signal beside its row.
#[derive(Clone, Debug, Default)]
pub struct StoredSignal {
    /// The claim, or the wait, in which it was said.
    pub epoch: Epoch,
    pub kind: Option<SignalKind>,
    pub summary: Option<String>,
    pub eta_s: Option<f64>,
    pub last_known_outcome: Option<String>,
    pub next_actions: Option<String>,
    pub diagnostics: Option<String>,
    pub payload: Option<String>,
    pub updated_at: Time,
}

impl Store {
    pub async fn signal(&self, tenant: TenantId, job: JobId, change: SignalChange) -> Result<Signaled, StoreError> {
        let moves = change.state.is_some();
        let signaled = self.write(Signal { tenant, job, change, lanes: self.lanes().clone() }).await?;
        if signaled == Signaled::Applied {
            self.hints().tell_changed(job);
        }
        if moves {
            self.hints().wake(&Topic::Deliveries);
        }
        Ok(signaled)
    }
}

struct Signal {
    tenant: TenantId,
    job: JobId,
    change: SignalChange,
    lanes: LaneCache,
}

const UPDATE: Sql = Sql::both(&["update jobs set phase = coalesce($2, phase), progress = coalesce($3, progress),
         state = $4, begun_at = coalesce(begun_at, $5), version = version + 1, updated_at = $6
     where id = $1"]);
const UPSERT: Sql = Sql::both(&["insert into signals
         (job, tenant, summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, updated_at, epoch)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)
     on conflict (job) do update set eta_s = excluded.eta_s,
         summary = coalesce(excluded.summary, case when signals.epoch = excluded.epoch then signals.summary end),
         last_known_outcome = coalesce(excluded.last_known_outcome, signals.last_known_outcome),
         next_actions = coalesce(excluded.next_actions,
             case when signals.epoch = excluded.epoch then signals.next_actions end),
         diagnostics = coalesce(excluded.diagnostics,
             case when signals.epoch = excluded.epoch then signals.diagnostics end),
         payload = coalesce(excluded.payload, case when signals.epoch = excluded.epoch then signals.payload end),
         kind = case when signals.epoch = excluded.epoch or signals.kind in ('failed', 'succeeded', 'canceled')
             then signals.kind end,
         updated_at = excluded.updated_at, epoch = excluded.epoch"]);
const ENDED: Sql = Sql::both(&["select epoch from ended where id = $1 and tenant = $2"]);

impl Operation for Signal {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Signaled;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Signaled, StoreError> {
        let live = transition::load(tx, &[self.job]).await?.remove(&self.job);
        let Some(before) = live.filter(|job| job.tenant == self.tenant) else {
            let row = tx.query_opt(&ENDED, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
            return Ok(match row.map(|row| row.int(0)).transpose()? {
                Some(epoch) if self.change.epoch.0 >= epoch => Signaled::Refused(Refusal::AlreadyEnded),
                Some(_) => Signaled::Refused(Refusal::ClaimLost),
                None => Signaled::NotFound,
            });
        };
        let lane = self.lanes.of(tx, &[before.lane]).await?.remove(&before.lane).expect("asked for");
        let job = before.job(&lane.kind, &Default::default())?;
        // The epoch is the worker's word that the claim is its own; another worker cannot know it before its claim.
        let Some(worker) = before.worker else { return Ok(Signaled::Refused(Refusal::ClaimLost)) };
        let by = Held { worker, epoch: self.change.epoch };
        let event = match self.change.state.unwrap_or(before.state) {
            JobState::Loading => Event::Load { by },
            _ => Event::Work { by },
        };
        let after = match job.apply(event, tx.now()) {
            Ok(after) => after,
            Err(refusal) => return Ok(Signaled::Refused(refusal)),
        };
        if let Some(phase) = self.change.phase.as_deref().filter(|phase| !PHASES.contains(phase))
            && !queues::settings(tx, self.tenant, &lane.queue).await?.has_phase(phase)
        {
            return Ok(Signaled::UnknownPhase);
        }
        // Only an explicit word ends the loading: progress alone may be told of it too.
        let begun = self.change.state.is_some() && matches!(after.state, State::Working(_));
        let now = Param::Time(tx.now());
        let params = [
            Param::from(self.job),
            Param::text(self.change.phase.as_deref()),
            self.change.progress.map_or(Param::Null, Param::Real),
            Param::Text(after.job_state().as_str()),
            if begun { now } else { Param::Null },
            now,
        ];
        tx.execute(&UPDATE, &params).await?;
        self.refine(tx).await?;
        if after.job_state() != before.state {
            let change = JobChange {
                tenant: self.tenant,
                job: self.job,
                queue: lane.queue.clone(),
                kind: lane.kind.clone(),
                from: before.state,
                to: after.job_state(),
                attempt: before.attempt,
            };
            events::jobs::changed(tx, &self.lanes.triggers, std::iter::once(change)).await?;
        }
        if before.webhook.is_some() && after.job_state() != before.state {
            let (from, to) = (before.state, after.job_state());
            let notice = Notice { tenant: self.tenant, job: self.job, from, to, attempt: before.attempt };
            notices::write(tx, &[notice]).await?;
        }
        Ok(Signaled::Applied)
    }
}

impl Signal {
    /// A row exists only for what the job's own row does not tell.
    async fn refine(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let SignalChange { summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, .. } = &self.change;
        let texts = [summary, last_known_outcome, next_actions, diagnostics, payload];
        if texts.iter().all(|text| text.is_none()) && eta_s.is_none() {
            return Ok(());
        }
        let params = [
            Param::from(self.job),
            Param::Int(self.tenant.0),
            Param::text(summary.as_deref()),
            eta_s.map_or(Param::Null, Param::Real),
            Param::json(last_known_outcome.as_deref()),
            Param::json(next_actions.as_deref()),
            Param::json(diagnostics.as_deref()),
            Param::json(payload.as_deref()),
            Param::Time(tx.now()),
            Param::Int(self.change.epoch.0),
        ];
        tx.execute(&UPSERT, &params).await.map(|_| ())
    }
}

impl StoredSignal {
    /// From the columns of `signals` that begin at this one, in the order in which they are asked for; none of them is set when
    /// nothing was said.
    pub(crate) fn at(row: &Row, first: usize) -> Result<Option<Self>, StoreError> {
        let Some(epoch) = row.opt_int(first)? else { return Ok(None) };
        Ok(Some(Self {
            epoch: Epoch(epoch),
            kind: row.opt_text(first + 1)?.and_then(|kind| SignalKind::parse(&kind)),
            summary: row.opt_text(first + 2)?,
            eta_s: row.opt_real(first + 3)?,
            last_known_outcome: row.opt_text(first + 4)?,
            next_actions: row.opt_text(first + 5)?,
            diagnostics: row.opt_text(first + 6)?,
            payload: row.opt_text(first + 7)?,
            updated_at: row.time(first + 8)?,
        }))
    }
}
