//! The words that jobs can be filtered by, for completion. No job is read.

use domain::TenantId;

use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// What a tenant's jobs are called, each in order and at most so many.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterWords {
    pub queues: Vec<String>,
    pub kinds: Vec<String>,
    pub affinities: Vec<String>,
    pub tags: Vec<String>,
}

impl Store {
    pub async fn filter_words(&self, tenant: TenantId, limit: usize) -> Result<FilterWords, StoreError> {
        self.read(ReadWords { tenant, limit }).await
    }
}

struct ReadWords {
    tenant: TenantId,
    limit: usize,
}

const QUEUES: Sql =
    Sql::both(&["select name from queues where tenant = $1 union select queue from lanes where tenant = $1
     order by 1 limit $2"]);
const KINDS: Sql = Sql::both(&["select distinct kind from lanes where tenant = $1 order by kind limit $2"]);
const AFFINITIES: Sql = Sql::both(&["select distinct affinity from lanes where tenant = $1 and affinity <> ''
     order by affinity limit $2"]);
// From one tag to the next: a million jobs of one tag are one step.
const TAGS: Sql = Sql::both(&["with recursive tags (tag) as (
         select min(tag) from job_tags where tenant = $1
         union all
         select (select min(j.tag) from job_tags j where j.tenant = $1 and j.tag > tags.tag) from tags
         where tags.tag is not null)
     select tag from tags where tag is not null limit $2"]);

impl Operation for ReadWords {
    type Output = FilterWords;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<FilterWords, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Int(self.limit as i64)];
        let mut words = async |of: &Sql| -> Result<Vec<String>, StoreError> {
            tx.query(of, &params).await?.iter().map(|row| row.text(0)).collect()
        };
        Ok(FilterWords {
            queues: words(&QUEUES).await?,
            kinds: words(&KINDS).await?,
            affinities: words(&AFFINITIES).await?,
            tags: words(&TAGS).await?,
        })
    }
}
