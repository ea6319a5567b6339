//! Signals of many jobs, newest first, by kind and run (S1).

use std::collections::HashMap;

use domain::{JobId, JobState, SignalKind, TenantId};

use crate::error::StoreError;
use crate::jobs::get::StoredJob;
use crate::jobs::list::{JobFilter, JobPage};
use crate::signals::refine::StoredSignal;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// A page of jobs that may have a signal of the wanted kind, with what was said of them.
#[derive(Clone, Debug)]
pub struct SignalPage {
    pub jobs: Vec<(StoredJob, Option<StoredSignal>)>,
    pub next: Option<JobId>,
    pub partial: bool,
}

impl Store {
    /// The jobs whose state allows the kind; which of them have it is told by their facts.
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
        let said = self.read(Said { tenant, ids }).await?;
        Ok(SignalPage { jobs: page.jobs.into_iter().zip(said).collect(), next: page.next, partial: page.partial })
    }
}

fn states(kind: Option<SignalKind>, filter: &JobFilter) -> Vec<Option<JobState>> {
    match (kind, filter.state) {
        (_, Some(state)) => vec![Some(state)],
        (None, None) => vec![None],
        (Some(kind), None) => kind.states().iter().copied().map(Some).collect(),
    }
}

/// One page out of several, each newest first: nothing older than where one of them stopped can be vouched for.
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

struct Said {
    tenant: TenantId,
    ids: Vec<JobId>,
}

const SAID: Sql = Sql::new(
    &["select job, epoch, kind, summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, updated_at
       from signals where job = $1 and tenant = $2"],
    "select job, epoch, kind, summary, eta_s, last_known_outcome, next_actions, diagnostics, payload, updated_at
     from signals where job = any($1::uuid[]) and tenant = $2",
);

impl Operation for Said {
    type Output = Vec<Option<StoredSignal>>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let ids = [Column::jobs(self.ids.iter().copied())];
        let mut said = HashMap::new();
        for row in tx.query_each(&SAID, &ids, &[Param::Int(self.tenant.0)]).await? {
            said.insert(row.job(0)?, StoredSignal::at(&row, 1)?);
        }
        Ok(self.ids.iter().map(|id| said.remove(id).flatten()).collect())
    }
}
