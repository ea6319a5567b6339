//! Sets and deletes values. Each change is an event for the triggers that listen to the collection.

use domain::TenantId;
use domain::triggers::trigger::Source;

use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::{Listeners, TriggerCache};
use crate::triggers::events::awaited_runs::AwaitedRun;
use crate::triggers::events::{Event, emit};
use crate::triggers::kv::observed_keys::lock_keys;
use crate::triggers::kv::{Condition, KvEntry, read};

/// Result of a requested change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvReply {
    /// The new entry or the deleted one, and the runs of `sync` triggers that the caller waits for.
    Done(KvEntry, Vec<AwaitedRun>),
    /// The key to delete does not exist.
    NotFound,
    /// The precondition failed. Carries the key's current version, if it exists.
    VersionMismatch(Option<i64>),
}

impl Store {
    /// Sets a key, given as `(collection, key)`.
    pub async fn set_kv(
        &self,
        tenant: TenantId,
        key: (&str, &str),
        value: Box<str>,
        condition: Condition,
        depth: i32,
    ) -> Result<KvReply, StoreError> {
        self.change_kv(tenant, key, Some(value), condition, depth).await
    }

    /// Deletes a key, given as `(collection, key)`, and returns the deleted entry.
    pub async fn delete_kv(
        &self,
        tenant: TenantId,
        key: (&str, &str),
        condition: Condition,
        depth: i32,
    ) -> Result<KvReply, StoreError> {
        self.change_kv(tenant, key, None, condition, depth).await
    }

    async fn change_kv(
        &self,
        tenant: TenantId,
        (collection, key): (&str, &str),
        value: Option<Box<str>>,
        condition: Condition,
        depth: i32,
    ) -> Result<KvReply, StoreError> {
        let (collection, key, triggers) = (collection.to_owned(), key.to_owned(), self.triggers_cache().clone());
        let change = ChangeKv { tenant, collection, key, value, condition, depth, triggers };
        let KvChange { entry, event, has_matches } = match self.write(change).await? {
            Ok(Some(changed)) => changed,
            Ok(None) => return Ok(KvReply::NotFound),
            Err(VersionMismatch(version)) => return Ok(KvReply::VersionMismatch(version)),
        };
        if !has_matches {
            return Ok(KvReply::Done(entry, Vec::new()));
        }
        self.notifier().notify(Topic::Outbox);
        Ok(KvReply::Done(entry, self.awaited_runs(&[event]).await?))
    }
}

/// An applied change.
pub(crate) struct KvChange {
    entry: KvEntry,
    event: Event,
    /// True if the event matched a trigger.
    pub(crate) has_matches: bool,
}

struct ChangeKv {
    tenant: TenantId,
    collection: String,
    key: String,
    /// `None` deletes the key.
    value: Option<Box<str>>,
    condition: Condition,
    depth: i32,
    triggers: TriggerCache,
}

/// The precondition failed. Carries the key's current version, if it exists.
struct VersionMismatch(Option<i64>);

const VERSION: Sql = Sql::both(&["select version from kv where tenant = $1 and collection = $2 and key = $3"]);
const SET: Sql = Sql::both(&["insert into kv (tenant, collection, key, value, version, created_at, updated_at)
     values ($1, $2, $3, $4, 1, $5, $5)
     on conflict (tenant, collection, key) do update
         set value = excluded.value, version = kv.version + 1, updated_at = excluded.updated_at
     returning collection, key, value, version, created_at, updated_at"]);
const DELETE: Sql = Sql::both(&["delete from kv where tenant = $1 and collection = $2 and key = $3
     returning collection, key, value, version, created_at, updated_at"]);

impl Operation for ChangeKv {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = Result<Option<KvChange>, VersionMismatch>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Self { tenant, collection, key, value, condition, depth, triggers } = self;
        let listeners = triggers.current(tx).await?;
        lock_keys(tx, *tenant, &[(collection.as_str(), key.as_str())]).await?;
        if *condition != Condition::Always {
            let params = [Param::Int(tenant.0), Param::Text(collection), Param::Text(key)];
            let version = tx.query_opt(&VERSION, &params).await?.map(|row| row.int("version")).transpose()?;
            if !condition.holds(version) {
                return Ok(Err(VersionMismatch(version)));
            }
        }
        change(tx, &listeners, *tenant, (collection, key), value.as_deref(), *depth).await.map(Ok)
    }
}

/// Sets a key, or deletes it if `value` is `None`. Returns `None` if the key to delete does not exist. The caller must hold
/// the lock on the key.
pub(crate) async fn change(
    tx: &mut Tx<'_>,
    listeners: &Listeners,
    tenant: TenantId,
    (collection, key): (&str, &str),
    value: Option<&str>,
    depth: i32,
) -> Result<Option<KvChange>, StoreError> {
    let found = [Param::Int(tenant.0), Param::Text(collection), Param::Text(key)];
    let row = match value {
        Some(value) => {
            let params = [found[0], found[1], found[2], Param::Json(value), Param::Time(tx.now())];
            tx.query_opt(&SET, &params).await?
        }
        None => tx.query_opt(&DELETE, &found).await?,
    };
    let Some(entry) = row.as_ref().map(read).transpose()? else { return Ok(None) };
    let op = if value.is_some() { "set" } else { "delete" };
    // The event of a delete carries the deleted value.
    let event = Event::new(tx.now(), tenant, Source::Kv, op, depth, entry.value.clone())
        .with("collection", collection)
        .with("key", key);
    let has_matches = emit(tx, listeners, std::slice::from_ref(&event)).await? > 0;
    Ok(Some(KvChange { entry, event, has_matches }))
}
