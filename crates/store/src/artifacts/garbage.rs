//! Deletes blobs that no artifact names: of pruned jobs, of uploads that were refused, broken off or killed.
//!
//! A row is condemned before its blob is deleted. An upload makes its blob visible only by taking back its own row, and
//! cannot take back a condemned one: whatever the timing, a visible artifact keeps its blob.

use domain::Time;
use domain::limits::{BLOBS_DELETED_AT_ONCE, COUNTED, MAINTENANCE_ROWS};
use futures_util::future::join_all;

use super::Blobs;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Sql, Tx};

/// Younger blobs may belong to an upload under way, which renews its row long before this. So long is a condemned one left
/// to the node that took it, and alone when it could not be deleted.
const KEEP_S: i64 = 3_600;

/// The time that marks a condemned row.
const CONDEMNED: Time = Time::from_micros(0);

impl Store {
    /// One bounded round; gives how many blobs it deleted. What cannot be deleted now is tried again later.
    pub async fn collect_garbage(&self, blobs: &Blobs) -> Result<usize, StoreError> {
        // In another place nothing would be found, and all of it would be taken for deleted.
        self.check_home(blobs).await?;
        let condemned = self.write(Condemn).await?;
        let mut gone = Vec::new();
        for some in condemned.chunks(BLOBS_DELETED_AT_ONCE) {
            let deleted = join_all(some.iter().map(|location| blobs.delete(location))).await;
            let before = gone.len();
            for (location, deleted) in some.iter().zip(deleted) {
                match deleted {
                    Ok(()) => gone.push(location.clone()),
                    Err(error) => tracing::warn!(location, %error, "a blob could not be deleted"),
                }
            }
            // The place itself is in trouble.
            if gone.len() == before {
                break;
            }
        }
        let deleted = gone.len();
        if deleted > 0 {
            self.write(Forget { locations: gone }).await?;
        }
        Ok(deleted)
    }

    /// How many blobs are on record that no row names, those of uploads under way among them; counted up to a bound.
    pub async fn garbage_on_record(&self) -> Result<usize, StoreError> {
        self.read(Count).await
    }

    /// Puts a blob on record before it is written.
    pub(super) async fn intend_blob(&self, location: String) -> Result<(), StoreError> {
        self.write(Intend { location }).await
    }

    pub(super) async fn forget_blob(&self, location: String) -> Result<(), StoreError> {
        self.write(Forget { locations: vec![location] }).await
    }
}

struct Condemn;

// Those that were never tried come first.
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
        let params = [Param::Time(tx.now().plus_s(-KEEP_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let rows = tx.query(&OLD, &params).await?;
        let locations = rows.iter().map(|row| row.text(0)).collect::<Result<Vec<_>, _>>()?;
        let condemned = [Column::texts(locations.iter().map(String::as_str))];
        let now = Param::Time(tx.now());
        tx.execute_each(&CONDEMN, &condemned, &[Param::Time(CONDEMNED), now]).await?;
        Ok(locations)
    }
}

struct Count;

const COUNT: Sql = Sql::both(&["select count(*) from (select location from blob_garbage limit $1) found"]);

impl Operation for Count {
    type Output = usize;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let row = tx.query_opt(&COUNT, &[Param::Int(COUNTED as i64)]).await?;
        Ok(row.map(|row| row.int(0)).transpose()?.unwrap_or(0) as usize)
    }
}

struct Forget {
    locations: Vec<String>,
}

const FORGET: Sql = Sql::new(
    &["delete from blob_garbage where location = $1"],
    "delete from blob_garbage where location = any($1::text[])",
);

impl Operation for Forget {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let locations = [Column::texts(self.locations.iter().map(String::as_str))];
        tx.execute_each(&FORGET, &locations, &[]).await.map(|_| ())
    }
}

struct Intend {
    location: String,
}

// Said again while the upload lasts; a condemned row stays condemned.
const INTEND: Sql = Sql::both(&["insert into blob_garbage (location, since) values ($1, $2)
     on conflict (location) do update set since = excluded.since where blob_garbage.since > $3"]);

impl Operation for Intend {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        put_on_record(tx, &self.location).await
    }
}

/// No row names the blob, or none does yet.
pub(super) async fn put_on_record(tx: &mut Tx<'_>, location: &str) -> Result<(), StoreError> {
    let params = [Param::Text(location), Param::Time(tx.now()), Param::Time(CONDEMNED)];
    tx.execute(&INTEND, &params).await.map(|_| ())
}

const TAKE_BACK: Sql = Sql::both(&["delete from blob_garbage where location = $1 and since > $2"]);

/// The blob is garbage no more, in the transaction that names it.
pub(super) async fn take_back(tx: &mut Tx<'_>, location: &str) -> Result<(), StoreError> {
    match tx.execute(&TAKE_BACK, &[Param::Text(location), Param::Time(CONDEMNED)]).await? {
        0 => Err(StoreError::unavailable("the upload stood still for so long that its blob was given up")),
        _ => Ok(()),
    }
}
