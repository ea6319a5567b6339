//! Pages of jobs, newest first, by any filter (Q13).
//!
//! A page is found in two steps, each bounded whatever the tables hold. `candidates` collects ids through the index that
//! the filter has; then the newest of them are read and held against the whole filter until the page is full. Where no
//! index leads to a filter, the newest rows are looked at, and the page says `partial` when they were not enough.

mod candidates;

use std::collections::BTreeMap;

use domain::limits::{PAGE_ROWS_FIRST_LOOK, SCAN_ROWS};
use domain::{JobId, JobState, TenantId, Time};
use uuid::Uuid;

use crate::error::StoreError;
use crate::jobs::get::{StoredJob, read};
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

use candidates::Candidates;

#[derive(Clone, Debug, Default)]
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
    /// Start of a kind, tag, unique key or error code, or anything inside a payload.
    pub text: Option<String>,
    /// `text` is not looked for inside payloads and errors.
    pub names_only: bool,
    /// Made by this principal, and not by retrying or replaying what another made.
    pub principal: Option<String>,
    /// In one of these queues.
    pub queues: Option<Vec<String>>,
}

impl JobFilter {
    /// What the asker may see of what it asks for.
    fn may_show(&self, job: &StoredJob) -> bool {
        let of_its_own =
            |principal: &String| *principal == job.principal && job.parent.is_none() && job.triggered_by.is_none();
        let in_names = |text: &String| {
            let key = job.unique_key.as_deref().unwrap_or_default();
            job.lane.kind.as_str().starts_with(text)
                || key.starts_with(text)
                || job.tags.iter().any(|tag| tag.contains(text))
        };
        self.principal.as_ref().is_none_or(of_its_own)
            && self.queues.as_ref().is_none_or(|queues| queues.iter().any(|queue| queue == job.lane.queue.as_str()))
            && (!self.names_only || self.text.as_ref().is_none_or(in_names))
    }
}

#[derive(Clone, Debug)]
pub struct JobPage {
    pub jobs: Vec<StoredJob>,
    /// Where the next page begins; nothing on the last.
    pub next: Option<JobId>,
    /// More may match than was looked at.
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
        self.read(List { tenant, filter, before, limit }).await
    }
}

struct List {
    tenant: TenantId,
    filter: JobFilter,
    before: Option<JobId>,
    limit: usize,
}

impl Operation for List {
    type Output = JobPage;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<JobPage, StoreError> {
        let candidates = Candidates::find(tx, self).await?;
        let mut jobs = self.first_matching(tx, &candidates.ids).await?;
        let more = jobs.len() > self.limit;
        jobs.truncate(self.limit);
        let oldest = jobs.last().map(|job| job.id);
        let unseen_below = candidates.seen_down_to.map(JobId::new);
        // Rows that only a look inside payloads could find may be missing between prefix matches further down.
        let missed = unseen_below.is_some_and(|id| oldest.is_some_and(|oldest| oldest < id));
        let next = match (more, unseen_below) {
            (true, _) => oldest,
            (false, Some(id)) => Some(oldest.map_or(id, |oldest| oldest.min(id))),
            (false, None) => None,
        };
        let partial = candidates.incomplete || missed || (!more && unseen_below.is_some());
        Ok(JobPage { jobs, next, partial })
    }
}

impl List {
    /// Ids carry their time: the page lies strictly below the first and at or above the second.
    fn range(&self) -> (Uuid, Uuid) {
        let first_of = |time: Time| uuid::Builder::from_unix_timestamp_millis(time.millis().max(0) as u64, &[0; 10]);
        let until = self.filter.until.map_or(Uuid::max(), |until| first_of(until).into_uuid());
        let before = self.before.map_or(Uuid::max(), JobId::uuid);
        let oldest = self.filter.since.map_or(Uuid::nil(), |since| first_of(since).into_uuid());
        (until.min(before), oldest)
    }

    /// A page and one more of the jobs that match, given ids newest first.
    async fn first_matching(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<Vec<StoredJob>, StoreError> {
        let mut found = Vec::new();
        let mut rest = ids;
        let mut look = PAGE_ROWS_FIRST_LOOK.max(self.limit + 1);
        while found.len() <= self.limit && !rest.is_empty() {
            let (now, later) = rest.split_at(look.min(rest.len()));
            found.extend(self.matching(tx, now).await?);
            rest = later;
            look = (look * 4).min(SCAN_ROWS);
        }
        found.truncate(self.limit + 1);
        Ok(found)
    }

    async fn matching(&self, tx: &mut Tx<'_>, ids: &[Uuid]) -> Result<Vec<StoredJob>, StoreError> {
        let filter = &self.filter;
        let or_any = |text: &'_ Option<String>| -> String { text.clone().unwrap_or_default() };
        let texts = [
            filter.state.map_or("", JobState::as_str).to_owned(),
            or_any(&filter.queue),
            or_any(&filter.kind),
            or_any(&filter.affinity),
            or_any(&filter.subject),
            or_any(&filter.run),
            or_any(&filter.text),
        ];
        let mut params = vec![Param::Int(self.tenant.0)];
        params.extend(texts.iter().map(|text| Param::Text(text)));
        let mut found = BTreeMap::new();
        // Live ones first: a job that ends between the two looks is found by the second.
        for sql in [&MATCHING_LIVE, &MATCHING_ENDED] {
            for row in tx.query_each(sql, &[Column::uuids(ids.iter().copied())], &params).await? {
                let job = read(&row)?;
                if filter.may_show(&job) {
                    found.insert(job.id, job);
                }
            }
        }
        Ok(found.into_values().rev().collect())
    }
}

const MATCHING_LIVE: Sql = Sql::new(
    &["select * from live_jobs v where v.id = $1 and v.tenant = $2 and ($3 = '' or v.state = $3)
        and ($4 = '' or v.queue = $4) and ($5 = '' or v.kind = $5) and ($6 = '' or v.affinity = $6)
        and ($7 = '' or v.subject = $7) and ($8 = '' or v.run = $8)
        and ($9 = '' or instr(v.kind, $9) = 1 or instr(v.unique_key, $9) = 1 or instr(v.error, $9) > 0
            or instr(v.tags, $9) > 0 or instr(v.payload, $9) > 0)"],
    "select v.* from unnest($1::uuid[]) as wanted (id) join live_jobs v on v.id = wanted.id
     where v.tenant = $2 and ($3::text = '' or v.state = $3)
        and ($4::text = '' or v.queue = $4) and ($5::text = '' or v.kind = $5) and ($6::text = '' or v.affinity = $6)
        and ($7::text = '' or v.subject = $7) and ($8::text = '' or v.run = $8)
        and ($9::text = '' or strpos(v.kind, $9) = 1 or strpos(v.unique_key, $9) = 1 or strpos(v.error::text, $9) > 0
            or strpos(v.tags::text, $9) > 0 or strpos(v.payload::text, $9) > 0)",
);

const MATCHING_ENDED: Sql = Sql::new(
    &["select * from ended_jobs v where v.id = $1 and v.tenant = $2 and ($3 = '' or v.state = $3)
        and ($4 = '' or v.queue = $4) and ($5 = '' or v.kind = $5) and ($6 = '' or v.affinity = $6)
        and ($7 = '' or v.subject = $7) and ($8 = '' or v.run = $8)
        and ($9 = '' or instr(v.kind, $9) = 1 or instr(v.unique_key, $9) = 1 or instr(v.error, $9) > 0
            or instr(v.tags, $9) > 0 or instr(v.payload, $9) > 0)"],
    "select v.* from unnest($1::uuid[]) as wanted (id) join ended_jobs v on v.id = wanted.id
     where v.tenant = $2 and ($3::text = '' or v.state = $3)
        and ($4::text = '' or v.queue = $4) and ($5::text = '' or v.kind = $5) and ($6::text = '' or v.affinity = $6)
        and ($7::text = '' or v.subject = $7) and ($8::text = '' or v.run = $8)
        and ($9::text = '' or strpos(v.kind, $9) = 1 or strpos(v.unique_key, $9) = 1 or strpos(v.error::text, $9) > 0
            or strpos(v.tags::text, $9) > 0 or strpos(v.payload::text, $9) > 0)",
);
