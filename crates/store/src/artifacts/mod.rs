//! Artifacts: named blobs of a job, one per (job, name), visible only when whole (Q9).
//!
//! Small ones live in their row. Larger ones are streamed into a folder or a bucket under a name that nobody can guess,
//! and become visible by the row that names them. Until then the blob is on record as garbage, so that a crash at any
//! moment leaves nothing unknown behind.

pub mod blobs;
pub mod content;
pub mod garbage;
pub mod get;
pub mod home;
pub mod list;
pub mod put;
mod s3;

use domain::Time;

use crate::error::StoreError;
use crate::tx::{Row, Sql};

pub use blobs::Blobs;

/// An artifact without its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Artifact {
    pub name: String,
    pub size: i64,
    pub content_type: String,
    pub sha256: [u8; 32],
    pub created_at: Time,
}

const FIND: Sql = Sql::both(&["select name, size, content_type, sha256, created_at, content, location
     from artifacts where job = $1 and tenant = $2 and name = $3"]);

/// From five columns: name, size, content_type, sha256, created_at.
fn read(row: &Row) -> Result<Artifact, StoreError> {
    let sha256 = row.opt_blob(3)?.and_then(|digest| digest.try_into().ok());
    Ok(Artifact {
        name: row.text(0)?,
        size: row.int(1)?,
        content_type: row.text(2)?,
        sha256: sha256.ok_or_else(|| StoreError::unexpected("an artifact without its digest"))?,
        created_at: row.time(4)?,
    })
}
