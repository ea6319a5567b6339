//! Debounce and batch: an enqueue with the unique key of a job that has not started changes that job, instead of adding
//! one. The key stays with the newest job: a job that has started takes no more payloads.

use std::collections::HashMap;

use domain::limits::PAYLOAD_BYTES;
use domain::{JobId, JobState, Time};

use super::keys::PendingChange;
use super::{Accepted, Gather, PendingJob};
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

/// A job of this commit that takes payloads of later requests.
pub(super) struct GatheringJob {
    payload: String,
    gathered: i64,
    created_at: Time,
}

// A row that is locked is being started or canceled: it takes nothing more.
const OWNER: Sql = Sql::new(
    &["select j.id, j.payload, j.created_at, o.gathered, l.kind from jobs j join lanes l on l.lane = j.lane
           join job_options o on o.job = j.id
       where j.id = $1 and j.state = 'scheduled' and j.epoch = 0 and o.gathered is not null"],
    "select j.id, j.payload, j.created_at, o.gathered, l.kind from jobs j join lanes l on l.lane = j.lane
         join job_options o on o.job = j.id
     where j.id = $1 and j.state = 'scheduled' and j.epoch = 0 and o.gathered is not null
     for no key update of j skip locked",
);
const CHANGE: Sql = Sql::both(&["update jobs set payload = $2, run_at = $3, due_at = $3, version = version + 1,
         updated_at = $4
     where id = $1"]);
const COUNT: Sql = Sql::both(&["update job_options set gathered = $2 where job = $1"]);
const TAKE_OVER: Sql = Sql::both(&["update unique_keys set job = $4, until = null
     where tenant = $1 and queue = $2 and key = $3"]);

impl Gather {
    /// The payload of the first request.
    pub(super) fn first_payload(self, payload: &str) -> Option<String> {
        match self {
            Self::Debounce { .. } => None,
            Self::Batch { .. } => Some(format!("[{payload}]")),
        }
    }

    /// When a job with one payload runs.
    pub(super) fn first_run_at(self, now: Time) -> Time {
        match self {
            Self::Debounce { delay_s, .. } => now.plus_s(delay_s),
            Self::Batch { max: 1, .. } => now,
            Self::Batch { within_s, .. } => now.plus_s(within_s),
        }
    }

    /// Adds a payload to the job. Returns the new payload and when it runs, or `None` if the job takes nothing more.
    fn add(self, job: &mut GatheringJob, payload: &str, now: Time) -> Option<Time> {
        match self {
            Self::Debounce { delay_s, max_s } => {
                let latest = max_s.map_or(Time::NEVER, |max_s| job.created_at.plus_s(max_s));
                job.payload = payload.to_owned();
                job.gathered += 1;
                Some(now.plus_s(delay_s).min(latest).max(now))
            }
            Self::Batch { max, within_s } => {
                if job.gathered >= max || job.payload.len() + payload.len() + 1 > PAYLOAD_BYTES {
                    return None;
                }
                // The stored payload is an array, so its last character is the bracket.
                job.payload.pop();
                job.payload.push(',');
                job.payload.push_str(payload);
                job.payload.push(']');
                job.gathered += 1;
                Some(if job.gathered >= max { now } else { job.created_at.plus_s(within_s).max(now) })
            }
        }
    }
}

/// Jobs of this commit that gather, by id.
pub(super) type GatheringJobs = HashMap<JobId, GatheringJob>;

impl GatheringJob {
    /// A job of this commit that gathers.
    pub(super) fn of(entry: &PendingJob<'_>, now: Time) -> Self {
        Self { payload: entry.payload().to_owned(), gathered: 1, created_at: now }
    }
}

/// The result of an enqueue with a taken key.
pub(super) enum Gathered {
    /// A job of an earlier commit has the payload.
    Stored(Accepted),
    /// The job of this commit has it: its new payload and run time.
    Pending(PendingChange),
    /// The job takes nothing more: the new job has the key now.
    TakenOver,
}

/// Adds the payload of an enqueue to the job `owner`, which has its key, or gives the key to the new job.
pub(super) async fn gather(
    tx: &mut Tx<'_>,
    gather: Gather,
    (entry, key): (&PendingJob<'_>, &str),
    owner: JobId,
    pending: &mut GatheringJobs,
) -> Result<Gathered, StoreError> {
    let now = tx.now();
    if let Some(job) = pending.get_mut(&owner) {
        if let Some(run_at) = gather.add(job, &entry.job.payload, now) {
            let (payload, payloads) = (job.payload.clone(), job.gathered);
            return Ok(Gathered::Pending(PendingChange { payload, payloads, run_at }));
        }
    } else if let Some(row) = tx.query_opt(&OWNER, &[Param::from(owner)]).await? {
        let (kind, created_at) = (row.text("kind")?, row.time("created_at")?);
        let mut job = GatheringJob { payload: row.text("payload")?, gathered: row.int("gathered")?, created_at };
        if kind == entry.job.kind.as_str()
            && let Some(run_at) = gather.add(&mut job, &entry.job.payload, now)
        {
            let params = [Param::from(owner), Param::Json(&job.payload), Param::Time(run_at), Param::Time(now)];
            tx.execute(&CHANGE, &params).await?;
            tx.execute(&COUNT, &[Param::from(owner), Param::Int(job.gathered)]).await?;
            let id = owner;
            let state = JobState::Scheduled;
            return Ok(Gathered::Stored(Accepted {
                id,
                state,
                run_at,
                created_at,
                existing: true,
                ..entry.accepted(now)
            }));
        }
    }
    let (tenant, queue) = (Param::Int(entry.tenant.0), Param::Text(entry.job.queue.as_str()));
    tx.execute(&TAKE_OVER, &[tenant, queue, Param::Text(key), Param::from(entry.id)]).await?;
    Ok(Gathered::TakenOver)
}
