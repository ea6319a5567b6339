//! Page sessions: short-lived secrets in a cookie that stand for a token in the dashboard. The database stores only the
//! hash of the secret.

use domain::limits::{SESSION_GRACE_S, SESSION_IDLE_S, SESSIONS_PER_TOKEN};
use domain::{TenantId, Time, TokenId};
use serde_json::json;

use crate::access::tokens::authenticate::MAX_CACHE_AGE;
use crate::access::tokens::{Hash, Token, move_version, read, version};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

impl Store {
    /// Begins a session for a token. `hash` is the hash of the session's new secret.
    pub async fn begin_session(&self, token: &Token, hash: Hash) -> Result<(), StoreError> {
        self.write(BeginSession { token: token.id, tenant: token.tenant, name: token.name.to_string(), hash }).await
    }

    /// Replaces the session's secret. The old secret stays valid for `SESSION_GRACE_S`, for requests in flight.
    ///
    /// Returns false if the session has ended or was already rotated.
    pub async fn rotate_session(&self, old: Hash, new: Hash) -> Result<bool, StoreError> {
        let rotated = self.write(RotateSession { old, new }).await?;
        self.tokens().invalidate();
        Ok(rotated)
    }

    /// Ends a session. Once this returns, no node accepts it.
    pub async fn end_session(&self, hash: Hash) -> Result<(), StoreError> {
        self.write(EndSession { hash }).await?;
        self.tokens().invalidate();
        tokio::time::sleep(MAX_CACHE_AGE).await;
        Ok(())
    }

    /// Deletes expired sessions and returns their number.
    pub async fn prune_sessions(&self) -> Result<u64, StoreError> {
        self.write(PruneSessions).await
    }
}

struct BeginSession {
    token: TokenId,
    tenant: TenantId,
    name: String,
    hash: Hash,
}

const COUNT: Sql = Sql::both(&["select count(*) as sessions from sessions where token = $1"]);
const OLDEST: Sql = Sql::both(&["delete from sessions where hash =
         (select hash from sessions where token = $1 order by began_at, hash limit 1)"]);
const INSERT: Sql = Sql::both(&["insert into sessions (hash, token, began_at, expires_at) values ($1, $2, $3, $4)"]);

impl Operation for BeginSession {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let token = [Param::Uuid(self.token.uuid())];
        let count = tx.query_opt(&COUNT, &token).await?.map(|row| row.int("sessions")).transpose()?.unwrap_or(0);
        if count as usize >= SESSIONS_PER_TOKEN {
            tx.execute(&OLDEST, &token).await?;
            // Other nodes may have cached the deleted session.
            move_version(tx).await?;
        }
        let now = tx.now();
        insert(tx, &self.hash, self.token, now, now.plus_s(SESSION_IDLE_S)).await?;
        let detail = json!({"token": self.name, "id": self.token.uuid()}).to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.name, "signed_in", detail)]).await
    }
}

async fn insert(tx: &mut Tx<'_>, hash: &Hash, token: TokenId, now: Time, until: Time) -> Result<(), StoreError> {
    let params = [Param::Blob(hash), Param::Uuid(token.uuid()), Param::Time(now), Param::Time(until)];
    tx.execute(&INSERT, &params).await.map(|_| ())
}

struct RotateSession {
    old: Hash,
    new: Hash,
}

const SHORTEN: Sql =
    Sql::both(&["update sessions set expires_at = $2 where hash = $1 and expires_at > $2 returning token"]);

impl Operation for RotateSession {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = tx.now();
        let grace = now.plus_s(SESSION_GRACE_S);
        // If two requests rotate concurrently, the second finds the old secret already shortened and does nothing.
        let Some(row) = tx.query_opt(&SHORTEN, &[Param::Blob(&self.old), Param::Time(grace)]).await? else {
            return Ok(false);
        };
        insert(tx, &self.new, TokenId::new(row.uuid("token")?), now, now.plus_s(SESSION_IDLE_S)).await?;
        // Nodes that cached the old secret must reload its new expiry.
        move_version(tx).await?;
        Ok(true)
    }
}

struct EndSession {
    hash: Hash,
}

const DELETE: Sql = Sql::both(&["delete from sessions where hash = $1"]);

impl Operation for EndSession {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&DELETE, &[Param::Blob(&self.hash)]).await?;
        move_version(tx).await.map(|_| ())
    }
}

struct PruneSessions;

const EXPIRED: Sql = Sql::both(&["delete from sessions where expires_at <= $1"]);

impl Operation for PruneSessions {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.execute(&EXPIRED, &[Param::Time(tx.now())]).await
    }
}

pub(crate) struct FindSession {
    pub(crate) hash: Hash,
}

const FIND: Sql = Sql::both(&["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues,
         t.serves, t.parent, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at,
         s.expires_at as session_expires_at, s.began_at
     from sessions s join tokens t on t.id = s.token join tenants n on n.id = t.tenant where s.hash = $1"]);

impl Operation for FindSession {
    type Output = (i64, Option<(Token, Time)>);

    /// Returns the version of `access`, the token (with an expiry no later than the session's) and the time at which the
    /// session received its secret.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let version = version(tx).await?;
        let Some(row) = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await? else { return Ok((version, None)) };
        let mut token = read(&row)?;
        let until = row.time("session_expires_at")?;
        token.expires_at = Some(token.expires_at.map_or(until, |at| at.min(until)));
        Ok((version, Some((token, row.time("began_at")?))))
    }
}
