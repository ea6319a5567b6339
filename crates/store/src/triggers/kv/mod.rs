//! Key-value collections: small JSON values whose changes are events for triggers.

pub mod change;
pub mod get;
pub mod observed_keys;

use domain::Time;

use crate::db::tx::Row;
use crate::error::StoreError;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvEntry {
    pub collection: String,
    pub key: String,
    /// JSON, verbatim.
    pub value: String,
    /// Incremented by each change.
    pub version: i64,
    pub created_at: Time,
    pub updated_at: Time,
}

/// Precondition of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// The key must not exist.
    Absent,
    /// The key must exist.
    Present,
    /// The key must have one of these versions.
    Version(Vec<i64>),
}

impl Condition {
    fn holds(&self, version: Option<i64>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => version.is_none(),
            Self::Present => version.is_some(),
            Self::Version(versions) => version.is_some_and(|version| versions.contains(&version)),
        }
    }
}

fn read(row: &Row) -> Result<KvEntry, StoreError> {
    Ok(KvEntry {
        collection: row.text("collection")?,
        key: row.text("key")?,
        value: row.text("value")?,
        version: row.int("version")?,
        created_at: row.time("created_at")?,
        updated_at: row.time("updated_at")?,
    })
}
