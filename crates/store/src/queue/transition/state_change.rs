//! A change of a job's state, and everything that follows from it.
//!
//! Claim, finish, fail, cancel, expire, time-out, snooze, release, promotion and signals all describe their work as
//! `StateChange`s. `apply_consequences` writes what follows from them in one fixed order, in the transaction of the change.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use domain::{Epoch, JobError, JobId, JobState, Origin, TenantId, WorkerId};
use uuid::Uuid;

use crate::db::effects::Effects;
use crate::db::notifier::JobChange;
use crate::db::tx::{Column, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects::work::{self, AttemptEnd, AttemptOutcome, SubjectWork};
use crate::queue::counters::CounterDeltas;
use crate::queue::holds::{self, Holder};
use crate::queue::lanes::{Lane, LaneCache};
use crate::signals::failures;
use crate::triggers::dead_letters;
use crate::triggers::dead_letters::jobs::DeadJob;
use crate::triggers::job_events;
use crate::workflows::journal::children;
use crate::workflows::runs::end::RunJobEnd;

/// One job's change from one state to another. Batches have thousands of these, so what most changes lack is boxed.
pub(crate) struct StateChange<'a> {
    pub(crate) job: JobId,
    pub(crate) tenant: TenantId,
    pub(crate) lane: i64,
    pub(crate) from: JobState,
    pub(crate) to: JobState,
    pub(crate) attempt: i32,
    pub(crate) webhook: WebhookInterest,
    /// The claim that the job leaves.
    pub(crate) claim: Option<Uuid>,
    pub(crate) details: Option<Box<ChangeDetails<'a>>>,
}

/// The parts of a change that most changes do not have.
#[derive(Default)]
pub(crate) struct ChangeDetails<'a> {
    /// The epoch whose holds are released.
    pub(crate) released: Option<Epoch>,
    /// The worker that must learn that the server ended its claim.
    pub(crate) revoked_worker: Option<WorkerId>,
    /// The unique key that expires with the job.
    pub(crate) unique_key: Option<&'a str>,
    /// The origin of a job that ended, if it has one.
    pub(crate) triggered_by: Option<&'a str>,
    /// The run of a job that ended, if it has one.
    pub(crate) run: Option<&'a str>,
    /// The error of a job that failed for good.
    pub(crate) error: Option<&'a JobError>,
    pub(crate) subject: Option<SubjectOutcome<'a>>,
}

impl ChangeDetails<'_> {
    /// `None` if there are no details.
    pub(crate) fn boxed(self) -> Option<Box<Self>> {
        let Self { released, revoked_worker, unique_key, triggered_by, run, error, subject } = &self;
        let is_empty = released.is_none()
            && revoked_worker.is_none()
            && unique_key.is_none()
            && triggered_by.is_none()
            && run.is_none()
            && error.is_none()
            && subject.is_none();
        (!is_empty).then(|| Box::new(self))
    }
}

/// Whether the change is sent to a webhook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WebhookInterest {
    None,
    /// The job's row names a webhook, or says that its queue has one.
    Stored,
    /// The row says nothing because the job was never claimed; the queue's settings decide.
    AskQueue,
}

/// What the change means for the job's subject.
pub(crate) struct SubjectOutcome<'a> {
    pub(crate) subject: &'a str,
    pub(crate) process: Option<&'a str>,
    pub(crate) worker: Option<WorkerId>,
    /// The event's name on the subject's timeline.
    pub(crate) event: &'a str,
    pub(crate) actor: Option<&'a str>,
    pub(crate) outcome: AttemptOutcome<'a>,
}

impl<'a> StateChange<'a> {
    fn notification(&self) -> JobChange {
        JobChange { tenant: self.tenant, lane: Some(self.lane), job: self.job, to: Some(self.to) }
    }

    /// A change without consequences for claims, holds, keys or subjects.
    pub(crate) fn plain(
        (tenant, job, lane): (TenantId, JobId, i64),
        (from, to): (JobState, JobState),
        attempt: i32,
        webhook: WebhookInterest,
    ) -> Self {
        Self { job, tenant, lane, from, to, attempt, webhook, claim: None, details: None }
    }

    fn is_end(&self) -> bool {
        self.to.is_terminal()
    }
}

/// A change and its details.
type DetailedChange<'c, 'a> = (&'c StateChange<'a>, &'c ChangeDetails<'a>);

/// Writes everything that follows from the changes: counters, claims, holds, unique keys, failures, dead letters,
/// subjects, triggers and webhooks. The rows of the jobs have their new state already.
pub(crate) async fn apply_consequences(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    changes: &[StateChange<'_>],
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    if changes.is_empty() {
        return Ok(());
    }
    let mut moved: BTreeMap<(TenantId, i64, JobState, JobState), i64> = BTreeMap::new();
    let key = |change: &StateChange<'_>| (change.tenant, change.lane, change.from, change.to);
    for alike in changes.chunk_by(|one, next| key(one) == key(next)) {
        *moved.entry(key(&alike[0])).or_default() += alike.len() as i64;
    }
    let of_lane = lanes.of(tx, &moved.keys().map(|(_, lane, ..)| *lane).collect::<Vec<_>>()).await?;
    for ((tenant, lane, from, to), jobs) in moved {
        let queue = &of_lane[&lane].queue;
        counters.moved(tenant, queue, (from, to), jobs);
        match to {
            JobState::Scheduled => effects.due = true,
            JobState::Queued => drop(effects.ready.insert((tenant, queue.clone()))),
            _ => {}
        }
    }
    effects.ended.extend(changes.iter().filter(|change| change.is_end()).map(|change| change.job));
    effects.changes.extend(changes.iter().map(StateChange::notification));
    close_claims(tx, changes.iter().filter_map(|change| change.claim)).await?;
    let detailed: Vec<DetailedChange<'_, '_>> =
        changes.iter().filter_map(|change| Some((change, change.details.as_deref()?))).collect();
    if !detailed.is_empty() {
        effects.run_ends.extend(detailed.iter().filter_map(|(change, details)| run_end(change, details)));
        effects.workers.extend(detailed.iter().filter_map(|(_, details)| details.revoked_worker));
        let released = detailed.iter().filter_map(|(change, details)| Some((change.job, details.released?)));
        release_holds(tx, lanes, &released.collect::<Vec<_>>(), effects).await?;
        free_unique_keys(tx, &detailed).await?;
        record_failures(tx, &detailed, effects).await?;
        record_letter_handlers(tx, &detailed).await?;
        count_ended_children(tx, &detailed, effects).await?;
        apply_to_subjects(tx, lanes, &detailed, &of_lane, effects).await?;
    }
    job_events::publish(tx, &lanes.triggers, changes, &of_lane, effects).await
}

/// The end of a job of a run. `workflows::runs::end::record` counts it before the commit.
fn run_end(change: &StateChange<'_>, details: &ChangeDetails<'_>) -> Option<RunJobEnd> {
    let run = details.run.filter(|_| change.is_end())?.to_owned();
    Some(RunJobEnd { tenant: change.tenant, run, job: change.job, state: change.to })
}

const CLOSE_CLAIMS: Sql = Sql::new(
    &["update claims set remaining = remaining - $2 where claim = $1"],
    "with n as (select * from unnest($1::uuid[], $2::bigint[]) as n(claim, jobs)),
     closed as (delete from claims c using n where c.claim = n.claim and c.remaining <= n.jobs returning c.claim)
     update claims c set remaining = c.remaining - n.jobs from n
     where c.claim = n.claim and not exists (select 1 from closed where closed.claim = n.claim)",
);
// Concurrent transactions that take the last jobs of a claim each see a count above zero.
const DROP_EMPTY: Sql = Sql::new(
    &["delete from claims where claim = $1 and remaining <= 0"],
    "delete from claims where claim = any($1::uuid[]) and remaining <= 0",
);

/// Decrements the counts of the claims that jobs leave, and deletes a claim when its count reaches zero.
async fn close_claims(tx: &mut Tx<'_>, claims: impl Iterator<Item = Uuid>) -> Result<(), StoreError> {
    let mut jobs: BTreeMap<Uuid, i64> = BTreeMap::new();
    for claim in claims {
        *jobs.entry(claim).or_default() += 1;
    }
    let columns = [Column::uuids(jobs.keys().copied()), Column::ints(jobs.values().copied())];
    tx.defer(&CLOSE_CLAIMS, &columns, &[]).await?;
    tx.defer(&DROP_EMPTY, &columns[..1], &[]).await
}

/// Releases the holds of these claims, and notes the queues whose parked jobs can run now.
pub(crate) async fn release_holds(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    holders: &[Holder],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let (unparked, queues) = holds::release(tx, holders).await?;
    effects.ready.extend(queues);
    for lane in lanes.of(tx, &unparked).await?.values() {
        effects.ready.insert((lane.tenant, lane.queue.clone()));
    }
    Ok(())
}

const FREE_UNIQUE: Sql = Sql::new(
    &["delete from unique_keys where tenant = $1 and key = $2 and job = $3
       and queue = (select queue from lanes where lane = $4)"],
    "delete from unique_keys u using unnest($1::bigint[], $2::text[], $3::uuid[], $4::bigint[]) as n(tenant, key, job, lane),
         lanes l
     where l.lane = n.lane and u.tenant = n.tenant and u.queue = l.queue and u.key = n.key and u.job = n.job",
);

/// Deletes the unique keys that expire with their jobs.
async fn free_unique_keys(tx: &mut Tx<'_>, changes: &[DetailedChange<'_, '_>]) -> Result<(), StoreError> {
    let keyed: Vec<(&StateChange<'_>, &str)> =
        changes.iter().filter_map(|(change, details)| Some((*change, details.unique_key?))).collect();
    let columns = [
        Column::ints(keyed.iter().map(|(change, _)| change.tenant.0)),
        Column::texts(keyed.iter().map(|(_, key)| *key)),
        Column::jobs(keyed.iter().map(|(change, _)| change.job)),
        Column::ints(keyed.iter().map(|(change, _)| change.lane)),
    ];
    tx.execute_each(&FREE_UNIQUE, &columns, &[]).await.map(|_| ())
}

/// Feeds jobs that failed for good to the failure index, and writes their dead letters.
async fn record_failures(
    tx: &mut Tx<'_>,
    changes: &[DetailedChange<'_, '_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let dead_job = |(change, details): &DetailedChange<'_, '_>| {
        Some(DeadJob { job: change.job, tenant: change.tenant, error: details.error?.clone() })
    };
    let failed: Vec<DeadJob> = changes.iter().filter_map(dead_job).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let now = tx.now();
    failures::feed(tx, &failed.iter().map(|failed| (failed.job, failed.tenant)).collect::<Vec<_>>(), now).await?;
    effects.outbox = true;
    dead_letters::jobs::insert_for_failed_jobs(tx, failed).await
}

/// Records the ends of jobs that handled dead letters.
async fn record_letter_handlers(tx: &mut Tx<'_>, changes: &[DetailedChange<'_, '_>]) -> Result<(), StoreError> {
    for (change, details) in changes.iter().filter(|(change, _)| change.is_end()) {
        let Some(triggered_by) = details.triggered_by else { continue };
        let canceled = JobError { code: "canceled".into(), message: "the job was canceled".into(), retryable: false };
        let error = match change.to {
            JobState::Succeeded => None,
            _ => Some(details.error.unwrap_or(&canceled)),
        };
        let origin = Origin::parse(Some(triggered_by));
        dead_letters::handlers::handler_ended(tx, change.tenant, &origin, error).await?;
    }
    Ok(())
}

/// Counts the ends of jobs that steps of other jobs started. A task then resolves the entries whose children have all
/// ended.
async fn count_ended_children(
    tx: &mut Tx<'_>,
    changes: &[DetailedChange<'_, '_>],
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let is_child = |origin: &str| origin.starts_with(children::ORIGIN);
    let ended =
        changes.iter().filter(|(change, details)| change.is_end() && details.triggered_by.is_some_and(is_child));
    let ended: Vec<(JobId, JobState)> = ended.map(|(change, _)| (change.job, change.to)).collect();
    effects.due |= !ended.is_empty();
    children::ended(tx, &ended).await
}

/// Updates backoffs, facts, eligibility and timelines of the subjects. Does nothing if no job has a subject.
async fn apply_to_subjects(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    changes: &[DetailedChange<'_, '_>],
    of_lane: &HashMap<i64, Arc<Lane>>,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let mut started = Vec::new();
    let mut ended = Vec::new();
    for (change, details) in changes {
        let Some(on) = &details.subject else { continue };
        let lane = &of_lane[&change.lane];
        let work = SubjectWork {
            tenant: change.tenant,
            subject: on.subject,
            process: on.process,
            queue: &lane.queue,
            kind: &lane.kind,
            job: change.job,
            attempt: change.attempt,
            worker: on.worker,
        };
        match on.outcome {
            AttemptOutcome::Started => started.push(work),
            outcome => {
                let (event, actor, job_ended) = (on.event, on.actor, change.is_end());
                ended.push(AttemptEnd { work, event, actor, outcome, job_ended });
            }
        }
    }
    work::started(tx, &started).await?;
    work::ended(tx, lanes, &ended, effects).await
}
