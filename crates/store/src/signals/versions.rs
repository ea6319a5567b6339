//! The versions of many jobs at once: what open streams ask, all together.

use std::collections::HashMap;

use domain::JobId;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Sql, Tx};

impl Store {
    /// Jobs that are pruned or never were are left out.
    pub async fn signal_versions(&self, jobs: Vec<JobId>) -> Result<HashMap<JobId, i64>, StoreError> {
        self.read(Versions { jobs }).await
    }
}

struct Versions {
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

impl Operation for Versions {
    type Output = HashMap<JobId, i64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<HashMap<JobId, i64>, StoreError> {
        let mut versions = HashMap::with_capacity(self.jobs.len());
        for row in tx.query_each(&LIVE, &[Column::jobs(self.jobs.iter().copied())], &[]).await? {
            versions.insert(row.job(0)?, row.int(1)?);
        }
        let rest = self.jobs.iter().copied().filter(|job| !versions.contains_key(job)).collect::<Vec<_>>();
        for row in tx.query_each(&ENDED, &[Column::jobs(rest)], &[]).await? {
            versions.insert(row.job(0)?, row.int(1)?);
        }
        Ok(versions)
    }
}
