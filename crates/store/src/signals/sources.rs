//! All that the signals of a page are told from, in a few statements: each as `read` gives it for its job alone (S1).

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use domain::limits::PREVIOUS_JOBS;
use domain::{JobId, TenantId};

use crate::error::StoreError;
use crate::jobs::get::StoredJob;
use crate::jobs::held_back;
use crate::signals::read::{PreviousJob, SignalSource};
use crate::signals::refine::StoredSignal;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

impl Store {
    /// For the jobs of one page, in its order.
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
        let (mut jobs, said): (Vec<StoredJob>, Vec<Option<StoredSignal>>) = self.jobs.iter().cloned().unzip();
        let backoffs = held_back::find_all(tx, self.tenant, &mut jobs).await?;
        let mut previous = previous(tx, self.tenant, &jobs).await?;
        let logs = logs(tx, &jobs).await?;
        let told = jobs.into_iter().zip(said).zip(backoffs).map(|((job, said), backoff)| SignalSource {
            said,
            previous: previous.remove(&job.id).unwrap_or_default(),
            previous_by: previous_by(&job),
            has_log: logs.contains(&job.id),
            backoff,
            job,
        });
        Ok(told.collect())
    }
}

const SUBJECT: &str = "subject";
const KEY: &str = "key";
const PARENT: &str = "parent";

/// What the jobs before have in common with this one.
fn previous_by(job: &StoredJob) -> Option<&'static str> {
    match (&job.subject, &job.unique_key, job.parent) {
        (Some(_), ..) => Some(SUBJECT),
        (None, Some(_), _) => Some(KEY),
        (None, None, Some(_)) => Some(PARENT),
        (None, None, None) => None,
    }
}

fn alike<'a>(jobs: &'a [StoredJob], by: &str) -> Vec<&'a StoredJob> {
    jobs.iter().filter(|job| previous_by(job) == Some(by)).collect()
}

const BY_SUBJECT: Sql = Sql::new(
    &["select $1, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
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
    &["select $1, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
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
    &["select $1, id, state, finished_at, error_code, phase, attempt from ended where tenant = $3 and id = $2"],
    "select n.job, e.id, e.state, e.finished_at, e.error_code, e.phase, e.attempt
     from unnest($1::uuid[], $2::uuid[]) as n(job, parent) join ended e on e.tenant = $3 and e.id = n.parent",
);

/// By job, those of its like that ended before, newest first.
async fn previous(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[StoredJob],
) -> Result<HashMap<JobId, Vec<PreviousJob>>, StoreError> {
    let (tenant, most) = (Param::Int(tenant.0), Param::Int(PREVIOUS_JOBS as i64));
    let mut rows = Vec::new();
    for (sql, by) in [(&BY_SUBJECT, SUBJECT), (&BY_KEY, KEY)] {
        let alike = alike(jobs, by);
        let words = alike.iter().filter_map(|job| match by {
            SUBJECT => job.subject.as_deref(),
            _ => job.unique_key.as_deref(),
        });
        let columns = [
            Column::jobs(alike.iter().map(|job| job.id)),
            Column::texts(words),
            Column::texts(alike.iter().map(|job| job.lane.kind.as_str())),
        ];
        rows.extend(tx.query_each(sql, &columns, &[tenant, most]).await?);
    }
    let retries = alike(jobs, PARENT);
    let parents = retries.iter().filter_map(|job| job.parent);
    let columns = [Column::jobs(retries.iter().map(|job| job.id)), Column::jobs(parents)];
    rows.extend(tx.query_each(&BY_PARENT, &columns, &[tenant]).await?);
    let mut previous: HashMap<JobId, Vec<PreviousJob>> = HashMap::new();
    for row in &rows {
        previous.entry(row.job(0)?).or_default().push(PreviousJob::at(row, 1)?);
    }
    previous.values_mut().for_each(|all| all.sort_by_key(|one| Reverse(one.id)));
    Ok(previous)
}

const LOGS: Sql = Sql::new(
    &["select job from artifacts where job = $1 and name = 'log'"],
    "select job from artifacts where job = any($1::uuid[]) and name = 'log'",
);

/// Those that have one. A log is written by an attempt.
async fn logs(tx: &mut Tx<'_>, jobs: &[StoredJob]) -> Result<HashSet<JobId>, StoreError> {
    let begun = jobs.iter().filter(|job| job.attempt > 0).map(|job| job.id);
    let rows = tx.query_each(&LOGS, &[Column::jobs(begun)], &[]).await?;
    rows.iter().map(|row| row.job(0)).collect()
}
