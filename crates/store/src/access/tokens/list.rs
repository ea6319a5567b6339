//! Lists the tokens of a tenant, newest first, without their texts.

use domain::{TenantId, TokenId};
use uuid::Uuid;

use crate::access::tokens::{Token, read};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns tokens that follow `after` in the listing, including revoked and expired ones.
    pub async fn list_tokens(
        &self,
        tenant: TenantId,
        after: Option<TokenId>,
        limit: usize,
    ) -> Result<Vec<Token>, StoreError> {
        self.read(ListTokens { tenant, after, limit }).await
    }
}

struct ListTokens {
    tenant: TenantId,
    after: Option<TokenId>,
    limit: usize,
}

const LIST: Sql = Sql::both(&["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues,
         t.serves, t.parent, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from tokens t join tenants n on n.id = t.tenant
     where t.tenant = $1 and t.id < $2 order by t.id desc limit $3"]);
const ONE: Sql = Sql::both(&["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues,
         t.serves, t.parent, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from tokens t join tenants n on n.id = t.tenant where t.id = $1"]);

impl Operation for ListTokens {
    type Output = Vec<Token>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Token>, StoreError> {
        let after = self.after.map_or(Uuid::max(), TokenId::uuid);
        let params = [Param::Int(self.tenant.0), Param::Uuid(after), Param::Int(self.limit as i64)];
        tx.query(&LIST, &params).await?.iter().map(read).collect()
    }
}

pub(crate) async fn find(tx: &mut Tx<'_>, id: TokenId) -> Result<Option<Token>, StoreError> {
    tx.query_opt(&ONE, &[Param::Uuid(id.uuid())]).await?.as_ref().map(read).transpose()
}
