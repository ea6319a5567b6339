//! Garbage collection of blobs that no row names: blobs of pruned jobs and of rejected, interrupted or killed uploads.
//! The engine's garbage task calls it.
//!
//! A garbage row is marked as condemned before its blob is deleted. An upload makes its blob visible by deleting its
//! own garbage row, which fails for a condemned row. So a visible artifact always has its blob, whatever the timing.

use domain::Time;
use domain::limits::{CONCURRENT_BLOB_DELETES, MAINTENANCE_ROWS, MAX_COUNTED_ROWS};
use futures_util::future::join_all;

use super::Blobs;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Minimum age. A younger blob may belong to an active upload, which renews its row well before. A condemned row stays
/// untouched for as long, for the node that condemned it and after a failed delete.
const MIN_AGE_S: i64 = 3_600;

/// Value of `since` that marks a condemned row.
const CONDEMNED: Time = Time::from_micros(0);

impl Store {
    /// Runs one bounded round and returns the number of deleted blobs. Failed deletes are retried later.
    pub async fn collect_garbage(&self, blobs: &Blobs) -> Result<usize, StoreError> {
        // In a wrong location no blob would be found, and all of them would be recorded as deleted.
        self.check_blob_location(blobs).await?;
        let condemned = self.write(Condemn).await?;
        let mut deleted_locations = Vec::new();
        for batch in condemned.chunks(CONCURRENT_BLOB_DELETES) {
            let deleted = join_all(batch.iter().map(|location| blobs.delete(location))).await;
            let before = deleted_locations.len();
            for (location, deleted) in batch.iter().zip(deleted) {
                match deleted {
                    Ok(()) => deleted_locations.push(location.clone()),
                    Err(error) => tracing::warn!(location, %error, "cannot delete a blob; will retry later"),
                }
            }
            // Every delete of the batch failed: the location itself is unavailable.
            if deleted_locations.len() == before {
                break;
            }
        }
        let deleted = deleted_locations.len();
        if deleted > 0 {
            self.write(DeleteGarbageRows { locations: deleted_locations }).await?;
        }
        Ok(deleted)
    }

    /// Returns the number of garbage rows, including those of active uploads, counted up to `MAX_COUNTED_ROWS`.
    pub async fn count_garbage(&self) -> Result<usize, StoreError> {
        self.read(CountGarbage).await
    }

    /// Registers a blob as garbage before it is written.
    pub(super) async fn record_upload(&self, location: String) -> Result<(), StoreError> {
        self.write(RecordUpload { location }).await
    }

    pub(super) async fn delete_garbage_row(&self, location: String) -> Result<(), StoreError> {
        self.write(DeleteGarbageRows { locations: vec![location] }).await
    }
}

struct Condemn;

// Rows that were never tried come first.
const OLD: Sql = Sql::new(
    &["select location from blob_garbage where tried_at < $1 and since < $1 order by tried_at, since limit $2"],
    "select location from blob_garbage where tried_at < $1 and since < $1 order by tried_at, since limit $2
     for update skip locked",
);
const CONDEMN: Sql = Sql::new(
    &["update blob_garbage set since = $2, tried_at = $3 where location = $1"],
    "update blob_garbage set since = $2, tried_at = $3 where location = any($1::text[])",
);

impl Operation for Condemn {
    type Output = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let params = [Param::Time(tx.now().plus_s(-MIN_AGE_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let rows = tx.query(&OLD, &params).await?;
        let locations = rows.iter().map(|row| row.text("location")).collect::<Result<Vec<_>, _>>()?;
        let condemned = [Column::texts(locations.iter().map(String::as_str))];
        let now = Param::Time(tx.now());
        tx.execute_each(&CONDEMN, &condemned, &[Param::Time(CONDEMNED), now]).await?;
        Ok(locations)
    }
}

struct CountGarbage;

const COUNT: Sql = Sql::both(&["select count(*) as blobs from (select location from blob_garbage limit $1) found"]);

impl Operation for CountGarbage {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let row = tx.query_opt(&COUNT, &[Param::Int(MAX_COUNTED_ROWS as i64)]).await?;
        Ok(row.map(|row| row.int("blobs")).transpose()?.unwrap_or(0) as usize)
    }
}

struct DeleteGarbageRows {
    locations: Vec<String>,
}

const DELETE: Sql = Sql::new(
    &["delete from blob_garbage where location = $1"],
    "delete from blob_garbage where location = any($1::text[])",
);

impl Operation for DeleteGarbageRows {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let locations = [Column::texts(self.locations.iter().map(String::as_str))];
        tx.execute_each(&DELETE, &locations, &[]).await.map(|_| ())
    }
}

struct RecordUpload {
    location: String,
}

// Renewed while the upload lasts. A condemned row stays condemned.
const UPSERT: Sql = Sql::both(&["insert into blob_garbage (location, since) values ($1, $2)
     on conflict (location) do update set since = excluded.since where blob_garbage.since > $3"]);

impl Operation for RecordUpload {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        record_garbage(tx, &self.location).await
    }
}

/// Registers a blob that no row names, or none names yet.
pub(super) async fn record_garbage(tx: &mut Tx<'_>, location: &str) -> Result<(), StoreError> {
    let params = [Param::Text(location), Param::Time(tx.now()), Param::Time(CONDEMNED)];
    tx.execute(&UPSERT, &params).await.map(|_| ())
}

const REMOVE_RECORD: Sql = Sql::both(&["delete from blob_garbage where location = $1 and since > $2"]);

/// Deletes the garbage row in the transaction that names the blob. Fails if the row is condemned.
pub(super) async fn remove_record(tx: &mut Tx<'_>, location: &str) -> Result<(), StoreError> {
    match tx.execute(&REMOVE_RECORD, &[Param::Text(location), Param::Time(CONDEMNED)]).await? {
        0 => Err(StoreError::unavailable(
            "the upload stalled for so long that its blob was collected as garbage; upload again",
        )),
        _ => Ok(()),
    }
}
