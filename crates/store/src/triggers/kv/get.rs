//! Reads a value and lists the keys of a collection.

use domain::TenantId;

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::kv::{KvEntry, read};

impl Store {
    pub async fn kv(&self, tenant: TenantId, collection: &str, key: &str) -> Result<Option<KvEntry>, StoreError> {
        self.read(GetKv { tenant, collection: collection.into(), key: key.into() }).await
    }

    /// Lists a collection by key, after `after`.
    pub async fn list_kv(
        &self,
        tenant: TenantId,
        collection: &str,
        after: Option<String>,
        limit: usize,
    ) -> Result<Vec<KvEntry>, StoreError> {
        self.read(ListKv { tenant, collection: collection.into(), after, limit }).await
    }
}

struct GetKv {
    tenant: TenantId,
    collection: String,
    key: String,
}

const GET: Sql = Sql::both(&["select collection, key, value, version, created_at, updated_at
     from kv where tenant = $1 and collection = $2 and key = $3"]);
const LIST: Sql = Sql::both(&["select collection, key, value, version, created_at, updated_at
     from kv where tenant = $1 and collection = $2 and key > $3 order by key limit $4"]);

impl Operation for GetKv {
    type Output = Option<KvEntry>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<KvEntry>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(&self.collection), Param::Text(&self.key)];
        tx.query_opt(&GET, &params).await?.as_ref().map(read).transpose()
    }
}

struct ListKv {
    tenant: TenantId,
    collection: String,
    after: Option<String>,
    limit: usize,
}

impl Operation for ListKv {
    type Output = Vec<KvEntry>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<KvEntry>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(&self.collection),
            Param::Text(self.after.as_deref().unwrap_or_default()),
            Param::Int(self.limit as i64),
        ];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}
