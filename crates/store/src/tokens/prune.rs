//! Forgets tokens that ended long ago (X13).

use domain::TenantId;
use domain::limits::{ENDED_TOKEN_RETENTION_S, MAINTENANCE_ROWS};
use uuid::Uuid;

use crate::clock::uuids_from;
use crate::error::StoreError;
use crate::store::Store;
use crate::tokens::standing::LOCAL;
use crate::tx::{Column, Operation, Param, Sql, Tx};

impl Store {
    /// One bounded round; gives how many went.
    pub async fn prune_tokens(&self) -> Result<u64, StoreError> {
        // Where it holds up nobody who writes: all that are old and live are passed over.
        let ended = self.read(Ended).await?;
        if ended.is_empty() { Ok(0) } else { self.write(Prune { ended }).await }
    }
}

struct Ended;

// What ended before was made before. Those of the operator's name stay: they say that the name was taken over.
const ENDED: Sql = Sql::both(&["select id from tokens where id < $1 and (revoked_at < $2 or expires_at < $2)
         and not (tenant = $3 and name = $4) order by id limit $5"]);

impl Operation for Ended {
    type Output = Vec<Uuid>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Uuid>, StoreError> {
        let before = tx.now().plus_s(-ENDED_TOKEN_RETENTION_S);
        let params = [
            Param::Uuid(uuids_from(before)),
            Param::Time(before),
            Param::Int(TenantId::DEFAULT.0),
            Param::Text(LOCAL),
            Param::Int(MAINTENANCE_ROWS as i64),
        ];
        tx.query(&ENDED, &params).await?.iter().map(|row| row.uuid(0)).collect()
    }
}

/// What has ended stays ended.
struct Prune {
    ended: Vec<Uuid>,
}

const PRUNE: Sql = Sql::new(&["delete from tokens where id = $1"], "delete from tokens where id = any($1::uuid[])");
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, 'tokens', $2, $3)"]);

impl Operation for Prune {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let pruned = tx.execute_each(&PRUNE, &[Column::uuids(self.ended.iter().copied())], &[]).await?;
        if pruned > 0 {
            let why = format!("tokens are kept {ENDED_TOKEN_RETENTION_S} s after they end");
            tx.execute(&LOG, &[Param::Time(tx.now()), Param::Int(pruned as i64), Param::Text(&why)]).await?;
        }
        Ok(pruned)
    }
}
