//! Reads everything that the signals of one page of jobs are derived from, in a constant number of statements. The
//! result for each job equals that of `read` for a single job.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use domain::limits::PREVIOUS_JOBS;
use domain::{JobId, TenantId};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::blocked_reason;
use crate::queue::get::StoredJob;
use crate::signals::read::{PreviousJob, SignalSource};
use crate::signals::refine::StoredSignal;
use crate::store::Store;
use crate::workflows::journal::JournalHead;

impl Store {
    /// Returns the sources of these jobs, in the same order.
    pub async fn signal_sources(
        &self,
        tenant: TenantId,
        jobs: Vec<(StoredJob, Option<StoredSignal>)>,
    ) -> Result<Vec<SignalSource>, StoreError> {
        self.read(ReadSources { tenant, jobs }).await
    }
}

struct ReadSources {
    tenant: TenantId,
    jobs: Vec<(StoredJob, Option<StoredSignal>)>,
}

impl Operation for ReadSources {
    type Output = Vec<SignalSource>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SignalSource>, StoreError> {
        let (mut jobs, reported): (Vec<StoredJob>, Vec<Option<StoredSignal>>) = self.jobs.iter().cloned().unzip();
        let backoffs = blocked_reason::find_all(tx, self.tenant, &mut jobs).await?;
        let mut previous = previous(tx, self.tenant, &jobs).await?;
        let logs = logs(tx, &jobs).await?;
        let mut warnings = warnings(tx, &jobs).await?;
        let sources = jobs.into_iter().zip(reported).zip(backoffs).map(|((job, reported), backoff)| SignalSource {
            reported,
            previous: previous.remove(&job.id).unwrap_or_default(),
            previous_by: previous_by(&job),
            has_log: logs.contains(&job.id),
            warnings: warnings.remove(&job.id).unwrap_or_default(),
            backoff,
            job,
        });
        Ok(sources.collect())
    }
}

const JOURNALS: Sql = Sql::new(
    &["select job, entries, resolved, bytes, drift from journals where job = $1"],
    "select job, entries, resolved, bytes, drift from journals where job = any($1::uuid[])",
);

/// Returns the warnings about the jobs' journals.
async fn warnings(tx: &mut Tx<'_>, jobs: &[StoredJob]) -> Result<HashMap<JobId, Vec<String>>, StoreError> {
    let rows = tx.query_each(&JOURNALS, &[Column::jobs(jobs.iter().map(|job| job.id))], &[]).await?;
    rows.iter().map(|row| Ok((row.job("job")?, JournalHead::read(row)?.warnings()))).collect()
}

const SUBJECT: &str = "subject";
const KEY: &str = "key";
const PARENT: &str = "parent";

/// Returns what previous jobs have in common with this job.
fn previous_by(job: &StoredJob) -> Option<&'static str> {
    match (&job.subject, &job.unique_key, job.parent) {
        (Some(_), ..) => Some(SUBJECT),
        (None, Some(_), _) => Some(KEY),
        (None, None, Some(_)) => Some(PARENT),
        (None, None, None) => None,
    }
}

/// Returns the jobs whose previous jobs are found by `by`.
fn jobs_by<'a>(jobs: &'a [StoredJob], by: &str) -> Vec<&'a StoredJob> {
    jobs.iter().filter(|job| previous_by(job) == Some(by)).collect()
}

const BY_SUBJECT: Sql = Sql::new(
    &["select $1 as job, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
       from (select id, lane, state, finished_at, error_code, phase, attempt from ended
             where tenant = $4 and subject = $2 and id < $1 order by id desc limit 50) e
       join lanes l on l.lane = e.lane where l.kind = $3 order by e.id desc limit $5"],
    "select n.job, p.* from unnest($1::uuid[], $2::text[], $3::text[]) as n(job, subject, kind)
     cross join lateral (select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
         from (select id, lane, state, finished_at, error_code, phase, attempt from ended
               where tenant = $4 and subject = n.subject and id < n.job order by id desc limit 50) e
         join lanes l on l.lane = e.lane where l.kind = n.kind order by e.id desc limit $5) p",
);
const BY_KEY: Sql = Sql::new(
    &["select $1 as job, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
       from (select id, lane, state, finished_at, error_code, phase, attempt from ended
             where tenant = $4 and unique_key = $2 and id < $1 order by id desc limit 50) e
       join lanes l on l.lane = e.lane where l.kind = $3 order by e.id desc limit $5"],
    "select n.job, p.* from unnest($1::uuid[], $2::text[], $3::text[]) as n(job, unique_key, kind)
     cross join lateral (select e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
         from (select id, lane, state, finished_at, error_code, phase, attempt from ended
               where tenant = $4 and unique_key = n.unique_key and id < n.job order by id desc limit 50) e
         join lanes l on l.lane = e.lane where l.kind = n.kind order by e.id desc limit $5) p",
);
const BY_PARENT: Sql = Sql::new(
    &["select $1 as job, id, state, finished_at, error_code, phase, attempt from ended where tenant = $3 and id = $2"],
    "select n.job, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from unnest($1::uuid[], $2::uuid[]) as n(job, parent) join ended e on e.tenant = $3 and e.id = n.parent",
);

/// Returns the previous jobs of each job, newest first.
async fn previous(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[StoredJob],
) -> Result<HashMap<JobId, Vec<PreviousJob>>, StoreError> {
    let (tenant, limit) = (Param::Int(tenant.0), Param::Int(PREVIOUS_JOBS as i64));
    let mut rows = Vec::new();
    for (sql, by) in [(&BY_SUBJECT, SUBJECT), (&BY_KEY, KEY)] {
        let selected = jobs_by(jobs, by);
        let keys = selected.iter().filter_map(|job| match by {
            SUBJECT => job.subject.as_deref(),
            _ => job.unique_key.as_deref(),
        });
        let columns = [
            Column::jobs(selected.iter().map(|job| job.id)),
            Column::texts(keys),
            Column::texts(selected.iter().map(|job| job.lane.kind.as_str())),
        ];
        rows.extend(tx.query_each(sql, &columns, &[tenant, limit]).await?);
    }
    let retries = jobs_by(jobs, PARENT);
    let parents = retries.iter().filter_map(|job| job.parent);
    let columns = [Column::jobs(retries.iter().map(|job| job.id)), Column::jobs(parents)];
    rows.extend(tx.query_each(&BY_PARENT, &columns, &[tenant]).await?);
    let mut previous: HashMap<JobId, Vec<PreviousJob>> = HashMap::new();
    for row in &rows {
        previous.entry(row.job("job")?).or_default().push(PreviousJob::read(row)?);
    }
    previous.values_mut().for_each(|all| all.sort_by_key(|one| Reverse(one.id)));
    Ok(previous)
}

const LOGS: Sql = Sql::new(
    &["select job from artifacts where job = $1 and name = 'log'"],
    "select job from artifacts where job = any($1::uuid[]) and name = 'log'",
);

/// Returns the jobs that have a log. Only an attempt writes one.
async fn logs(tx: &mut Tx<'_>, jobs: &[StoredJob]) -> Result<HashSet<JobId>, StoreError> {
    let attempted = jobs.iter().filter(|job| job.attempt > 0).map(|job| job.id);
    let rows = tx.query_each(&LOGS, &[Column::jobs(attempted)], &[]).await?;
    rows.iter().map(|row| row.job("job")).collect()
}
