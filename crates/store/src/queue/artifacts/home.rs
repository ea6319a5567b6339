//! Verifies that all nodes use the same blob location. The location holds a marker, an empty blob whose name is stored
//! in the database. A node with another location could not read the other nodes' blobs and would record their garbage
//! as deleted.

use std::fmt::Write;
use std::path::Path;

use super::Blobs;
use crate::db::clock::fill_random;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Returns an error with instructions if the location has no marker of this database. The first location that is
    /// checked becomes the database's location. Always succeeds on SQLite, which has a single node.
    pub async fn check_blob_location(&self, blobs: &Blobs) -> Result<(), StoreError> {
        if !self.is_postgres() {
            return Ok(());
        }
        let marker = match self.read(ReadMarker).await? {
            Some(marker) => marker,
            None => self.create_marker(blobs).await?,
        };
        check(blobs, &marker).await
    }

    /// Returns what is wrong with a folder without creating anything. `None` if the folder is right or the database
    /// has no location yet.
    pub async fn inspect_blob_location(&self, folder: &Path) -> Result<Option<String>, StoreError> {
        let Some(marker) = self.read(ReadMarker).await? else { return Ok(None) };
        let checked = async { check(&Blobs::existing(folder)?, &marker).await }.await;
        match checked {
            Err(StoreError::Unusable(why)) => Ok(Some(why)),
            checked => checked.map(|()| None),
        }
    }

    /// Creates a marker and stores its name. If another node was first, its marker is returned.
    async fn create_marker(&self, blobs: &Blobs) -> Result<String, StoreError> {
        let mut random = [0u8; 8];
        fill_random(&mut random);
        let mut marker = String::new();
        random.iter().for_each(|byte| write!(marker, "{byte:02x}").expect("writing to a string never fails"));
        blobs.put_empty(&marker_location(&marker)).await?;
        let stored = self.write(StoreMarker { marker: marker.clone() }).await?;
        if stored != marker {
            // A failure leaves one superfluous empty blob.
            let _ = blobs.delete(&marker_location(&marker)).await;
        }
        Ok(stored)
    }
}

fn marker_location(marker: &str) -> String {
    format!("windlass-artifacts-{marker}")
}

async fn check(blobs: &Blobs, marker: &str) -> Result<(), StoreError> {
    let marker_location = marker_location(marker);
    if blobs.has(&marker_location).await? {
        return Ok(());
    }
    let (place, kind) = (blobs.display_name(), blobs.kind());
    Err(StoreError::Unusable(format!(
        "{place} is not the {kind} that the other nodes use for large artifacts: this node cannot read their artifacts, \
         nor they those stored here, and nothing is deleted here; give all nodes one shared folder or one bucket \
         (--artifacts PATH or s3://BUCKET/PREFIX). If it is the right {kind}, create the empty file \
         {place}/{marker_location}"
    )))
}

struct ReadMarker;

const READ: Sql = Sql::both(&["select artifacts from installation where id = 1"]);

impl Operation for ReadMarker {
    type Output = Option<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<String>, StoreError> {
        let row = tx.query_opt(&READ, &[]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no row"))?.opt_text("artifacts")
    }
}

struct StoreMarker {
    marker: String,
}

const STORE: Sql =
    Sql::both(&["update installation set artifacts = coalesce(artifacts, $1) where id = 1 returning artifacts"]);

impl Operation for StoreMarker {
    /// The marker in effect.
    type Output = String;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<String, StoreError> {
        let row = tx.query_opt(&STORE, &[Param::Text(&self.marker)]).await?;
        row.ok_or_else(|| StoreError::unexpected("the installation has no row"))?.text("artifacts")
    }
}
