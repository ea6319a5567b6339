//! Deletes tokens that were revoked or expired more than `ENDED_TOKEN_RETENTION_S` ago.

use domain::TenantId;
use domain::limits::{ENDED_TOKEN_RETENTION_S, MAINTENANCE_ROWS};
use uuid::Uuid;

use crate::access::tokens::principal_rights::LOCAL;
use crate::db::clock::uuids_from;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Runs one bounded pass and returns the number of deleted tokens.
    pub async fn prune_tokens(&self) -> Result<u64, StoreError> {
        // The scan skips every old token that is still live, so it runs in a read transaction and blocks no writer.
        let ended = self.read(FindEndedTokens).await?;
        if ended.is_empty() { Ok(0) } else { self.write(DeleteEndedTokens { ended }).await }
    }
}

struct FindEndedTokens;

// A token that ended before the cutoff was also created before it, so the id bounds the scan. Tokens named `local` stay:
// they record that the name was taken over (see `principal_rights`).
const ENDED: Sql = Sql::both(&["select id from tokens where id < $1 and (revoked_at < $2 or expires_at < $2)
         and not (tenant = $3 and name = $4) order by id limit $5"]);

impl Operation for FindEndedTokens {
    type Output = Vec<Uuid>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Uuid>, StoreError> {
        let cutoff = tx.now().plus_s(-ENDED_TOKEN_RETENTION_S);
        let params = [
            Param::Uuid(uuids_from(cutoff)),
            Param::Time(cutoff),
            Param::Int(TenantId::DEFAULT.0),
            Param::Text(LOCAL),
            Param::Int(MAINTENANCE_ROWS as i64),
        ];
        tx.query(&ENDED, &params).await?.iter().map(|row| row.uuid("id")).collect()
    }
}

/// Deletes by id without another check: a token that has ended stays ended.
struct DeleteEndedTokens {
    ended: Vec<Uuid>,
}

const PRUNE: Sql = Sql::new(&["delete from tokens where id = $1"], "delete from tokens where id = any($1::uuid[])");
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'tokens', $2, $3)"]);

impl Operation for DeleteEndedTokens {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let pruned = tx.execute_each(&PRUNE, &[Column::uuids(self.ended.iter().copied())], &[]).await?;
        if pruned > 0 {
            let why = format!("ended tokens are retained for {ENDED_TOKEN_RETENTION_S} s");
            tx.execute(&LOG, &[Param::Time(tx.now()), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
