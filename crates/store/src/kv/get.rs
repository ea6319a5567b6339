//! Reads a value, or a page of a collection.

use domain::TenantId;

use crate::error::StoreError;
use crate::kv::{Entry, read};
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn kv(&self, tenant: TenantId, collection: &str, key: &str) -> Result<Option<Entry>, StoreError> {
        self.read(Get { tenant, collection: collection.into(), key: key.into() }).await
    }

    /// By key, after `after`.
    pub async fn list_kv(
        &self,
        tenant: TenantId,
        collection: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<Entry>, StoreError> {
        self.read(List { tenant, collection: collection.into(), after, limit }).await
    }
}

struct Get {
    tenant: TenantId,
    collection: String,
    key: String,
}

const GET: Sql = Sql::both(&["select collection, key, value, version, created_at, updated_at
     from kv where tenant = $1 and collection = $2 and key = $3"]);
const LIST: Sql = Sql::both(&["select collection, key, value, version, created_at, updated_at
     from kv where tenant = $1 and collection = $2 and key > $3 order by key limit $4"]);

impl Operation for Get {
    type Output = Option<Entry>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Entry>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.collection), Param::Text(&self.key)];
        tx.query_opt(&GET, &params).await?.as_ref().map(read).transpose()
    }
}

struct List {
    tenant: TenantId,
    collection: String,
    after: Option<String>,
    limit: usize,
}

impl Operation for List {
    type Output = Vec<Entry>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Entry>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.collection),
            Param::Text(self.after.as_deref().unwrap_or_default()),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}
