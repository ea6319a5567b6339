//! Reads the versions of many jobs in one query. Called by the loop that serves all open signal streams.

use std::collections::HashMap;

use domain::JobId;

use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
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
