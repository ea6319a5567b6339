//! Ends a token, on every node at once.

use domain::{TenantId, TokenId};
use serde_json::json;

use crate::error::StoreError;
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::tokens::authenticate::TRUST;
use crate::tokens::move_version;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Gives whether the tenant has such a token; to revoke it again changes nothing. `None` reaches every tenant's.
    ///
    /// Once this returns no node takes the token: each has forgotten it or looked again.
    pub async fn revoke_token(&self, tenant: Option<TenantId>, id: TokenId, by: String) -> Result<bool, StoreError> {
        let found = self.write(Revoke { tenant, id, by }).await?;
        if found {
            self.tokens().forget();
            tokio::time::sleep(TRUST).await;
        }
        Ok(found)
    }
}

struct Revoke {
    tenant: Option<TenantId>,
    id: TokenId,
    by: String,
}

const LIVING: Sql = Sql::both(&["select tenant, name from tokens where id = $1 and revoked_at is null"]);
const REVOKE: Sql =
    Sql::both(&["update tokens set revoked_at = coalesce(revoked_at, $2), revoked_by = coalesce(revoked_by, $3)
     where id = $1 and tenant = coalesce($4, tenant)"]);

impl Operation for Revoke {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let tenant = Param::int(self.tenant.map(|tenant| tenant.0));
        let params = [Param::Uuid(self.id.uuid()), Param::Time(tx.now()), Param::Text(&self.by), tenant];
        let living = tx.query_opt(&LIVING, &params[..1]).await?;
        let found = tx.execute(&REVOKE, &params).await? > 0;
        if found {
            move_version(tx).await?;
        }
        if let Some(row) = living.filter(|_| found) {
            let detail = json!({"token": row.text(1)?, "id": self.id.uuid()}).to_string();
            let entry = Entry::by(TenantId(row.int(0)?), &self.by, "token_revoked", detail);
            timeline::write(tx, &[entry]).await?;
        }
        Ok(found)
    }
}
