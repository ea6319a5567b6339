//! Reads the versions of jobs for signal streams: of listed jobs in one query, and of the newest jobs of a filter once for
//! all streams with that filter.

use std::collections::HashMap;
use std::sync::Arc;

use domain::limits::STREAM_WINDOW;
use domain::{JobId, TenantId, Time};

use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::queue::list::JobFilter;
use crate::store::Store;

/// A job and the version of its signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobVersion {
    pub job: JobId,
    pub version: i64,
    pub updated_at: Time,
}

impl Store {
    /// Returns the newest `STREAM_WINDOW` jobs of a filter, at most `STREAM_SCAN_TTL_MS` old. Streams with the same tenant
    /// and filter share the query.
    pub async fn shared_job_versions(
        &self,
        tenant: TenantId,
        filter: &JobFilter,
    ) -> Result<Arc<Vec<JobVersion>>, StoreError> {
        let read = || {
            let (store, filter) = (self.clone(), filter.clone());
            async move { store.job_versions(tenant, filter).await }
        };
        let (versions, _) = self.job_version_cache().get((tenant, filter.clone()), read).await?;
        Ok(versions)
    }

    /// Returns the newest `STREAM_WINDOW` jobs of a filter.
    pub async fn job_versions(&self, tenant: TenantId, filter: JobFilter) -> Result<Vec<JobVersion>, StoreError> {
        let page = self.list_jobs(tenant, filter, None, STREAM_WINDOW).await?;
        let version = |job: &crate::queue::get::StoredJob| JobVersion {
            job: job.id,
            version: job.version,
            updated_at: job.updated_at,
        };
        Ok(page.jobs.iter().map(version).collect())
    }

    /// Returns the version of each job. Jobs that do not exist or were pruned are absent.
    pub async fn signal_versions(&self, jobs: Vec<JobId>) -> Result<HashMap<JobId, i64>, StoreError> {
        self.read(ReadVersions { jobs }).await
    }
}

struct ReadVersions {
    jobs: Vec<JobId>,
}

const LIVE: Sql = Sql::new(
    &["select id, version from jobs where id = $1"],
    "select id, version from jobs where id = any($1::uuid[])",
);
const ENDED: Sql = Sql::new(
    &["select id, version from ended where id = $1"],
    "select id, version from ended where id = any($1::uuid[])",
);

impl Operation for ReadVersions {
    type Output = HashMap<JobId, i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<HashMap<JobId, i64>, StoreError> {
        let mut versions = HashMap::with_capacity(self.jobs.len());
        for row in tx.query_each(&LIVE, &[Column::jobs(self.jobs.iter().copied())], &[]).await? {
            versions.insert(row.job("id")?, row.int("version")?);
        }
        let rest = self.jobs.iter().copied().filter(|job| !versions.contains_key(job)).collect::<Vec<_>>();
        for row in tx.query_each(&ENDED, &[Column::jobs(rest)], &[]).await? {
            versions.insert(row.job("id")?, row.int("version")?);
        }
        Ok(versions)
    }
}
