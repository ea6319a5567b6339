//! Reads journals in pages. Claims and `GET /jobs/{id}/journal` call this module.
//!
//! A page is limited by the size of its entries. The sizes are read first, so that no page loads more than it returns.

use std::collections::HashMap;

use domain::limits::{JOURNAL_CLAIM_ENTRIES, JOURNAL_PAGE_BYTES};
use domain::{JobId, TenantId};

use super::{JournalEntry, JournalHead};
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Entries of one journal in the order of their positions.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct JournalPage {
    pub entries: Vec<JournalEntry>,
    /// The position after which the next page begins, if there may be one.
    pub next: Option<i64>,
}

impl Store {
    /// Returns one page of the journal of a job, beginning after a position. A job without a journal has an empty one.
    pub async fn read_journal(
        &self,
        tenant: TenantId,
        job: JobId,
        after: i64,
        limit: usize,
    ) -> Result<(JournalHead, JournalPage), StoreError> {
        self.read(ReadJournal { tenant, job, after, limit }).await
    }

    /// Returns the first page of each of these journals.
    pub(crate) async fn first_pages(
        &self,
        tenant: TenantId,
        jobs: Vec<JobId>,
    ) -> Result<HashMap<JobId, JournalPage>, StoreError> {
        self.read(ReadFirstPages { tenant, jobs }).await
    }
}

struct ReadJournal {
    tenant: TenantId,
    job: JobId,
    after: i64,
    limit: usize,
}

const HEAD: Sql = Sql::both(&["select entries, resolved, bytes, drift from journals where job = $1 and tenant = $2"]);
const SIZES: Sql = Sql::new(
    &["select job, position, bytes from journal_entries where job = $1 and position > $2 and tenant = $3
       order by position limit $4"],
    "select e.job, e.position, e.bytes from unnest($1::uuid[], $2::bigint[]) as n(job, position) cross join lateral (
         select * from journal_entries where job = n.job and position > n.position and tenant = $3
         order by position limit $4) e",
);
const ENTRIES: Sql = Sql::new(
    &["select job, position, key, op, seq, hash, attempt, attempts, result, error, bytes, duration_ms, created_at,
           resolved_at, input, due_at
       from journal_entries where job = $1 and position > $2 and position <= $3"],
    "select e.job, e.position, e.key, e.op, e.seq, e.hash, e.attempt, e.attempts, e.result, e.error, e.bytes,
         e.duration_ms, e.created_at, e.resolved_at, e.input, e.due_at
     from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n(job, after, until)
     join journal_entries e on e.job = n.job and e.position > n.after and e.position <= n.until",
);

impl Operation for ReadJournal {
    type Output = (JournalHead, JournalPage);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(JournalHead, JournalPage), StoreError> {
        let head = head(tx, self.tenant, self.job).await?;
        let mut pages = pages(tx, self.tenant, &[(self.job, self.after)], self.limit).await?;
        Ok((head, pages.remove(&self.job).unwrap_or_default()))
    }
}

pub(crate) async fn head(tx: &mut Tx<'_>, tenant: TenantId, job: JobId) -> Result<JournalHead, StoreError> {
    let row = tx.query_opt(&HEAD, &[Param::from(job), Param::Int(tenant.0)]).await?;
    Ok(row.as_ref().map(JournalHead::read).transpose()?.unwrap_or_default())
}

struct ReadFirstPages {
    tenant: TenantId,
    jobs: Vec<JobId>,
}

impl Operation for ReadFirstPages {
    type Output = HashMap<JobId, JournalPage>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<HashMap<JobId, JournalPage>, StoreError> {
        let jobs: Vec<(JobId, i64)> = self.jobs.iter().map(|job| (*job, 0)).collect();
        pages(tx, self.tenant, &jobs, JOURNAL_CLAIM_ENTRIES).await
    }
}

/// Bytes of an entry besides its contents.
const ENTRY_BYTES: i64 = 200;

/// Reads one page of each journal, beginning after a position. All pages together have at most `JOURNAL_PAGE_BYTES`,
/// except that a page of one journal has at least one entry.
async fn pages(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[(JobId, i64)],
    limit: usize,
) -> Result<HashMap<JobId, JournalPage>, StoreError> {
    let columns = [Column::jobs(jobs.iter().map(|(job, _)| *job)), Column::ints(jobs.iter().map(|(_, after)| *after))];
    let params = [Param::Int(tenant.0), Param::Int(limit as i64 + 1)];
    let mut sizes: HashMap<JobId, Vec<(i64, i64)>> = HashMap::new();
    for row in tx.query_each(&SIZES, &columns, &params).await? {
        sizes.entry(row.job("job")?).or_default().push((row.int("position")?, row.int("bytes")?));
    }
    let mut capacity = JOURNAL_PAGE_BYTES;
    let mut pages: HashMap<JobId, JournalPage> = HashMap::new();
    let mut wanted: Vec<(JobId, i64, i64)> = Vec::new();
    for (job, after) in jobs {
        let mut found = sizes.remove(job).unwrap_or_default();
        found.sort_unstable();
        let mut until = *after;
        let mut taken = 0;
        for (position, bytes) in &found {
            let bytes = bytes + ENTRY_BYTES;
            let is_first = wanted.is_empty() && taken == 0;
            if taken == limit || (bytes > capacity && !is_first) {
                break;
            }
            capacity -= bytes;
            until = *position;
            taken += 1;
        }
        let next = (taken < found.len()).then_some(until);
        pages.insert(*job, JournalPage { entries: Vec::with_capacity(taken), next });
        if taken > 0 {
            wanted.push((*job, *after, until));
        }
    }
    let columns = [
        Column::jobs(wanted.iter().map(|(job, ..)| *job)),
        Column::ints(wanted.iter().map(|(_, after, _)| *after)),
        Column::ints(wanted.iter().map(|(.., until)| *until)),
    ];
    for row in tx.query_each(&ENTRIES, &columns, &[]).await? {
        let page = pages.get_mut(&row.job("job")?).expect("the query returns the jobs that it was asked for");
        page.entries.push(JournalEntry::read(&row)?);
    }
    pages.values_mut().for_each(|page| page.entries.sort_by_key(|entry| entry.position));
    Ok(pages)
}
