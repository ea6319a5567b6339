//! Artifacts: named blobs of a job, one per (job, name), visible only when complete. An artifact belongs to the claim that
//! uploaded it; a later claim replaces it.
//!
//! Small artifacts are stored in their row. Larger ones are streamed into a folder or a bucket under an unguessable
//! name and become visible with the row that names them. Until then the blob is registered as garbage, so that a crash
//! at any moment leaves no unknown blob behind.

pub mod blobs;
pub mod content;
pub mod garbage;
pub mod get;
pub mod home;
pub mod list;
pub mod put;
mod s3;

use domain::Time;

use crate::db::tx::{Row, Sql};
use crate::error::StoreError;

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

fn read(row: &Row) -> Result<Artifact, StoreError> {
    let sha256 = row.opt_blob("sha256")?.and_then(|digest| digest.try_into().ok());
    Ok(Artifact {
        name: row.text("name")?,
        size: row.int("size")?,
        content_type: row.text("content_type")?,
        sha256: sha256.ok_or_else(|| StoreError::unexpected("an artifact has no digest"))?,
        created_at: row.time("created_at")?,
    })
}
