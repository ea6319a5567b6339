//! Idempotency keys and unique keys: a request whose key is taken gets the job that has it.

use std::collections::HashMap;

use domain::limits::IDEMPOTENCY_RETENTION_S;
use domain::{JobId, JobState, Name, TenantId, Time};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::gather::{Gathered, GatheringJob, GatheringJobs, gather};
use super::{Accepted, EnqueueReply, EnqueueRequest, Idempotency, PendingJob, Unique};
use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// The stored part of a reply, to repeat it.
#[derive(Serialize, Deserialize)]
struct StoredReply {
    id: Uuid,
    state: String,
    queue: String,
    kind: String,
    run_at: i64,
    created_at: i64,
}

impl StoredReply {
    fn of(job: &Accepted) -> Self {
        Self {
            id: job.id.uuid(),
            state: job.state.to_string(),
            queue: job.queue.to_string(),
            kind: job.kind.to_string(),
            run_at: job.run_at.micros(),
            created_at: job.created_at.micros(),
        }
    }

    fn repeat_reply(self, tenant: TenantId) -> Accepted {
        Accepted {
            id: JobId::new(self.id),
            tenant,
            state: JobState::parse(&self.state).unwrap_or(JobState::Queued),
            queue: Name::stored(&self.queue),
            kind: Name::stored(&self.kind),
            run_at: Time::from_micros(self.run_at),
            created_at: Time::from_micros(self.created_at),
            existing: true,
        }
    }
}

// A key older than a day is free. PostgreSQL waits here for a transaction that takes the same key now.
const TAKE_KEY: Sql = Sql::new(
    &["insert into idempotency (tenant, key, body_hash, jobs, created_at) values ($1, $2, $3, $4, $5)
       on conflict (tenant, key) do update
           set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
           where idempotency.created_at <= $6
       returning key"],
    "insert into idempotency (tenant, key, body_hash, jobs, created_at) values ($1, $2, $3, $4, $5)
     on conflict (tenant, key) do update
         set body_hash = excluded.body_hash, jobs = excluded.jobs, created_at = excluded.created_at
         where idempotency.created_at <= $6
     returning key",
);
const USED_KEY: Sql = Sql::both(&["select body_hash, jobs from idempotency
     where tenant = $1 and key = $2 and created_at > $3"]);
const REMEMBER: Sql = Sql::both(&["update idempotency set jobs = $3 where tenant = $1 and key = $2"]);

/// Requests whose idempotency key was used before.
pub(super) struct UsedKeys {
    /// Per request, the reply to its key from an earlier commit.
    pub(super) replies: Vec<Option<EnqueueReply>>,
    /// Requests that repeat another request of this batch, with its index: its jobs are not known yet.
    pub(super) repeats: HashMap<usize, usize>,
}

/// Takes the idempotency keys. Returns the requests whose keys were used in an earlier commit or in this batch.
pub(super) async fn answer_used(
    tx: &mut Tx<'_>,
    requests: &[EnqueueRequest],
    entries: &[PendingJob<'_>],
) -> Result<UsedKeys, StoreError> {
    let mut replies: Vec<Option<EnqueueReply>> = requests.iter().map(|_| None).collect();
    let mut repeats = HashMap::new();
    let mut taken_here: HashMap<(TenantId, &str), (usize, &Idempotency)> = HashMap::new();
    // In key order, so that two nodes with the same keys cannot deadlock.
    let mut keyed: Vec<(usize, TenantId, &Idempotency)> = requests
        .iter()
        .enumerate()
        .filter_map(|(number, request)| request.idempotency.as_ref().map(|key| (number, request.tenant, key)))
        .collect();
    keyed.sort_by(|a, b| (a.1, &a.2.key, a.0).cmp(&(b.1, &b.2.key, b.0)));
    let now = tx.now();
    for (number, tenant, idempotency) in keyed {
        if let Some((first, of_first)) = taken_here.get(&(tenant, idempotency.key.as_str())) {
            if of_first.body_hash == idempotency.body_hash {
                repeats.insert(number, *first);
            } else {
                replies[number] = Some(EnqueueReply::KeyReused);
            }
            continue;
        }
        let jobs: Vec<StoredReply> = entries
            .iter()
            .filter(|entry| entry.request == number)
            .map(|entry| StoredReply::of(&entry.accepted(now)))
            .collect();
        let jobs = to_json(&jobs);
        let params = [
            Param::Int(tenant.0),
            Param::Text(&idempotency.key),
            Param::Blob(&idempotency.body_hash),
            Param::Json(&jobs),
            Param::Time(now),
            Param::Time(now.plus_s(-IDEMPOTENCY_RETENTION_S)),
        ];
        if tx.query_opt(&TAKE_KEY, &params).await?.is_some() {
            taken_here.insert((tenant, idempotency.key.as_str()), (number, idempotency));
            continue;
        }
        let reply = earlier_reply(tx, tenant, idempotency).await?;
        replies[number] =
            Some(reply.ok_or_else(|| StoreError::unavailable("an idempotency key was pruned in between"))?);
    }
    Ok(UsedKeys { replies, repeats })
}

/// The reply to a request that repeats one which got these jobs.
pub(super) fn repeat_reply(jobs: &[Accepted]) -> EnqueueReply {
    EnqueueReply::Accepted(jobs.iter().map(|job| Accepted { existing: true, ..job.clone() }).collect())
}

/// The reply to this key within the last day.
async fn earlier_reply(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    idempotency: &Idempotency,
) -> Result<Option<EnqueueReply>, StoreError> {
    let since = tx.now().plus_s(-IDEMPOTENCY_RETENTION_S);
    let params = [Param::Int(tenant.0), Param::Text(&idempotency.key), Param::Time(since)];
    let Some(row) = tx.query_opt(&USED_KEY, &params).await? else { return Ok(None) };
    if row.opt_blob("body_hash")?.as_deref() != Some(&idempotency.body_hash[..]) {
        return Ok(Some(EnqueueReply::KeyReused));
    }
    let jobs: Vec<StoredReply> = from_json(&row.text("jobs")?)?;
    Ok(Some(EnqueueReply::Accepted(jobs.into_iter().map(|job| job.repeat_reply(tenant)).collect())))
}

impl Store {
    /// Returns the reply to this key within the last day, without enqueueing.
    pub async fn enqueued_before(
        &self,
        tenant: TenantId,
        idempotency: Idempotency,
    ) -> Result<Option<EnqueueReply>, StoreError> {
        self.read(GivenBefore { tenant, idempotency }).await
    }
}

struct GivenBefore {
    tenant: TenantId,
    idempotency: Idempotency,
}

impl Operation for GivenBefore {
    type Output = Option<EnqueueReply>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<EnqueueReply>, StoreError> {
        earlier_reply(tx, self.tenant, &self.idempotency).await
    }
}

/// Stores the job that a request with an idempotency key got through a unique key.
pub(super) async fn store_replies(
    tx: &mut Tx<'_>,
    requests: &[EnqueueRequest],
    accepted: &HashMap<usize, Vec<Accepted>>,
) -> Result<(), StoreError> {
    for (number, jobs) in accepted {
        let request = &requests[*number];
        let Some(idempotency) = &request.idempotency else { continue };
        if jobs.iter().any(|job| job.existing) {
            let jobs = to_json(&jobs.iter().map(StoredReply::of).collect::<Vec<_>>());
            let params = [Param::Int(request.tenant.0), Param::Text(&idempotency.key), Param::Json(&jobs)];
            tx.execute(&REMEMBER, &params).await?;
        }
    }
    Ok(())
}

const TAKE_UNIQUE: Sql = Sql::both(&["insert into unique_keys (tenant, queue, key, job, until)
     values ($1, $2, $3, $4, $5)
     on conflict (tenant, queue, key) do update set job = excluded.job, until = excluded.until
         where unique_keys.until <= $6
     returning job"]);
const UNIQUE_JOB: Sql = Sql::both(&[
    "select u.job, coalesce(j.state, e.state) as state, coalesce(j.run_at, e.run_at, u.until, $4) as run_at,
         coalesce(j.created_at, e.created_at, u.until, $4) as created_at,
         coalesce(l.kind, o.kind) as kind
     from unique_keys u left join jobs j on j.id = u.job left join ended e on e.id = u.job
         left join lanes l on l.lane = j.lane left join lanes o on o.lane = e.lane
     where u.tenant = $1 and u.queue = $2 and u.key = $3",
]);

/// The unique keys of a commit.
#[derive(Default)]
pub(super) struct UniqueKeys {
    /// For jobs with a taken key, the job that has it.
    pub(super) taken: HashMap<JobId, Accepted>,
    /// Jobs of this commit that have the payloads of others of this commit.
    pub(super) gathered: HashMap<JobId, PendingChange>,
}

/// What later requests of a commit change in one of its jobs.
pub(super) struct PendingChange {
    pub(super) payload: String,
    pub(super) payloads: i64,
    pub(super) run_at: Time,
}

/// Takes the unique keys.
pub(super) async fn take_unique(tx: &mut Tx<'_>, entries: &[PendingJob<'_>]) -> Result<UniqueKeys, StoreError> {
    let mut keyed: Vec<(&PendingJob<'_>, &Unique)> =
        entries.iter().filter_map(|entry| entry.job.unique().map(|unique| (entry, unique))).collect();
    keyed.sort_by(|(a, x), (b, y)| (a.tenant, &a.job.queue, &x.key, a.id).cmp(&(b.tenant, &b.job.queue, &y.key, b.id)));
    let now = tx.now();
    let mut keys = UniqueKeys::default();
    let mut gathering = GatheringJobs::new();
    let mut made_here: HashMap<JobId, Accepted> = HashMap::new();
    for (entry, unique) in keyed {
        let params = [
            Param::Int(entry.tenant.0),
            Param::Text(entry.job.queue.as_str()),
            Param::Text(&unique.key),
            Param::from(entry.id),
            Param::time(unique.for_s.map(|seconds| now.plus_s(seconds))),
            Param::Time(now),
        ];
        if tx.query_opt(&TAKE_UNIQUE, &params).await?.is_some() {
            made_here.insert(entry.id, entry.accepted(now));
            if entry.job.gather().is_some() {
                gathering.insert(entry.id, GatheringJob::of(entry, now));
            }
            continue;
        }
        let find = [params[0], params[1], params[2], Param::Time(now)];
        let row = tx.query_opt(&UNIQUE_JOB, &find).await?;
        let row = row.ok_or_else(|| StoreError::unavailable("a unique key was freed in between"))?;
        let owner = row.job("job")?;
        if let Some(by) = entry.job.gather() {
            match gather(tx, by, (entry, &unique.key), owner, &mut gathering).await? {
                Gathered::Stored(owner) => drop(keys.taken.insert(entry.id, owner)),
                Gathered::Pending(change) => {
                    keys.gathered.insert(owner, change);
                    let accepted = made_here.get(&owner).cloned().expect("a job of this commit");
                    keys.taken.insert(entry.id, Accepted { existing: true, ..accepted });
                }
                Gathered::TakenOver => {
                    made_here.insert(entry.id, entry.accepted(now));
                    gathering.insert(entry.id, GatheringJob::of(entry, now));
                }
            }
            continue;
        }
        let owner = made_here.get(&owner).cloned();
        let owner = match owner {
            Some(owner) => owner,
            None => existing(&row, entry)?,
        };
        keys.taken.insert(entry.id, Accepted { existing: true, ..owner });
    }
    Ok(keys)
}

fn existing(row: &Row, entry: &PendingJob<'_>) -> Result<Accepted, StoreError> {
    let state = row.opt_text("state")?.and_then(|state| JobState::parse(&state));
    Ok(Accepted {
        id: row.job("job")?,
        tenant: entry.tenant,
        // A key can outlive the pruned job that took it.
        state: state.unwrap_or(JobState::Succeeded),
        queue: entry.job.queue.clone(),
        kind: row.opt_text("kind")?.map_or_else(|| entry.job.kind.clone(), |kind| Name::stored(&kind)),
        run_at: row.time("run_at")?,
        created_at: row.time("created_at")?,
        existing: true,
    })
}
