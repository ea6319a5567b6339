//! The only module that changes the state of an existing job.
//!
//! A caller loads and locks the rows (`load`), asks the rules (`domain::Job::apply`) and passes the resulting
//! `Transition`s to `write`. The batched paths (claim, finish, promotion) run one set-based statement instead. Both
//! produce `StateChange`s, and `apply_consequences` writes everything that follows from them in the same transaction.

mod close;
mod ended_row;
mod live_job;
mod state_change;
mod wake;

use std::collections::HashMap;

use domain::{Job, JobError, JobId, JobState, Label, State, Time, WorkerId};

pub(crate) use close::close;
pub(crate) use ended_row::{EndedRow, Ending, complete_batch, complete_claimed_rows, end, load_ended};
pub(crate) use live_job::{LiveJob, load};
pub(crate) use state_change::{
    ChangeDetails, StateChange, SubjectOutcome, WebhookInterest, apply_consequences, release_holds,
};
pub(crate) use wake::wake;

use crate::db::codec::error_to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::facts::FactChanges;
use crate::fleet::subjects::work::AttemptOutcome;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::revocations;

/// A transition that the rules allowed: the job before and after it.
pub(crate) struct Transition {
    pub(crate) before: LiveJob,
    pub(crate) after: Job,
    /// The name of the event in history when the job goes on: `failed`, `expired`, `released`, `snoozed`.
    pub(crate) event: &'static str,
    pub(crate) actor: Option<String>,
    pub(crate) error: Option<JobError>,
    pub(crate) result: Option<String>,
    /// Facts for the job's subject, sent by the worker with its outcome.
    pub(crate) facts: Option<FactChanges>,
    /// The end of the backoff that the failing worker chose.
    pub(crate) chosen_backoff: Option<Time>,
    /// The server ends the claim while the worker still runs the job. The job's holds stay until the worker answers or
    /// its lease expires.
    pub(crate) revoke: bool,
}

impl Transition {
    /// A transition requested by the job's own worker, or caused by its death.
    pub(crate) fn new(
        before: LiveJob,
        after: Job,
        event: &'static str,
        error: Option<JobError>,
        result: Option<String>,
    ) -> Self {
        Self { before, after, event, actor: None, error, result, facts: None, chosen_backoff: None, revoke: false }
    }

    fn is_end(&self) -> bool {
        matches!(self.after.state, State::Ended { .. })
    }

    /// True if the end of the attempt has a row of its own in `history`. The row of an ended job describes its last
    /// attempt, but does not say that its lease expired.
    fn has_history_row(&self) -> bool {
        !self.is_end() || self.event == "expired"
    }

    /// `ended` is the row that the job left behind, if this transition ended it.
    fn state_change<'a>(&'a self, ended: Option<&'a EndedRow>) -> StateChange<'a> {
        let Self { before, after, .. } = self;
        let to = after.job_state();
        let retry_at = match after.state {
            State::Scheduled { run_at } => Some((run_at, after.wait_s)),
            _ => None,
        };
        let outcome = match &self.error {
            // The cause of a cancel is no failure of the subject, nor is a deadline that passes without an attempt.
            Some(error) if to != JobState::Canceled && before.worker.is_some() => AttemptOutcome::Failure {
                error,
                retry: before.retry,
                triggered_by: before.triggered_by.as_deref(),
                retry_at,
                chosen_until: self.chosen_backoff,
            },
            None if to == JobState::Succeeded => AttemptOutcome::Success { facts: self.facts.as_ref() },
            _ => AttemptOutcome::Neither,
        };
        let subject = before.subject.as_ref().map(|subject| SubjectOutcome {
            subject: subject.as_str(),
            process: before.process.as_deref(),
            worker: before.worker,
            event: self.event,
            actor: self.actor.as_deref(),
            outcome,
        });
        // A claim copies the queue's webhook mark to the job. A job that was never claimed has no mark yet.
        let webhook = match (&before.webhook, before.worker) {
            (Some(_), _) => WebhookInterest::Stored,
            (None, None) => WebhookInterest::AskQueue,
            (None, Some(_)) => WebhookInterest::None,
        };
        let details = ChangeDetails {
            released: (before.held && !self.revoke).then_some(before.epoch),
            revoked_worker: before.worker.filter(|_| self.revoke),
            unique_key: ended.and_then(|ended| ended.unique_key.as_deref()),
            triggered_by: ended.and_then(|ended| ended.triggered_by.as_deref()),
            run: ended.and_then(|ended| ended.run.as_deref()),
            error: after.failure(),
            subject,
        };
        let job = (before.tenant, before.id, before.lane);
        StateChange {
            claim: before.claim,
            details: details.boxed(),
            ..StateChange::plain(job, (before.state, to), before.attempt, webhook)
        }
    }
}

/// Writes the new rows of these jobs and everything that follows from the transitions. The caller holds the row locks.
pub(crate) async fn write(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    transitions: Vec<Transition>,
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if transitions.is_empty() {
        return Ok(());
    }
    let (ending, returning): (Vec<&Transition>, Vec<&Transition>) =
        transitions.iter().partition(|transition| transition.is_end());
    let endings: Vec<Ending> = ending.iter().map(|transition| Ending::of(transition)).collect();
    let ended = end(tx, &endings).await?;
    if ended.len() != endings.len() {
        return Err(StoreError::unexpected("a locked job moved"));
    }
    send_back(tx, &returning).await?;
    let recorded: Vec<&Transition> = transitions.iter().filter(|transition| transition.has_history_row()).collect();
    write_history(tx, &recorded).await?;
    revocations::write(tx, &transitions).await?;
    let ended: HashMap<JobId, &EndedRow> = ended.iter().map(|row| (row.id, row)).collect();
    let changes: Vec<StateChange<'_>> = transitions
        .iter()
        .map(|transition| transition.state_change(ended.get(&transition.before.id).copied()))
        .collect();
    apply_consequences(tx, lanes, &changes, counters, effects).await
}

const SEND_BACK: Sql = Sql::new(
    &["update jobs set state = $2, run_at = $3, due_at = $4, attempt = $5, epoch = $6, wait_s = $7,
           error = coalesce($8, error), worker = null, claim = null, held = 0, started_at = null, begun_at = null,
           deadline_at = null, progress = null, phase = null, version = version + 1, updated_at = $9
       where id = $1"],
    "update jobs j set state = n.state, run_at = n.run_at, due_at = n.due_at, attempt = n.attempt, epoch = n.epoch,
         wait_s = n.wait_s, error = coalesce(n.error, j.error), worker = null, claim = null, held = false,
         started_at = null, begun_at = null, deadline_at = null, progress = null, phase = null,
         version = version + 1, updated_at = $9
     from unnest($1::uuid[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::bigint[], $6::bigint[],
         $7::bigint[], $8::json[]) as n(id, state, run_at, due_at, attempt, epoch, wait_s, error)
     where j.id = n.id",
);

async fn send_back(tx: &mut Tx<'_>, transitions: &[&Transition]) -> Result<(), StoreError> {
    let errors: Vec<Option<String>> =
        transitions.iter().map(|transition| transition.error.as_ref().map(error_to_json)).collect();
    let run_at = |transition: &&Transition| match transition.after.state {
        State::Waiting { run_at } | State::Scheduled { run_at } => Some(run_at),
        State::Queued { since } => Some(since),
        _ => None,
    };
    let due_at = |transition: &&Transition| match transition.after.state {
        State::Waiting { .. } => Some(Time::NEVER),
        State::Scheduled { run_at } => Some(run_at),
        _ => None,
    };
    let of = || transitions.iter();
    let columns = [
        Column::jobs(of().map(|transition| transition.before.id)),
        Column::texts(of().map(|transition| transition.after.job_state().as_str())),
        Column::Time(of().map(run_at).collect()),
        Column::Time(of().map(due_at).collect()),
        Column::ints(of().map(|transition| i64::from(transition.after.attempt))),
        Column::ints(of().map(|transition| transition.after.epoch.0)),
        Column::Int(of().map(|transition| transition.after.wait_s.map(|wait| wait as i64)).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&SEND_BACK, &columns, &[now]).await.map(|_| ())
}

const HISTORY: Sql = Sql::new(
    &["insert into history (job, epoch, event, tenant, lane, enqueued_at, started_at, attempt, worker, actor, cause,
           subject, process, error, at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)"],
    "insert into history (job, epoch, event, tenant, lane, enqueued_at, started_at, attempt, worker, actor, cause,
         subject, process, error, at)
     select n.*, $15 from unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::bigint[], $6::timestamptz[],
         $7::timestamptz[], $8::bigint[], $9::uuid[], $10::text[], $11::text[], $12::text[], $13::text[],
         $14::json[]) n",
);

/// Writes one row per attempt. It holds the start and the end of the attempt.
async fn write_history(tx: &mut Tx<'_>, transitions: &[&Transition]) -> Result<(), StoreError> {
    let errors: Vec<Option<String>> =
        transitions.iter().map(|transition| transition.error.as_ref().map(error_to_json)).collect();
    let of = || transitions.iter();
    let columns = [
        Column::jobs(of().map(|transition| transition.before.id)),
        Column::ints(of().map(|transition| transition.before.epoch.0)),
        Column::texts(of().map(|transition| transition.event)),
        Column::ints(of().map(|transition| transition.before.tenant.0)),
        Column::ints(of().map(|transition| transition.before.lane)),
        Column::Time(of().map(|transition| Some(transition.before.created_at)).collect()),
        Column::Time(of().map(|transition| transition.before.started_at).collect()),
        Column::ints(of().map(|transition| i64::from(transition.before.attempt))),
        Column::Uuid(of().map(|transition| transition.before.worker.map(WorkerId::uuid)).collect()),
        Column::Text(of().map(|transition| transition.actor.as_deref()).collect()),
        Column::Text(of().map(|transition| transition.error.as_ref().map(|error| error.code.as_str())).collect()),
        Column::Text(of().map(|transition| transition.before.subject.as_ref().map(Label::as_str)).collect()),
        Column::Text(of().map(|transition| transition.before.process.as_deref()).collect()),
        Column::Json(errors.iter().map(Option::as_deref).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&HISTORY, &columns, &[now]).await.map(|_| ())
}
