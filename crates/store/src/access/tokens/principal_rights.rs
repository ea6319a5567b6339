//! Looks up the current rights of principals by the tokens with their name. Triggers and deliveries run with these
//! rights, so the lookup happens when they run and not when they were registered.

use std::collections::{BTreeSet, HashMap};

use domain::{PrincipalRights, TenantId};

use crate::access::tokens::{read, version};
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Principal name of unauthenticated callers while no tokens exist.
pub const LOCAL: &str = "local";

/// A principal: a name within a tenant.
pub type PrincipalName = (TenantId, String);

impl Store {
    /// Returns the current rights of each principal. A principal without a live token has no rights.
    ///
    /// Before the first token is created, every principal has every right. Triggers that the local principal registered
    /// in that time keep their rights, unless a token named `local` was created later.
    pub async fn principal_rights(
        &self,
        names: BTreeSet<PrincipalName>,
    ) -> Result<HashMap<PrincipalName, PrincipalRights>, StoreError> {
        self.read(FindPrincipalRights { names }).await
    }
}

pub(crate) struct FindPrincipalRights {
    pub(crate) names: BTreeSet<PrincipalName>,
}

const LIVING: Sql = Sql::new(
    &["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues, t.serves, t.parent, t.created_by,
           t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
       from tokens t join tenants n on n.id = t.tenant where t.tenant = $1 and t.name = $2
           and t.revoked_at is null and (t.expires_at is null or t.expires_at > $3)"],
    "select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues, t.serves, t.parent, t.created_by,
         t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from unnest($1::bigint[], $2::text[]) as p(tenant, name)
     join tokens t on t.tenant = p.tenant and t.name = p.name join tenants n on n.id = t.tenant
     where t.revoked_at is null and (t.expires_at is null or t.expires_at > $3)",
);
const EVER: Sql = Sql::both(&["select 1 from tokens where tenant = $1 and name = $2 limit 1"]);

impl Operation for FindPrincipalRights {
    type Output = HashMap<PrincipalName, PrincipalRights>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        if version(tx).await? == 0 {
            return Ok(self.names.iter().map(|name| (name.clone(), PrincipalRights::full())).collect());
        }
        let columns = [
            Column::ints(self.names.iter().map(|(tenant, _)| tenant.0)),
            Column::texts(self.names.iter().map(|(_, name)| name.as_str())),
        ];
        let now = Param::Time(tx.now());
        let mut live_tokens: HashMap<PrincipalName, Vec<_>> = HashMap::new();
        for row in tx.query_each(&LIVING, &columns, &[now]).await? {
            let token = read(&row)?;
            live_tokens.entry((token.tenant, token.name.to_string())).or_default().push(token.access);
        }
        let local = (TenantId::DEFAULT, LOCAL.to_owned());
        let local_is_unclaimed = self.names.contains(&local) && {
            let name = [Param::Int(TenantId::DEFAULT.0), Param::Text(LOCAL)];
            tx.query_opt(&EVER, &name).await?.is_none()
        };
        let mut standing = |name: &PrincipalName| match live_tokens.remove(name) {
            Some(tokens) => PrincipalRights::of(tokens),
            None if local_is_unclaimed && *name == local => PrincipalRights::full(),
            None => PrincipalRights::default(),
        };
        Ok(self.names.iter().map(|name| (name.clone(), standing(name))).collect())
    }
}
