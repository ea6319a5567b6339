//! Tokens: create, list, revoke and authenticate. The database stores only their hashes.

pub mod authenticate;
pub mod create;
pub mod list;
pub mod principal_rights;
pub mod prune;
pub mod revoke;

use std::sync::Arc;

use domain::{Access, Name, Right, Role, TenantId, Time, TokenId, TokenText};
use sha2::{Digest, Sha256};

use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Row, Sql, Tx};
use crate::error::StoreError;

/// A token without its secret text.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub id: TokenId,
    pub tenant: TenantId,
    pub tenant_name: Name,
    pub name: Arc<str>,
    pub access: Access,
    /// Tenants whose jobs a worker of the built-in tenant may claim.
    pub serves: Option<Serves>,
    /// The token that created this one. `None` if it was created on the server's machine.
    pub parent: Option<TokenId>,
    pub created_by: String,
    pub created_at: Time,
    pub expires_at: Option<Time>,
    pub revoked_at: Option<Time>,
    pub revoked_by: Option<String>,
    /// Time of last use, precise to about a minute.
    pub used_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Serves {
    Everyone,
    /// Id and name. Neither ever changes.
    Tenants(Vec<(TenantId, Name)>),
}

impl Token {
    /// Returns true if the token is neither revoked nor expired.
    pub fn is_alive(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }
}

/// SHA-256 of a token text or of a session secret.
pub type Hash = [u8; 32];

pub(crate) fn hash(text: &TokenText) -> Hash {
    Sha256::digest(text.as_str()).into()
}

pub(crate) fn read(row: &Row) -> Result<Token, StoreError> {
    let role = row.text("role")?;
    let rights: Vec<String> = from_json(&row.text("rights")?)?;
    let queues: Option<Vec<String>> = row.opt_text("queues")?.map(|text| from_json(&text)).transpose()?;
    Ok(Token {
        id: TokenId::new(row.uuid("id")?),
        tenant: TenantId(row.int("tenant")?),
        tenant_name: Name::stored(&row.text("tenant_name")?),
        name: row.text("name")?.into(),
        access: Access {
            role: role.parse::<Role>().map_err(|_| StoreError::unexpected(format!("role {role}")))?,
            // Skip rights that this version does not know, for example from a newer node: it cannot grant them.
            granted: rights.iter().filter_map(|right| Right::grantable(right).ok()).collect(),
            queues: queues.map(|queues| queues.iter().map(|queue| Name::stored(queue)).collect()),
        },
        serves: row.opt_text("serves")?.map(|text| serves_from_json(&text)).transpose()?,
        parent: row.opt_uuid("parent")?.map(TokenId::new),
        created_by: row.text("created_by")?,
        created_at: row.time("created_at")?,
        expires_at: row.opt_time("expires_at")?,
        revoked_at: row.opt_time("revoked_at")?,
        revoked_by: row.opt_text("revoked_by")?,
        used_at: row.opt_time("used_at")?,
    })
}

/// Encodes a list of tenants, or `null` for all tenants.
fn serves_to_json(serves: &Serves) -> String {
    match serves {
        Serves::Everyone => "null".into(),
        Serves::Tenants(tenants) => {
            to_json(&tenants.iter().map(|(id, name)| (id.0, name.as_str())).collect::<Vec<_>>())
        }
    }
}

fn serves_from_json(text: &str) -> Result<Serves, StoreError> {
    let tenants: Option<Vec<(i64, String)>> = from_json(text)?;
    let read = |(id, name): (i64, String)| (TenantId(id), Name::stored(&name));
    Ok(tenants.map_or(Serves::Everyone, |tenants| Serves::Tenants(tenants.into_iter().map(read).collect())))
}

const VERSION: Sql = Sql::both(&["select version from access where id = 1"]);
const MOVE: Sql = Sql::both(&["update access set version = version + 1 where id = 1 returning version"]);

/// Returns the version of the token state. It is 0 until the first token is created.
pub(crate) async fn version(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let row = tx.query_opt(&VERSION, &[]).await?;
    row.ok_or_else(|| StoreError::unexpected("the row of access is missing"))?.int("version")
}

/// Increments the version, so that every node drops its cached tokens. Returns the new version.
pub(crate) async fn move_version(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let row = tx.query_opt(&MOVE, &[]).await?;
    row.ok_or_else(|| StoreError::unexpected("the row of access is missing"))?.int("version")
}
