//! Optimistic concurrency control for scripts: the versions that a script has read, and the locks under which they are
//! validated.

use std::collections::HashMap;

use domain::{TenantId, Time};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::triggers::kv::KvEntry;

/// A key as it was when a script read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedKey {
    pub collection: String,
    pub key: String,
    /// The key's version and the time of that version. `None` if the key did not exist. A key that is deleted and set
    /// again restarts at version 1. The time distinguishes the two.
    pub version: Option<(i64, Time)>,
}

impl ObservedKey {
    pub fn new(collection: &str, key: &str, entry: Option<&KvEntry>) -> Self {
        let version = entry.map(|entry| (entry.version, entry.updated_at));
        Self { collection: collection.into(), key: key.into(), version }
    }
}

/// Locks keys until the end of the transaction, including keys that do not exist. Every change of a key takes this lock, so
/// a read under the lock stays valid until the commit.
pub(crate) async fn lock_keys(tx: &mut Tx<'_>, tenant: TenantId, keys: &[(&str, &str)]) -> Result<(), StoreError> {
    let name = |(collection, key): &(&str, &str)| format!("windlass kv {} {collection} {key}", tenant.0);
    let names: Vec<String> = keys.iter().map(name).collect();
    tx.lock(&names.iter().map(String::as_str).collect::<Vec<_>>()).await
}

const CURRENT_VERSIONS: Sql = Sql::new(
    &["select collection, key, version, updated_at from kv where collection = $1 and key = $2 and tenant = $3"],
    "select k.collection, k.key, k.version, k.updated_at from unnest($1::text[], $2::text[]) as n(collection, key)
     join kv k on k.tenant = $3 and k.collection = n.collection and k.key = n.key",
);

/// Returns true if no key has changed since it was read. The caller must hold the locks on the keys.
pub(crate) async fn are_unchanged(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    reads: &[ObservedKey],
) -> Result<bool, StoreError> {
    let columns = [
        Column::texts(reads.iter().map(|read| read.collection.as_str())),
        Column::texts(reads.iter().map(|read| read.key.as_str())),
    ];
    let mut current = HashMap::new();
    for row in tx.query_each(&CURRENT_VERSIONS, &columns, &[Param::Int(tenant.0)]).await? {
        current.insert((row.text("collection")?, row.text("key")?), (row.int("version")?, row.time("updated_at")?));
    }
    Ok(reads.iter().all(|read| current.get(&(read.collection.clone(), read.key.clone())).copied() == read.version))
}
