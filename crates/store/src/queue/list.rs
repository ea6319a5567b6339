//! Lists jobs by any filter, newest first, one page at a time. The jobs API, the dashboard and the CLI use it.
//!
//! Each of the two steps is bounded whatever the tables hold. `candidates` collects ids through the index that fits
//! the filter. Then batches of ids, newest first, are matched against the whole filter until the page is full. If no
//! index fits the filter, only the newest rows are scanned, and the page is marked `partial` if they were not enough.
//! Payloads and results are read for the page alone. The page ends early if they exceed `PAGE_BYTES`.

mod candidates;

use std::collections::BTreeMap;

use domain::limits::{PAGE_FIRST_SCAN_ROWS, SCAN_ROWS};
use domain::{IdPart, JobId, JobState, TenantId, Time};
use uuid::Uuid;

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::{StoredJob, read};
use crate::store::Store;

use candidates::Candidates;

/// Maximum bytes of payloads and results on one page. A page always holds at least one job.
const PAGE_BYTES: i64 = 16 << 20;

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct JobFilter {
    pub state: Option<JobState>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    pub affinity: Option<String>,
    pub subject: Option<String>,
    pub run: Option<String>,
    pub tag: Option<String>,
    pub since: Option<Time>,
    pub until: Option<Time>,
    /// First digits of the id.
    pub id_prefix: Option<IdPart>,
    /// Last digits of the id. Only the newest jobs are searched.
    pub id_suffix: Option<IdPart>,
    /// Prefix of a kind, tag, unique key or error code, or a substring of a payload.
    pub text: Option<String>,
    /// `text` is not searched in payloads and errors.
    pub names_only: bool,
    /// Created by this principal directly, not by a retry or replay of another principal's job.
    pub principal: Option<String>,
    /// Restricts the list to these queues.
    pub queues: Option<Vec<String>>,
    /// Skips payloads and results: payloads are returned as `null`, results are absent.
    pub without_content: bool,
}

impl JobFilter {
    /// True if `text` matches a field that every reader of the job may see. Always true without `names_only`.
    fn matches_names(&self, job: &StoredJob) -> bool {
        let matches = |text: &String| {
            let code = job.error.as_ref().map_or("", |error| error.code.as_str());
            let key = job.unique_key.as_deref().unwrap_or_default();
            job.lane.kind.as_str().starts_with(text)
                || key.starts_with(text)
                || code.starts_with(text)
                || job.tags.iter().any(|tag| tag.contains(text))
        };
        !self.names_only || self.text.as_ref().is_none_or(matches)
    }

    /// Returns the queues as `,a,b,`: a queue's name cannot contain a comma. An empty list becomes `,,` and matches no
    /// job. An absent list becomes an empty string and matches all.
    fn joined_queues(&self) -> String {
        self.queues.as_ref().map(|queues| format!(",{},", queues.join(","))).unwrap_or_default()
    }
}

#[derive(Clone, Debug)]
pub struct JobPage {
    pub jobs: Vec<StoredJob>,
    /// Cursor of the next page. `None` on the last page.
    pub next: Option<JobId>,
    /// More jobs may match than were scanned.
    pub partial: bool,
}

impl Store {
    pub async fn list_jobs(
        &self,
        tenant: TenantId,
        filter: JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<JobPage, StoreError> {
        self.read(ListJobs { tenant, filter, before, limit }).await
    }
}

struct ListJobs {
    tenant: TenantId,
    filter: JobFilter,
    before: Option<JobId>,
    limit: usize,
}

impl Operation for ListJobs {
    type Output = JobPage;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<JobPage, StoreError> {
        let mut candidates = Candidates::find(tx, self).await?;
        if let Some(suffix) = &self.filter.id_suffix {
            candidates.ids.retain(|id| suffix.ends(*id));
        }
        let mut jobs = self.first_matching(tx, &candidates.ids).await?;
        let mut more = jobs.len() > self.limit;
        jobs.truncate(self.limit);
        let mut oldest = jobs.last().map(|job| job.id);
        if !self.filter.without_content && self.read_contents(tx, &mut jobs).await? {
            (more, oldest) = (true, jobs.last().map(|job| job.id));
        }
        let scanned_to = candidates.scanned_to.map(JobId::new);
        // Between prefix matches that are older than the scanned range, jobs that match only by their payload may be
        // missing.
        let missed = scanned_to.is_some_and(|id| oldest.is_some_and(|oldest| oldest < id));
        let next = match (more, scanned_to) {
            (true, _) => oldest,
            (false, Some(id)) => Some(oldest.map_or(id, |oldest| oldest.min(id))),
            (false, None) => None,
        };
        let partial = candidates.incomplete || missed || (!more && scanned_to.is_some());
        Ok(JobPage { jobs, next, partial })
    }
}

impl ListJobs {
    /// Returns the range of ids: below the first and at or above the second. Ids are UUIDv7, so a time range is an id
    /// range.
    fn range(&self) -> (Uuid, Uuid) {
        let first_of = |time: Time| uuid::Builder::from_unix_timestamp_millis(time.millis().max(0) as u64, &[0; 10]);
        let until = self.filter.until.map_or(Uuid::max(), |until| first_of(until).into_uuid());
        let before = self.before.map_or(Uuid::max(), JobId::uuid);
        let oldest = self.filter.since.map_or(Uuid::nil(), |since| first_of(since).into_uuid());
        match self.filter.id_prefix.as_ref().map(IdPart::range) {
            Some((first, last)) => {
                let end = Uuid::from_u128(last.as_u128().saturating_add(1));
                (until.min(before).min(end), oldest.max(first))
            }
            None => (until.min(before), oldest),
        }
    }

    /// Returns the first `limit + 1` matching jobs. `ids` must be sorted newest first.
    async fn first_matching(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<Vec<StoredJob>, StoreError> {
        let mut found = Vec::new();
        let mut rest = ids;
        let mut batch_rows = PAGE_FIRST_SCAN_ROWS.max(self.limit + 1);
        while found.len() <= self.limit && !rest.is_empty() {
            let (batch, remaining) = rest.split_at(batch_rows.min(rest.len()));
            found.extend(self.matching(tx, batch).await?);
            rest = remaining;
            batch_rows = (batch_rows * 4).min(SCAN_ROWS);
        }
        found.truncate(self.limit + 1);
        Ok(found)
    }

    async fn matching(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<Vec<StoredJob>, StoreError> {
        let filter = &self.filter;
        let or_empty = |text: &'_ Option<String>| -> String { text.clone().unwrap_or_default() };
        let texts = [
            filter.state.map_or("", JobState::as_str).to_owned(),
            or_empty(&filter.queue),
            or_empty(&filter.kind),
            or_empty(&filter.affinity),
            or_empty(&filter.subject),
            or_empty(&filter.run),
            or_empty(&filter.text),
            or_empty(&filter.text.clone().filter(|_| !filter.names_only)),
            or_empty(&filter.principal),
            filter.joined_queues(),
        ];
        let mut params = vec![Param::Int(self.tenant.0)];
        params.extend(texts.iter().map(|text| Param::Text(text)));
        let mut found = BTreeMap::new();
        // Live jobs come first: a job that ends between the two queries is found by the second.
        for sql in [&MATCHING_LIVE, &MATCHING_ENDED] {
            for row in tx.query_each(sql, &[Column::uuids(ids.iter().copied())], &params).await? {
                let job = read(&row)?;
                if filter.matches_names(&job) {
                    found.insert(job.id, job);
                }
            }
        }
        Ok(found.into_values().rev().collect())
    }

    /// Reads payloads and results up to `PAGE_BYTES`. Removes the jobs that do not fit and returns whether it removed
    /// any.
    async fn read_contents(&self, tx: &mut Tx<'_>, jobs: &mut Vec<StoredJob>) -> Result<bool, StoreError> {
        let ids: Vec<Uuid> = jobs.iter().map(|job| job.id.uuid()).collect();
        let params = [Param::Int(self.tenant.0), Param::Int(PAGE_BYTES)];
        let mut contents = BTreeMap::new();
        for row in tx.query_by_ids(&CONTENTS, &ids, &params).await? {
            contents.insert(row.job("id")?, (row.text("payload")?, row.opt_text("result")?));
        }
        let oldest = contents.keys().next().copied();
        let cut = oldest.is_some_and(|oldest| jobs.last().is_some_and(|last| last.id < oldest));
        // A job without content between jobs with content was pruned after it was matched.
        jobs.retain_mut(|job| {
            let Some((payload, result)) = contents.remove(&job.id) else { return false };
            job.payload = payload;
            // A job that ended after it was matched is shown in its earlier state, without the result.
            job.result = result.filter(|_| job.state.is_terminal());
            true
        });
        Ok(cut)
    }
}

// The columns of `get::read`.
const MATCHING_LIVE: Sql = Sql::new(
    &["select v.id, v.tenant, v.queue, v.kind, v.priority, v.affinity, v.guarded, v.state, 'null' as payload, v.run_at,
        v.attempt, v.max_attempts, v.epoch, v.worker, v.started_at, v.finished_at, v.created_at, v.updated_at,
        v.timeout_s, v.retry, v.subject, v.process, v.run, v.unique_key, v.concurrency_key, v.tags, v.phase,
        v.progress, null as result, v.error, v.webhook, v.parent, v.retried_as, v.principal, v.actor, v.triggered_by,
        v.depth, v.version, v.parked, v.lane
       from live_jobs v where v.id = $1 and v.tenant = $2 and ($3 = '' or v.state = $3)
        and ($4 = '' or v.queue = $4) and ($5 = '' or v.kind = $5) and ($6 = '' or v.affinity = $6)
        and ($7 = '' or v.subject = $7) and ($8 = '' or v.run = $8)
        and ($9 = '' or instr(v.kind, $9) = 1 or instr(v.unique_key, $9) = 1 or instr(v.error, $9) > 0
            or instr(v.tags, $9) > 0 or ($10 <> '' and instr(v.payload, $10) > 0))
        and ($11 = '' or (v.principal = $11 and v.parent is null and v.triggered_by is null))
        and ($12 = '' or instr($12, ',' || v.queue || ',') > 0)"],
    "select v.id, v.tenant, v.queue, v.kind, v.priority, v.affinity, v.guarded, v.state, 'null'::json as payload, v.run_at,
        v.attempt, v.max_attempts, v.epoch, v.worker, v.started_at, v.finished_at, v.created_at, v.updated_at,
        v.timeout_s, v.retry, v.subject, v.process, v.run, v.unique_key, v.concurrency_key, v.tags, v.phase,
        v.progress, null::json as result, v.error, v.webhook, v.parent, v.retried_as, v.principal, v.actor, v.triggered_by,
        v.depth, v.version, v.parked, v.lane
     from unnest($1::uuid[]) as wanted (id) join live_jobs v on v.id = wanted.id
     where v.tenant = $2 and ($3::text = '' or v.state = $3)
        and ($4::text = '' or v.queue = $4) and ($5::text = '' or v.kind = $5) and ($6::text = '' or v.affinity = $6)
        and ($7::text = '' or v.subject = $7) and ($8::text = '' or v.run = $8)
        and ($9::text = '' or strpos(v.kind, $9) = 1 or strpos(v.unique_key, $9) = 1 or strpos(v.error::text, $9) > 0
            or strpos(v.tags::text, $9) > 0 or ($10::text <> '' and strpos(v.payload::text, $10) > 0))
        and ($11::text = '' or (v.principal = $11 and v.parent is null and v.triggered_by is null))
        and ($12::text = '' or strpos($12, ',' || v.queue || ',') > 0)",
);

const MATCHING_ENDED: Sql = Sql::new(
    &["select v.id, v.tenant, v.queue, v.kind, v.priority, v.affinity, v.guarded, v.state, 'null' as payload, v.run_at,
        v.attempt, v.max_attempts, v.epoch, v.worker, v.started_at, v.finished_at, v.created_at, v.updated_at,
        v.timeout_s, v.retry, v.subject, v.process, v.run, v.unique_key, v.concurrency_key, v.tags, v.phase,
        v.progress, null as result, v.error, v.webhook, v.parent, v.retried_as, v.principal, v.actor, v.triggered_by,
        v.depth, v.version, v.parked, v.lane
       from ended_jobs v where v.id = $1 and v.tenant = $2 and ($3 = '' or v.state = $3)
        and ($4 = '' or v.queue = $4) and ($5 = '' or v.kind = $5) and ($6 = '' or v.affinity = $6)
        and ($7 = '' or v.subject = $7) and ($8 = '' or v.run = $8)
        and ($9 = '' or instr(v.kind, $9) = 1 or instr(v.unique_key, $9) = 1 or instr(v.error, $9) > 0
            or instr(v.tags, $9) > 0 or ($10 <> '' and instr(v.payload, $10) > 0))
        and ($11 = '' or (v.principal = $11 and v.parent is null and v.triggered_by is null))
        and ($12 = '' or instr($12, ',' || v.queue || ',') > 0)"],
    "select v.id, v.tenant, v.queue, v.kind, v.priority, v.affinity, v.guarded, v.state, 'null'::json as payload, v.run_at,
        v.attempt, v.max_attempts, v.epoch, v.worker, v.started_at, v.finished_at, v.created_at, v.updated_at,
        v.timeout_s, v.retry, v.subject, v.process, v.run, v.unique_key, v.concurrency_key, v.tags, v.phase,
        v.progress, null::json as result, v.error, v.webhook, v.parent, v.retried_as, v.principal, v.actor, v.triggered_by,
        v.depth, v.version, v.parked, v.lane
     from unnest($1::uuid[]) as wanted (id) join ended_jobs v on v.id = wanted.id
     where v.tenant = $2 and ($3::text = '' or v.state = $3)
        and ($4::text = '' or v.queue = $4) and ($5::text = '' or v.kind = $5) and ($6::text = '' or v.affinity = $6)
        and ($7::text = '' or v.subject = $7) and ($8::text = '' or v.run = $8)
        and ($9::text = '' or strpos(v.kind, $9) = 1 or strpos(v.unique_key, $9) = 1 or strpos(v.error::text, $9) > 0
            or strpos(v.tags::text, $9) > 0 or ($10::text <> '' and strpos(v.payload::text, $10) > 0))
        and ($11::text = '' or (v.principal = $11 and v.parent is null and v.triggered_by is null))
        and ($12::text = '' or strpos($12, ',' || v.queue || ',') > 0)",
);

// Selects jobs newest first until the size limit, and at least the newest. The content of other jobs is measured in
// the database and not transferred.
const CONTENTS: Sql = Sql::new(
    &["with sized as materialized (
           select id, sum(bytes) over (order by id desc) as up_to, row_number() over (order by id desc) as place from (
               select j.id, octet_length(j.payload) as bytes from rarray($1) n cross join jobs j
               where j.id = n.value and j.tenant = $2
               union all
               select e.id, octet_length(e.payload) + coalesce(octet_length(e.result), 0)
               from rarray($1) n cross join ended e where e.id = n.value and e.tenant = $2)),
       fitting as materialized (select id from sized where up_to <= $3 or place = 1)
       select j.id, j.payload, null as result from fitting f cross join jobs j where j.id = f.id
       union all
       select e.id, e.payload, e.result from fitting f cross join ended e where e.id = f.id"],
    "with sized as materialized (
         select id, sum(bytes) over (order by id desc) as up_to, row_number() over (order by id desc) as place from (
             select j.id, octet_length(j.payload::text) as bytes from unnest($1::uuid[]) as n(id)
             join jobs j on j.id = n.id where j.tenant = $2
             union all
             select e.id, octet_length(e.payload::text) + coalesce(octet_length(e.result::text), 0)
             from unnest($1::uuid[]) as n(id) join ended e on e.id = n.id where e.tenant = $2) as measured),
     fitting as materialized (select id from sized where up_to <= $3::bigint or place = 1)
     select j.id, j.payload, null::json as result from fitting f join jobs j on j.id = f.id
     union all
     select e.id, e.payload, e.result from fitting f join ended e on e.id = f.id",
);
