//! Groups failed jobs and learns signatures from the groups.
//!
//! The transaction that ends a failed job puts its id into `failure_feed`. This operation takes a batch of them, counts
//! each into its group and into the best matching signature. A group without a signature proposes one after
//! `SIGNATURE_AFTER_SAMPLES` failures. Called by a task on every node.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use domain::limits::{FAILURE_BATCH_ROWS, SIGNATURE_AFTER_SAMPLES};
use domain::signals::failure::message_pattern;
use domain::signals::signature::{FailureCase, SignaturePattern, confidence, exactly, portable};
use domain::{TenantId, Time};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use crate::db::clock::new_uuid;
use crate::db::codec::storable_error;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::{StoredJob, find};
use crate::signals::signatures::index::{SignatureIndex, read_index};
use crate::signals::signatures::pattern_hash;
use crate::store::Store;

impl Store {
    /// Groups one batch of failures. Returns their number; the caller repeats until it is 0.
    pub async fn learn_failures(&self) -> Result<u64, StoreError> {
        if !self.read(HasUngroupedFailures).await? {
            return Ok(0);
        }
        let grouped = self.write(GroupFailures).await?;
        self.signature_cache().invalidate_all();
        Ok(grouped)
    }
}

/// Failures are rare, so this read usually avoids a write transaction.
struct HasUngroupedFailures;

const HAS_ANY: Sql = Sql::both(&["select 1 from failure_feed limit 1"]);

impl Operation for HasUngroupedFailures {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.query_opt(&HAS_ANY, &[]).await?.is_some())
    }
}

struct GroupFailures;

const TAKE_BATCH: Sql = Sql::new(
    &["delete from failure_feed where job in (select job from failure_feed order by job limit $1)
       returning job, tenant"],
    "delete from failure_feed where job in (
         select job from failure_feed order by job limit $1 for update skip locked) returning job, tenant",
);
const GROUP: Sql = Sql::both(&["insert into failure_groups
         (id, tenant, kind, phase, error_code, message_pattern, example, count, first_seen_at, last_seen_at, last_job)
     values ($1, $2, $3, $4, $5, $6, $7, 1, $8, $8, $9)
     on conflict (id) do update set count = failure_groups.count + 1,
         first_seen_at = case when excluded.first_seen_at < failure_groups.first_seen_at
             then excluded.first_seen_at else failure_groups.first_seen_at end,
         last_job = case when excluded.last_seen_at >= failure_groups.last_seen_at
             then excluded.last_job else failure_groups.last_job end,
         example = case when excluded.last_seen_at >= failure_groups.last_seen_at
             then excluded.example else failure_groups.example end,
         last_seen_at = case when excluded.last_seen_at > failure_groups.last_seen_at
             then excluded.last_seen_at else failure_groups.last_seen_at end
     returning count, signature"]);
const SUBJECT: Sql = Sql::both(&["insert into failure_subjects (group_id, subject, tenant, count, last_seen_at)
     values ($1, $2, $3, 1, $4)
     on conflict (group_id, subject) do update set count = failure_subjects.count + 1,
         last_seen_at = excluded.last_seen_at"]);
const HOUR: Sql = Sql::both(&["insert into failure_hours (group_id, hour_at, count) values ($1, $2, 1)
     on conflict (group_id, hour_at) do update set count = failure_hours.count + 1"]);
const MEMBER: Sql = Sql::both(&["insert into failure_jobs (group_id, job, tenant) values ($1, $2, $3)
     on conflict do nothing"]);
const UNREPAIRED: Sql = Sql::both(&["insert into unrepaired (tenant, kind, key, group_id, job, failed_at, checked_at)
     values ($1, $2, $3, $4, $5, $6, $6) on conflict do nothing"]);
const SUBJECTS: Sql = Sql::both(&["select subject from failure_subjects where group_id = $1 limit 2"]);
const PROPOSE: Sql = Sql::both(&["insert into signatures
         (id, tenant, hash, phase, error_code, kind, subject_pattern, subject_regex, confidence, version, samples,
          last_match_at, enabled, muted, status, created_by, created_at, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, 1, $10, $11, $12, $13, 'proposed', 'windlass', $11, $11)
     on conflict (tenant, hash) do nothing"]);
const SAME_HASH: Sql = Sql::both(&["select id from signatures where tenant = $1 and hash = $2"]);
const LINK: Sql = Sql::both(&["update failure_groups set signature = $2 where id = $1"]);
// A recurrence is a failure after a user has marked the cause as fixed.
const MATCHED: Sql = Sql::both(&["update signatures set samples = samples + 1, last_match_at = $2,
         recurred_at = case when fixed_at is not null and $2 > fixed_at then coalesce(recurred_at, $2)
             else recurred_at end,
         confidence = case when status = 'proposed' then $3 else confidence end, updated_at = $2
     where id = $1"]);

impl Operation for GroupFailures {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let rows = tx.query(&TAKE_BATCH, &[Param::Int(FAILURE_BATCH_ROWS as i64)]).await?;
        let mut failures = Vec::new();
        for row in &rows {
            let (job, tenant) = (row.job("job")?, TenantId(row.int("tenant")?));
            // A job that was pruned in the meantime is skipped.
            if let Some(job) = find(tx, tenant, job).await? {
                failures.push(FailedJob::of(tenant, job));
            }
        }
        // Groups are locked in the same order on every node, to avoid deadlocks.
        failures.sort_by_key(|failure| (failure.group, failure.at, failure.job.id));
        let mut indexes: BTreeMap<TenantId, SignatureIndex> = BTreeMap::new();
        for failure in &failures {
            let index = match indexes.entry(failure.tenant) {
                Entry::Occupied(loaded) => loaded.into_mut(),
                Entry::Vacant(missing) => missing.insert(read_index(tx, failure.tenant).await?),
            };
            if failure.count(tx, index).await? {
                *index = read_index(tx, failure.tenant).await?;
            }
        }
        Ok(rows.len() as u64)
    }
}

struct FailedJob {
    tenant: TenantId,
    job: StoredJob,
    group: Uuid,
    at: Time,
    code: String,
    phase: String,
    pattern: String,
    /// The original error message.
    example: String,
    subject: Option<String>,
}

impl FailedJob {
    fn of(tenant: TenantId, job: StoredJob) -> Self {
        // Rows written by older versions may contain a NUL in the message, which PostgreSQL rejects in text. Such a row
        // must not block the grouping of all others.
        let (code, example) = match job.error.as_ref().map(storable_error) {
            Some(error) => (error.code, error.message),
            None => ("unknown".to_owned(), String::new()),
        };
        let pattern = message_pattern(&example);
        let phase = job.phase.clone().unwrap_or_default();
        let group = group_id(tenant, job.lane.kind.as_str(), &phase, &code, &pattern);
        let subject = subject_of(&job);
        let at = job.finished_at.unwrap_or(job.updated_at);
        Self { tenant, group, at, code, phase, pattern, example, subject, job }
    }

    /// Counts the failure into its group and signature. Returns true if a signature was proposed.
    async fn count(&self, tx: &mut Tx<'_>, index: &SignatureIndex) -> Result<bool, StoreError> {
        let (group, tenant, at) = (Param::Uuid(self.group), Param::Int(self.tenant.0), Param::Time(self.at));
        let kind = self.job.lane.kind.as_str();
        let params = [
            group,
            tenant,
            Param::Text(kind),
            Param::Text(&self.phase),
            Param::Text(&self.code),
            Param::Text(&self.pattern),
            Param::Text(domain::signals::signature::bounded(&self.example)),
            at,
            Param::from(self.job.id),
        ];
        let row = tx
            .query_opt(&GROUP, &params)
            .await?
            .ok_or_else(|| StoreError::unexpected("the failure group was not returned"))?;
        let (samples, linked) = (row.int("count")? as u64, row.opt_uuid("signature")?);
        tx.execute(&HOUR, &[group, Param::Time(hour(self.at))]).await?;
        tx.execute(&MEMBER, &[group, Param::from(self.job.id), tenant]).await?;
        if let Some(subject) = &self.subject {
            tx.execute(&SUBJECT, &[group, Param::Text(subject), tenant, at]).await?;
        }
        if let Some(key) = repair_key(&self.job) {
            let params = [tenant, Param::Text(kind), Param::Text(&key), group, Param::from(self.job.id), at];
            tx.execute(&UNREPAIRED, &params).await?;
        }
        let phase = Some(self.phase.as_str()).filter(|phase| !phase.is_empty());
        let case =
            FailureCase { phase, error_code: Some(&self.code), kind: Some(kind), subject: self.subject.as_deref() };
        let matched = index.best(case, self.at);
        if let Some(signature) = matched {
            let confidence = confidence(signature.samples + 1, 0.0);
            tx.execute(&MATCHED, &[Param::Uuid(signature.id), at, Param::Real(confidence)]).await?;
            if linked != Some(signature.id) {
                tx.execute(&LINK, &[group, Param::Uuid(signature.id)]).await?;
            }
        }
        if matched.is_none() && linked.is_none() && samples >= SIGNATURE_AFTER_SAMPLES {
            self.propose(tx, samples).await?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Proposes a signature with what the group has in common: kind, phase, error code and, if all failures were on one
    /// subject, that subject.
    async fn propose(&self, tx: &mut Tx<'_>, samples: u64) -> Result<(), StoreError> {
        let group = Param::Uuid(self.group);
        let subjects = tx.query(&SUBJECTS, &[group]).await?;
        let subject_pattern = match (subjects.as_slice(), &self.subject) {
            ([only], Some(_)) => Some(exactly(&only.text("subject")?)).filter(|pattern| portable(pattern).is_ok()),
            _ => None,
        };
        let pattern = SignaturePattern {
            phase: Some(self.phase.clone()).filter(|phase| !phase.is_empty()),
            error_code: Some(self.code.clone()),
            kind: Some(self.job.lane.kind.to_string()),
            subject_pattern,
        };
        let regex = pattern.subject_pattern.as_deref().and_then(|text| portable(text).ok());
        let hash = pattern_hash(&pattern);
        let params = [
            Param::Uuid(new_uuid(tx.now())),
            Param::Int(self.tenant.0),
            Param::Text(&hash),
            Param::text(pattern.phase.as_deref()),
            Param::text(pattern.error_code.as_deref()),
            Param::text(pattern.kind.as_deref()),
            Param::text(pattern.subject_pattern.as_deref()),
            Param::text(regex.as_deref()),
            Param::Real(confidence(samples, 0.0)),
            Param::Int(samples as i64),
            Param::Time(self.at),
            Param::Bool(true),
            Param::Bool(false),
        ];
        tx.execute(&PROPOSE, &params).await?;
        if let Some(row) = tx.query_opt(&SAME_HASH, &[params[1], params[2]]).await? {
            tx.execute(&LINK, &[group, Param::Uuid(row.uuid("id")?)]).await?;
        }
        Ok(())
    }
}

/// Derives the id of a group from its key, so that every node computes the same id.
fn group_id(tenant: TenantId, kind: &str, phase: &str, code: &str, pattern: &str) -> Uuid {
    let mut hash = Sha256::new();
    hash.update(tenant.0.to_be_bytes());
    for part in [kind, phase, code, pattern] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    let digest = hash.finalize();
    let bytes: [u8; 16] = digest[..16].try_into().expect("sixteen bytes");
    uuid::Builder::from_custom_bytes(bytes).into_uuid()
}

fn hour(at: Time) -> Time {
    const HOUR_MICROS: i64 = 3_600_000_000;
    Time::from_micros(at.micros().div_euclid(HOUR_MICROS) * HOUR_MICROS)
}

/// Returns what the job works on: its subject or, without one, the payload's `image`.
pub(crate) fn subject_of(job: &StoredJob) -> Option<String> {
    if job.subject.is_some() {
        return job.subject.clone();
    }
    #[derive(Deserialize)]
    struct WithImage {
        image: Option<String>,
    }
    let image = serde_json::from_str::<WithImage>(&job.payload).ok()?.image?;
    // PostgreSQL rejects NUL in text, and a text with control characters names no image.
    let image = domain::signals::signature::bounded(&image);
    (!image.is_empty() && !image.chars().any(char::is_control)).then(|| image.to_owned())
}

/// Returns the key by which the next success of the same work is recognized; `None` if the job has neither a subject
/// nor a unique key.
fn repair_key(job: &StoredJob) -> Option<String> {
    match (&job.subject, &job.unique_key) {
        (Some(subject), _) => Some(format!("subject {subject}")),
        (None, Some(key)) => Some(format!("key {key}")),
        (None, None) => None,
    }
}
