//! Deletes expired files, and batches past their retention. Called by the prune task.

use domain::limits::{BATCH_RETENTION_S, MAINTENANCE_ROWS};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Deletes one bounded batch of rows. Returns their number.
    pub async fn prune_files_and_batches(&self) -> Result<u64, StoreError> {
        self.write(PruneFilesAndBatches).await
    }
}

struct PruneFilesAndBatches;

// A file that a batch has not read completely remains.
const EXPIRED: Sql = Sql::both(&["select f.id, f.location from openai_files f
     where f.expires_at <= $1 and not exists (select 1 from openai_batches b
         where b.ended_at is null and b.tenant = f.tenant and b.input_file = f.id
             and (b.status = 'validating' or b.made < b.total))
     order by f.expires_at limit $2"]);
const GARBAGE: Sql = Sql::both(&["insert into blob_garbage (location, since) values ($1, $2) on conflict do nothing"]);
const DELETE: Sql = Sql::both(&["delete from openai_files where id = $1"]);
const OLD_BATCHES: Sql = Sql::both(&["delete from openai_batches where id in (
         select id from openai_batches where ended_at < $1 order by ended_at limit $2)"]);
const LOG: Sql = Sql::both(&["insert into prunings (at, kind, rows_pruned, why) values ($1, $2, $3, $4)"]);

impl Operation for PruneFilesAndBatches {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let rows = Param::Int(MAINTENANCE_ROWS as i64);
        let mut files = 0;
        for row in tx.query(&EXPIRED, &[Param::Time(now), rows]).await? {
            if let Some(location) = row.opt_text("location")? {
                tx.execute(&GARBAGE, &[Param::Text(&location), Param::Time(now)]).await?;
            }
            files += tx.execute(&DELETE, &[Param::Text(&row.text("id")?)]).await?;
        }
        let batches = tx.execute(&OLD_BATCHES, &[Param::Time(now.plus_s(-BATCH_RETENTION_S)), rows]).await?;
        let retention = format!("batch retention is {BATCH_RETENTION_S} s after the end");
        for (kind, count, why) in
            [("files", files, "the files' retention has passed"), ("batches", batches, retention.as_str())]
        {
            if count > 0 {
                let params = [Param::Time(now), Param::Text(kind), Param::Int(count as i64), Param::Text(why)];
                tx.execute(&LOG, &params).await?;
            }
        }
        Ok(files + batches)
    }
}
