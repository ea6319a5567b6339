//! Lists jobs for their signals, newest first, filtered by signal kind and by job.

use std::collections::HashMap;

use domain::{JobId, JobState, SignalKind, TenantId};

use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::StoredJob;
use crate::queue::list::{JobFilter, JobPage};
use crate::signals::refine::StoredSignal;
use crate::store::Store;

/// A page of jobs whose signal may have the wanted kind, with what was reported on each.
#[derive(Clone, Debug)]
pub struct SignalPage {
    pub jobs: Vec<(StoredJob, Option<StoredSignal>)>,
    /// Cursor of the next page.
    pub next: Option<JobId>,
    /// True if the scan stopped at its row limit.
    pub partial: bool,
}

impl Store {
    /// Returns the jobs whose state allows the kind. Whether a job's signal has the kind is decided later, from its
    /// sources.
    pub async fn list_signals(
        &self,
        tenant: TenantId,
        kind: Option<SignalKind>,
        filter: JobFilter,
        before: Option<JobId>,
        limit: usize,
    ) -> Result<SignalPage, StoreError> {
        let mut pages = Vec::new();
        for state in states(kind, &filter) {
            let filter = JobFilter { state, ..filter.clone() };
            pages.push(self.list_jobs(tenant, filter, before, limit).await?);
        }
        let page = merge(pages, limit);
        let ids = page.jobs.iter().map(|job| job.id).collect();
        let reported = self.read(ReadReported { tenant, ids }).await?;
        Ok(SignalPage { jobs: page.jobs.into_iter().zip(reported).collect(), next: page.next, partial: page.partial })
    }
}

/// Returns the job states to list, one page each.
fn states(kind: Option<SignalKind>, filter: &JobFilter) -> Vec<Option<JobState>> {
    match (kind, filter.state) {
        (_, Some(state)) => vec![Some(state)],
        (None, None) => vec![None],
        (Some(kind), None) => kind.states().iter().copied().map(Some).collect(),
    }
}

/// Merges pages, each newest first. Jobs older than the position where any of the pages stopped are dropped, because
/// that page may miss some of them.
fn merge(pages: Vec<JobPage>, limit: usize) -> JobPage {
    let stop = pages.iter().filter_map(|page| page.next).max();
    let partial = pages.iter().any(|page| page.partial);
    let mut jobs: Vec<StoredJob> = pages.into_iter().flat_map(|page| page.jobs).collect();
    jobs.sort_by_key(|job| std::cmp::Reverse(job.id));
    jobs.retain(|job| stop.is_none_or(|stop| job.id >= stop));
    let more = jobs.len() > limit;
    jobs.truncate(limit);
    let next = if more { jobs.last().map(|job| job.id) } else { stop };
    JobPage { jobs, next, partial }
}

struct ReadReported {
    tenant: TenantId,
    ids: Vec<JobId>,
}

const REPORTED: Sql = Sql::new(
    &["select job, epoch as signal_epoch, kind as signal_kind, summary, eta_s, last_known_outcome, next_actions,
           diagnostics, payload as signal_payload, updated_at as signal_updated_at
       from signals where job = $1 and tenant = $2"],
    "select job, epoch as signal_epoch, kind as signal_kind, summary, eta_s, last_known_outcome, next_actions,
         diagnostics, payload as signal_payload, updated_at as signal_updated_at
     from signals where job = any($1::uuid[]) and tenant = $2",
);

impl Operation for ReadReported {
    type Output = Vec<Option<StoredSignal>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let ids = [Column::jobs(self.ids.iter().copied())];
        let mut reported = HashMap::new();
        for row in tx.query_each(&REPORTED, &ids, &[Param::Int(self.tenant.0)]).await? {
            reported.insert(row.job("job")?, StoredSignal::read(&row)?);
        }
        Ok(self.ids.iter().map(|id| reported.remove(id).flatten()).collect())
    }
}
