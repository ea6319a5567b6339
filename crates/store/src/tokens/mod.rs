//! Tokens (X7): made, listed, revoked, and asked about with every request. Only their hashes are kept.

pub mod authenticate;
pub mod create;
pub mod list;
pub mod prune;
pub mod revoke;
pub mod standing;

use std::sync::Arc;

use domain::{Access, Name, Right, Role, TenantId, Time, TokenId, TokenText};
use sha2::{Digest, Sha256};

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::tx::{Row, Sql, Tx};

/// A token as everyone may know it: all but its text.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    pub id: TokenId,
    pub tenant: TenantId,
    pub tenant_name: Name,
    pub name: Arc<str>,
    pub access: Access,
    /// Whose work a worker of the built-in tenant may take.
    pub serves: Option<Serves>,
    /// With whose token it was made; none when it was made on the machine.
    pub parent: Option<TokenId>,
    pub created_by: String,
    pub created_at: Time,
    pub expires_at: Option<Time>,
    pub revoked_at: Option<Time>,
    pub revoked_by: Option<String>,
    /// The minute of its last use, roughly.
    pub used_at: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Serves {
    Everyone,
    /// By id and name; neither ever changes.
    Tenants(Vec<(TenantId, Name)>),
}

impl Token {
    pub fn is_alive(&self, now: Time) -> bool {
        self.revoked_at.is_none() && self.expires_at.is_none_or(|at| at > now)
    }
}

pub type Hash = [u8; 32];

pub(crate) fn hash(text: &TokenText) -> Hash {
    Sha256::digest(text.as_str()).into()
}

pub(crate) fn read(row: &Row) -> Result<Token, StoreError> {
    let role = row.text(4)?;
    let rights: Vec<String> = from_json(&row.text(5)?)?;
    let queues: Option<Vec<String>> = row.opt_text(6)?.map(|text| from_json(&text)).transpose()?;
    Ok(Token {
        id: TokenId::new(row.uuid(0)?),
        tenant: TenantId(row.int(1)?),
        tenant_name: Name::stored(&row.text(2)?),
        name: row.text(3)?.into(),
        access: Access {
            role: role.parse::<Role>().map_err(|_| StoreError::unexpected(format!("role {role}")))?,
            // A right this program does not know is one it cannot give.
            granted: rights.iter().filter_map(|right| Right::grantable(right).ok()).collect(),
            queues: queues.map(|queues| queues.iter().map(|queue| Name::stored(queue)).collect()),
        },
        serves: row.opt_text(7)?.map(|text| serves_from_json(&text)).transpose()?,
        parent: row.opt_uuid(8)?.map(TokenId::new),
        created_by: row.text(9)?,
        created_at: row.time(10)?,
        expires_at: row.opt_time(11)?,
        revoked_at: row.opt_time(12)?,
        revoked_by: row.opt_text(13)?,
        used_at: row.opt_time(14)?,
    })
}

/// A list of tenants, or `null` for all of them.
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

/// 0 while no token was ever made.
pub(crate) async fn version(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let row = tx.query_opt(&VERSION, &[]).await?;
    row.ok_or_else(|| StoreError::unexpected("the row of access is missing"))?.int(0)
}

/// Tells every node that what it remembers of tokens may be wrong.
pub(crate) async fn move_version(tx: &mut Tx<'_>) -> Result<i64, StoreError> {
    let row = tx.query_opt(&MOVE, &[]).await?;
    row.ok_or_else(|| StoreError::unexpected("the row of access is missing"))?.int(0)
}
