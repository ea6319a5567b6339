//! Key-value collections: small JSON values that triggers listen to (T1).

pub mod change;
pub mod get;
pub mod seen;

use domain::Time;

use crate::error::StoreError;
use crate::tx::Row;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub collection: String,
    pub key: String,
    /// JSON, as it came.
    pub value: String,
    /// Grows by one with each change.
    pub version: i64,
    pub created_at: Time,
    pub updated_at: Time,
}

/// What must be so of a key for it to be changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Condition {
    Always,
    /// Nothing is there.
    Absent,
    /// Something is.
    Present,
    /// It has one of these versions.
    Version(Vec<i64>),
}

impl Condition {
    fn holds(&self, version: Option<i64>) -> bool {
        match self {
            Self::Always => true,
            Self::Absent => version.is_none(),
            Self::Present => version.is_some(),
            Self::Version(wanted) => version.is_some_and(|version| wanted.contains(&version)),
        }
    }
}

/// Columns in the order collection, key, value, version, created_at, updated_at.
fn read(row: &Row) -> Result<Entry, StoreError> {
    Ok(Entry {
        collection: row.text(0)?,
        key: row.text(1)?,
        value: row.text(2)?,
        version: row.int(3)?,
        created_at: row.time(4)?,
        updated_at: row.time(5)?,
    })
}
