//! What principals may do now, by the tokens of their names: asked when what they registered runs (T2).

use std::collections::{BTreeSet, HashMap};

use domain::{Standing, TenantId};

use crate::error::StoreError;
use crate::store::Store;
use crate::tokens::{read, version};
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// How the operator of the machine is called while there are no tokens.
pub const LOCAL: &str = "local";

/// A principal: a name within a tenant.
pub type Named = (TenantId, String);

impl Store {
    /// One that has nothing any more has an empty standing.
    ///
    /// Before the first token everyone has every right. What the operator of the machine registered then goes on running
    /// afterwards, unless a token has taken over the name.
    pub async fn standings(&self, names: BTreeSet<Named>) -> Result<HashMap<Named, Standing>, StoreError> {
        self.read(Standings { names }).await
    }
}

pub(crate) struct Standings {
    pub(crate) names: BTreeSet<Named>,
}

const LIVING: Sql = Sql::new(
    &["select t.id, t.tenant, n.name, t.name, t.role, t.rights, t.queues, t.serves, t.parent, t.created_by, t.created_at,
           t.expires_at, t.revoked_at, t.revoked_by, t.used_at
       from tokens t join tenants n on n.id = t.tenant where t.tenant = $1 and t.name = $2
           and t.revoked_at is null and (t.expires_at is null or t.expires_at > $3)"],
    "select t.id, t.tenant, n.name, t.name, t.role, t.rights, t.queues, t.serves, t.parent, t.created_by, t.created_at,
         t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from unnest($1::bigint[], $2::text[]) as p(tenant, name)
     join tokens t on t.tenant = p.tenant and t.name = p.name join tenants n on n.id = t.tenant
     where t.revoked_at is null and (t.expires_at is null or t.expires_at > $3)",
);
const EVER: Sql = Sql::both(&["select 1 from tokens where tenant = $1 and name = $2 limit 1"]);

impl Operation for Standings {
    type Output = HashMap<Named, Standing>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        if version(tx).await? == 0 {
            return Ok(self.names.iter().map(|name| (name.clone(), Standing::full())).collect());
        }
        let columns = [
            Column::ints(self.names.iter().map(|(tenant, _)| tenant.0)),
            Column::texts(self.names.iter().map(|(_, name)| name.as_str())),
        ];
        let now = Param::Time(tx.now());
        let mut living: HashMap<Named, Vec<_>> = HashMap::new();
        for row in tx.query_each(&LIVING, &columns, &[now]).await? {
            let token = read(&row)?;
            living.entry((token.tenant, token.name.to_string())).or_default().push(token.access);
        }
        let local = (TenantId::DEFAULT, LOCAL.to_owned());
        let is_free = self.names.contains(&local) && {
            let name = [Param::Int(TenantId::DEFAULT.0), Param::Text(LOCAL)];
            tx.query_opt(&EVER, &name).await?.is_none()
        };
        let mut standing = |name: &Named| match living.remove(name) {
            Some(tokens) => Standing::of(tokens),
            None if is_free && *name == local => Standing::full(),
            None => Standing::default(),
        };
        Ok(self.names.iter().map(|name| (name.clone(), standing(name))).collect())
    }
}
