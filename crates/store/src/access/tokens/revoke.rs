//! Revokes a token on every node.

use domain::{TenantId, TokenId};
use serde_json::json;

use crate::access::tokens::authenticate::MAX_CACHE_AGE;
use crate::access::tokens::move_version;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

impl Store {
    /// Revokes a token and returns true if the tenant has it. Revoking it again changes nothing. With `tenant: None` the
    /// token can belong to any tenant.
    ///
    /// Waits for `MAX_CACHE_AGE`: once this returns, no node accepts the token.
    pub async fn revoke_token(&self, tenant: Option<TenantId>, id: TokenId, by: String) -> Result<bool, StoreError> {
        let found = self.write(RevokeToken { tenant, id, by }).await?;
        if found {
            self.tokens().invalidate();
            tokio::time::sleep(MAX_CACHE_AGE).await;
        }
        Ok(found)
    }
}

struct RevokeToken {
    tenant: Option<TenantId>,
    id: TokenId,
    by: String,
}

const LIVING: Sql = Sql::both(&["select tenant, name from tokens where id = $1 and revoked_at is null"]);
const REVOKE: Sql =
    Sql::both(&["update tokens set revoked_at = coalesce(revoked_at, $2), revoked_by = coalesce(revoked_by, $3)
     where id = $1 and tenant = coalesce($4, tenant)"]);

impl Operation for RevokeToken {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let tenant = Param::int(self.tenant.map(|tenant| tenant.0));
        let params = [Param::Uuid(self.id.uuid()), Param::Time(tx.now()), Param::Text(&self.by), tenant];
        let live_token = tx.query_opt(&LIVING, &params[..1]).await?;
        let found = tx.execute(&REVOKE, &params).await? > 0;
        if found {
            move_version(tx).await?;
        }
        if let Some(row) = live_token.filter(|_| found) {
            let detail = json!({"token": row.text("name")?, "id": self.id.uuid()}).to_string();
            let entry = Entry::by(TenantId(row.int("tenant")?), &self.by, "token_revoked", detail);
            timeline::write(tx, &[entry]).await?;
        }
        Ok(found)
    }
}
