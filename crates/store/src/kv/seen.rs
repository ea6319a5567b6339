//! Keys as somebody saw them, and the lock under which they stay so.

use std::collections::HashMap;

use domain::{TenantId, Time};

use crate::error::StoreError;
use crate::kv::Entry;
use crate::tx::{Column, Param, Sql, Tx};

/// A key as it was when somebody read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    pub collection: String,
    pub key: String,
    /// Its version and since when it had that; nothing where nothing was there. A key that is deleted and set anew begins
    /// at its first version again: the time tells the two apart.
    pub stood: Option<(i64, Time)>,
}

impl Seen {
    pub fn new(collection: &str, key: &str, entry: Option<&Entry>) -> Self {
        let stood = entry.map(|entry| (entry.version, entry.updated_at));
        Self { collection: collection.into(), key: key.into(), stood }
    }
}

/// Holds keys until the end of the transaction, also those that are not there. Whoever changes a key holds it: what was
/// read of it under this lock stays true.
pub(crate) async fn hold(tx: &mut Tx<'_>, tenant: TenantId, keys: &[(&str, &str)]) -> Result<(), StoreError> {
    let name = |(collection, key): &(&str, &str)| format!("windlass kv {} {collection} {key}", tenant.0);
    let names: Vec<String> = keys.iter().map(name).collect();
    tx.lock(&names.iter().map(String::as_str).collect::<Vec<_>>()).await
}

const STANDING: Sql = Sql::new(
    &["select collection, key, version, updated_at from kv where collection = $1 and key = $2 and tenant = $3"],
    "select k.collection, k.key, k.version, k.updated_at from unnest($1::text[], $2::text[]) as n(collection, key)
     join kv k on k.tenant = $3 and k.collection = n.collection and k.key = n.key",
);

/// Whether all of them are as they were. They are held.
pub(crate) async fn are_as_seen(tx: &mut Tx<'_>, tenant: TenantId, seen: &[Seen]) -> Result<bool, StoreError> {
    let columns = [
        Column::texts(seen.iter().map(|seen| seen.collection.as_str())),
        Column::texts(seen.iter().map(|seen| seen.key.as_str())),
    ];
    let mut standing = HashMap::new();
    for row in tx.query_each(&STANDING, &columns, &[Param::Int(tenant.0)]).await? {
        standing.insert((row.text(0)?, row.text(1)?), (row.int(2)?, row.time(3)?));
    }
    Ok(seen.iter().all(|seen| standing.get(&(seen.collection.clone(), seen.key.clone())).copied() == seen.stood))
}
