//! Page sessions: a token's stand-in while a person looks at pages. Only the hash of its secret is kept.

use domain::limits::{SESSION_GRACE_S, SESSION_S, SESSIONS_PER_TOKEN};
use domain::{TenantId, Time, TokenId};
use serde_json::json;

use crate::error::StoreError;
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::tokens::authenticate::TRUST;
use crate::tokens::{Hash, Token, move_version, read, version};
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Begins a session of this token under the hash of a fresh secret.
    pub async fn begin_session(&self, token: &Token, hash: Hash) -> Result<(), StoreError> {
        self.write(Begin { token: token.id, tenant: token.tenant, name: token.name.to_string(), hash }).await
    }

    /// Gives the session another secret. The old one holds a moment longer, for requests that are under way.
    pub async fn rotate_session(&self, old: Hash, new: Hash) -> Result<bool, StoreError> {
        let rotated = self.write(Rotate { old, new }).await?;
        self.tokens().forget();
        Ok(rotated)
    }

    /// Ends a session: once this returns no node takes it.
    pub async fn end_session(&self, hash: Hash) -> Result<(), StoreError> {
        self.write(End { hash }).await?;
        self.tokens().forget();
        tokio::time::sleep(TRUST).await;
        Ok(())
    }

    /// Forgets sessions whose time is over; gives how many.
    pub async fn prune_sessions(&self) -> Result<u64, StoreError> {
        self.write(Prune).await
    }
}

struct Begin {
    token: TokenId,
    tenant: TenantId,
    name: String,
    hash: Hash,
}

const COUNT: Sql = Sql::both(&["select count(*) from sessions where token = $1"]);
const OLDEST: Sql = Sql::both(&["delete from sessions where hash =
         (select hash from sessions where token = $1 order by began_at, hash limit 1)"]);
const INSERT: Sql = Sql::both(&["insert into sessions (hash, token, began_at, expires_at) values ($1, $2, $3, $4)"]);

impl Operation for Begin {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let token = [Param::Uuid(self.token.uuid())];
        let count = tx.query_opt(&COUNT, &token).await?.map(|row| row.int(0)).transpose()?.unwrap_or(0);
        if count as usize >= SESSIONS_PER_TOKEN {
            tx.execute(&OLDEST, &token).await?;
            // Nodes may remember the one that went.
            move_version(tx).await?;
        }
        let now = tx.now();
        insert(tx, &self.hash, self.token, now, now.plus_s(SESSION_S)).await?;
        let detail = json!({"token": self.name, "id": self.token.uuid()}).to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.name, "signed_in", detail)]).await
    }
}

async fn insert(tx: &mut Tx<'_>, hash: &Hash, token: TokenId, now: Time, until: Time) -> Result<(), StoreError> {
    let params = [Param::Blob(hash), Param::Uuid(token.uuid()), Param::Time(now), Param::Time(until)];
    tx.execute(&INSERT, &params).await.map(|_| ())
}

struct Rotate {
    old: Hash,
    new: Hash,
}

const SHORTEN: Sql =
    Sql::both(&["update sessions set expires_at = $2 where hash = $1 and expires_at > $2 returning token"]);

impl Operation for Rotate {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let now = tx.now();
        let grace = now.plus_s(SESSION_GRACE_S);
        // Of two requests that would rotate at once, one finds the old secret shortened already.
        let Some(row) = tx.query_opt(&SHORTEN, &[Param::Blob(&self.old), Param::Time(grace)]).await? else {
            return Ok(false);
        };
        insert(tx, &self.new, TokenId::new(row.uuid(0)?), now, now.plus_s(SESSION_S)).await?;
        // Nodes that remember the old secret must learn when it ends.
        move_version(tx).await?;
        Ok(true)
    }
}

struct End {
    hash: Hash,
}

const DELETE: Sql = Sql::both(&["delete from sessions where hash = $1"]);

impl Operation for End {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&DELETE, &[Param::Blob(&self.hash)]).await?;
        move_version(tx).await.map(|_| ())
    }
}

struct Prune;

const EXPIRED: Sql = Sql::both(&["delete from sessions where expires_at <= $1"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        tx.execute(&EXPIRED, &[Param::Time(tx.now())]).await
    }
}

pub(crate) struct FindSession {
    pub(crate) hash: Hash,
}

const FIND: Sql = Sql::both(&["select t.id, t.tenant, n.name, t.name, t.role, t.rights, t.queues, t.serves, t.parent,
         t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at, s.expires_at, s.began_at
     from sessions s join tokens t on t.id = s.token join tenants n on n.id = t.tenant where s.hash = $1"]);

impl Operation for FindSession {
    type Output = (i64, Option<(Token, Time)>);

    /// The token, ending no later than the session does, and when the session got its secret.
    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let version = version(tx).await?;
        let Some(row) = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await? else { return Ok((version, None)) };
        let mut token = read(&row)?;
        let until = row.time(15)?;
        token.expires_at = Some(token.expires_at.map_or(until, |at| at.min(until)));
        Ok((version, Some((token, row.time(16)?))))
    }
}
