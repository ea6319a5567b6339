//! Deletes blobs that no artifact names: of pruned jobs, of uploads that were refused, broken off or killed.
//!
//! A row is condemned before its blob is deleted. An upload makes its blob visible only by taking back its own row, and
//! cannot take back a condemned one: whatever the timing, a visible artifact keeps its blob.

use domain::Time;
use domain::limits::MAINTENANCE_ROWS;

use super::Blobs;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// Younger blobs may belong to an upload under way, which renews its row long before this.
const KEEP_S: i64 = 3_600;

/// The time that marks a condemned row.
const CONDEMNED: Time = Time::from_micros(0);

impl Store {
    /// One bounded round; gives how many blobs it deleted. What cannot be deleted now is tried again next time.
    pub async fn collect_garbage(&self, blobs: &Blobs) -> Result<usize, StoreError> {
        let mut deleted = 0;
        for location in self.write(Condemn).await? {
            match blobs.delete(&location).await {
                Ok(()) => {
                    self.write(Forget { location }).await?;
                    deleted += 1;
                }
                Err(error) => tracing::warn!(location, %error, "a blob could not be deleted"),
            }
        }
        Ok(deleted)
    }

    /// Puts a blob on record before it is written.
    pub(super) async fn intend_blob(&self, location: String) -> Result<(), StoreError> {
        self.write(Intend { location }).await
    }

    pub(super) async fn forget_blob(&self, location: String) -> Result<(), StoreError> {
        self.write(Forget { location }).await
    }
}

struct Condemn;

const OLD: Sql = Sql::new(
    &["select location from blob_garbage where since < $1 order by since, location limit $2"],
    "select location from blob_garbage where since < $1 order by since, location limit $2 for update skip locked",
);
const CONDEMN: Sql = Sql::both(&["update blob_garbage set since = $2 where location = $1"]);

impl Operation for Condemn {
    type Output = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let params = [Param::Time(tx.now().plus_s(-KEEP_S)), Param::Int(MAINTENANCE_ROWS as i64)];
        let mut locations = Vec::new();
        for row in tx.query(&OLD, &params).await? {
            let location = row.text(0)?;
            tx.execute(&CONDEMN, &[Param::Text(&location), Param::Time(CONDEMNED)]).await?;
            locations.push(location);
        }
        Ok(locations)
    }
}

struct Forget {
    location: String,
}

const FORGET: Sql = Sql::both(&["delete from blob_garbage where location = $1"]);

impl Operation for Forget {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        tx.execute(&FORGET, &[Param::Text(&self.location)]).await.map(|_| ())
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
        let params = [Param::Text(&self.location), Param::Time(tx.now()), Param::Time(CONDEMNED)];
        tx.execute(&INTEND, &params).await.map(|_| ())
    }
}

const TAKE_BACK: Sql = Sql::both(&["delete from blob_garbage where location = $1 and since > $2"]);

/// The blob is garbage no more, in the transaction that names it.
pub(super) async fn take_back(tx: &mut Tx<'_>, location: &str) -> Result<(), StoreError> {
    match tx.execute(&TAKE_BACK, &[Param::Text(location), Param::Time(CONDEMNED)]).await? {
        0 => Err(StoreError::unavailable("the upload stood still for so long that its blob was given up")),
        _ => Ok(()),
    }
}
