//! Values for autocompletion of job filters. Reads indexes and lanes only, no jobs.

use domain::TenantId;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Filter values of a tenant's jobs, sorted, up to a limit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilterSuggestions {
    pub queues: Vec<String>,
    pub kinds: Vec<String>,
    pub affinities: Vec<String>,
    pub tags: Vec<String>,
}

impl Store {
    pub async fn filter_suggestions(&self, tenant: TenantId, limit: usize) -> Result<FilterSuggestions, StoreError> {
        self.read(ListFilterValues { tenant, limit }).await
    }
}

struct ListFilterValues {
    tenant: TenantId,
    limit: usize,
}

const QUEUES: Sql =
    Sql::both(&["select name from queues where tenant = $1 union select queue from lanes where tenant = $1
     order by 1 limit $2"]);
const KINDS: Sql = Sql::both(&["select distinct kind from lanes where tenant = $1 order by kind limit $2"]);
const AFFINITIES: Sql = Sql::both(&["select distinct affinity from lanes where tenant = $1 and affinity <> ''
     order by affinity limit $2"]);
// Steps from tag to tag, so a million jobs with one tag cost one step.
const TAGS: Sql = Sql::both(&["with recursive tags (tag) as (
         select min(tag) from job_tags where tenant = $1
         union all
         select (select min(j.tag) from job_tags j where j.tenant = $1 and j.tag > tags.tag) from tags
         where tags.tag is not null)
     select tag from tags where tag is not null limit $2"]);

impl Operation for ListFilterValues {
    type Output = FilterSuggestions;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<FilterSuggestions, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Int(self.limit as i64)];
        let mut values = async |of: &Sql, column: &str| -> Result<Vec<String>, StoreError> {
            tx.query(of, &params).await?.iter().map(|row| row.text(column)).collect()
        };
        Ok(FilterSuggestions {
            queues: values(&QUEUES, "name").await?,
            kinds: values(&KINDS, "kind").await?,
            affinities: values(&AFFINITIES, "affinity").await?,
            tags: values(&TAGS, "tag").await?,
        })
    }
}
