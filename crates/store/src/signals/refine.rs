//! Applies a worker's report on its job: phase, progress, summary, and whether it is still loading.
//!
//! A report is valid for its claim: the row stores the claim's epoch. A later attempt inherits only the last known
//! outcome.

use domain::queue::job::{ClaimRef, Event};
use domain::queue::settings::PHASES;
use domain::{Epoch, JobId, JobState, Refusal, SignalKind, State, TenantId, Time};

use crate::db::effects::Effects;
use crate::db::notifier::{JobChange, Topic};
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::queues;
use crate::queue::transition::{self, StateChange, WebhookInterest};
use crate::store::Store;

/// A worker's report. `None` keeps what the same claim reported before, except for `eta_s`: every report that stores a
/// row replaces it.
#[derive(Clone, Debug, Default)]
pub struct SignalChange {
    pub epoch: Epoch,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub summary: Option<String>,
    pub eta_s: Option<f64>,
    /// JSON, like the next three.
    pub last_known_outcome: Option<String>,
    pub next_actions: Option<String>,
    pub diagnostics: Option<String>,
    pub payload: Option<String>,
    /// `loading` or `working`.
    pub state: Option<JobState>,
    /// `Blocked` or `Unavailable`. A report without a kind withdraws it.
    pub kind: Option<SignalKind>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signaled {
    Applied,
    Refused(Refusal),
    /// The phase is neither built in nor declared by the queue.
    UnknownPhase,
    NotFound,
}

/// The part of a job's signal that is stored outside the job's row.
#[derive(Clone, Debug, Default)]
pub struct StoredSignal {
    /// Epoch of the claim, or of the wait, in which it was reported.
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
    /// Applies a report of the worker that has claimed the job, and wakes the job's followers.
    pub async fn signal(&self, tenant: TenantId, job: JobId, change: SignalChange) -> Result<Signaled, StoreError> {
        let changes_state = change.state.is_some();
        let report = change.progress.map(|progress| (change.epoch, progress));
        let signaled = self.write(ReportSignal { tenant, job, change, lanes: self.lanes().clone() }).await?;
        if signaled == Signaled::Applied {
            if let Some((epoch, progress)) = report {
                self.duration_sampler().track_progress(job, epoch, self.clock().now(), progress);
            }
            self.notifier().notify_jobs_changed(&[JobChange { tenant, lane: None, job, to: None }]);
        }
        if changes_state {
            self.notifier().notify_local(&Topic::Deliveries);
        }
        Ok(signaled)
    }
}

struct ReportSignal {
    tenant: TenantId,
    job: JobId,
    change: SignalChange,
    lanes: LaneCache,
}

const UPDATE: Sql = Sql::both(&["update jobs set phase = coalesce($2, phase), progress = coalesce($3, progress),
         state = $4, begun_at = coalesce(begun_at, $5), version = version + 1, updated_at = $6
     where id = $1"]);
const UPSERT: Sql = Sql::both(&["insert into signals
         (job, tenant, summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, updated_at, epoch, kind)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
     on conflict (job) do update set eta_s = excluded.eta_s,
         summary = coalesce(excluded.summary, case when signals.epoch = excluded.epoch then signals.summary end),
         last_known_outcome = coalesce(excluded.last_known_outcome, signals.last_known_outcome),
         next_actions = coalesce(excluded.next_actions,
             case when signals.epoch = excluded.epoch then signals.next_actions end),
         diagnostics = coalesce(excluded.diagnostics,
             case when signals.epoch = excluded.epoch then signals.diagnostics end),
         payload = coalesce(excluded.payload, case when signals.epoch = excluded.epoch then signals.payload end),
         kind = case when signals.epoch = excluded.epoch and signals.kind in ('failed', 'succeeded', 'canceled')
             then signals.kind else excluded.kind end,
         updated_at = excluded.updated_at, epoch = excluded.epoch"]);
// A report withdraws the kind that the same claim reported before.
const WITHDRAW: Sql = Sql::both(&["update signals set kind = null, updated_at = $2
     where job = $1 and kind in ('blocked', 'unavailable', 'queued', 'started', 'phase')"]);
const ENDED: Sql = Sql::both(&["select epoch from ended where id = $1 and tenant = $2"]);

impl Operation for ReportSignal {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = Signaled;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Signaled, StoreError> {
        let live = transition::load(tx, &[self.job]).await?.remove(&self.job);
        let Some(before) = live.filter(|job| job.tenant == self.tenant) else {
            let row = tx.query_opt(&ENDED, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
            return Ok(match row.map(|row| row.int("epoch")).transpose()? {
                Some(epoch) if self.change.epoch.0 >= epoch => Signaled::Refused(Refusal::AlreadyEnded),
                Some(_) => Signaled::Refused(Refusal::ClaimLost),
                None => Signaled::NotFound,
            });
        };
        let lane = self.lanes.one(tx, before.lane).await?;
        let job = before.job(&lane.kind, &Default::default())?;
        // The request names an epoch and no worker. The epoch is the fencing token of the claim: another worker learns
        // a job's epoch only by claiming the job.
        let Some(worker) = before.worker else { return Ok(Signaled::Refused(Refusal::ClaimLost)) };
        let by = ClaimRef { worker, epoch: self.change.epoch };
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
        // Only an explicit state ends the loading, because a worker may also report progress while it loads.
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
            let webhook = match before.webhook {
                Some(_) => WebhookInterest::Stored,
                None => WebhookInterest::None,
            };
            let states = (before.state, after.job_state());
            let change = StateChange::plain((self.tenant, self.job, before.lane), states, before.attempt, webhook);
            // `loading` and `working` share a counter, so there is nothing to write for the queue.
            let mut counters = CounterDeltas::default();
            transition::apply_consequences(tx, &self.lanes, &[change], &mut counters, &mut Effects::default()).await?;
        }
        Ok(Signaled::Applied)
    }
}

impl ReportSignal {
    /// Writes the `signals` row. It exists only if something was reported that the job's own row does not store.
    async fn refine(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let SignalChange { summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, kind, .. } =
            &self.change;
        let texts = [summary, last_known_outcome, next_actions, diagnostics, payload];
        if texts.iter().all(|text| text.is_none()) && eta_s.is_none() && kind.is_none() {
            return tx.defer(&WITHDRAW, &[], &[Param::from(self.job), Param::Time(tx.now())]).await;
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
            Param::text(kind.map(SignalKind::as_str)),
        ];
        tx.execute(&UPSERT, &params).await.map(|_| ())
    }
}

impl StoredSignal {
    /// Returns `None` if the epoch is null, that is if nothing was reported. Some queries also select the columns of
    /// the job, so a column that both have is prefixed with `signal_`.
    pub(crate) fn read(row: &Row) -> Result<Option<Self>, StoreError> {
        let Some(epoch) = row.opt_int("signal_epoch")? else { return Ok(None) };
        Ok(Some(Self {
            epoch: Epoch(epoch),
            kind: row.opt_text("signal_kind")?.and_then(|kind| SignalKind::parse(&kind)),
            summary: row.opt_text("summary")?,
            eta_s: row.opt_real("eta_s")?,
            last_known_outcome: row.opt_text("last_known_outcome")?,
            next_actions: row.opt_text("next_actions")?,
            diagnostics: row.opt_text("diagnostics")?,
            payload: row.opt_text("signal_payload")?,
            updated_at: row.time("signal_updated_at")?,
        }))
    }
}
