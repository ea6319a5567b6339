//! Sets and deletes values; each change is an event for the triggers that listen to the collection (T1).

use domain::TenantId;
use domain::trigger::Source;

use crate::error::StoreError;
use crate::events::waited::Waited;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::kv::seen::hold;
use crate::kv::{Condition, Entry, read};
use crate::store::Store;
use crate::triggers::cache::{Listeners, TriggerCache};
use crate::tx::{Operation, Param, Sql, Tx};

/// What became of a change that somebody asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KvReply {
    /// The entry as it is now, or as it was when it was deleted, and the runs that are waited for.
    Done(Entry, Vec<Waited>),
    /// There was nothing to delete.
    NotFound,
    /// The key is not as it should be: this is its version, if it is there.
    Otherwise(Option<i64>),
}

impl Store {
    /// A key is named with its collection before it.
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

    /// Gives the entry that was there.
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
        let change = Change { tenant, collection, key, value, condition, depth, triggers };
        let Changed { entry, event, heard } = match self.write(change).await? {
            Ok(Some(changed)) => changed,
            Ok(None) => return Ok(KvReply::NotFound),
            Err(Otherwise(version)) => return Ok(KvReply::Otherwise(version)),
        };
        if !heard {
            return Ok(KvReply::Done(entry, Vec::new()));
        }
        self.hints().tell(Topic::Outbox);
        Ok(KvReply::Done(entry, self.waited_for(&[event]).await?))
    }
}

/// What a change did.
pub(crate) struct Changed {
    entry: Entry,
    event: Event,
    /// Whether a trigger did.
    pub(crate) heard: bool,
}

struct Change {
    tenant: TenantId,
    collection: String,
    key: String,
    /// Nothing deletes.
    value: Option<Box<str>>,
    condition: Condition,
    depth: i32,
    triggers: TriggerCache,
}

/// The version that a key has instead of what it should have.
struct Otherwise(Option<i64>);

const VERSION: Sql = Sql::both(&["select version from kv where tenant = $1 and collection = $2 and key = $3"]);
const SET: Sql = Sql::both(&["insert into kv (tenant, collection, key, value, version, created_at, updated_at)
     values ($1, $2, $3, $4, 1, $5, $5)
     on conflict (tenant, collection, key) do update
         set value = excluded.value, version = kv.version + 1, updated_at = excluded.updated_at
     returning collection, key, value, version, created_at, updated_at"]);
const DELETE: Sql = Sql::both(&["delete from kv where tenant = $1 and collection = $2 and key = $3
     returning collection, key, value, version, created_at, updated_at"]);

impl Operation for Change {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Result<Option<Changed>, Otherwise>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Self { tenant, collection, key, value, condition, depth, triggers } = self;
        let listeners = triggers.current(tx).await?;
        hold(tx, *tenant, &[(collection.as_str(), key.as_str())]).await?;
        if *condition != Condition::Always {
            let params = [Param::Int(tenant.0), Param::Text(collection), Param::Text(key)];
            let version = tx.query_opt(&VERSION, &params).await?.map(|row| row.int(0)).transpose()?;
            if !condition.holds(version) {
                return Ok(Err(Otherwise(version)));
            }
        }
        change(tx, &listeners, *tenant, (collection, key), value.as_deref(), *depth).await.map(Ok)
    }
}

/// Sets the value, or without one deletes it; nothing when there was nothing to delete. The key is held.
pub(crate) async fn change(
    tx: &mut Tx<'_>,
    listeners: &Listeners,
    tenant: TenantId,
    (collection, key): (&str, &str),
    value: Option<&str>,
    depth: i32,
) -> Result<Option<Changed>, StoreError> {
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
    // What a delete tells is what was there.
    let event = Event::new(tx.now(), tenant, Source::Kv, op, depth, entry.value.clone())
        .with("collection", collection)
        .with("key", key);
    let heard = emit(tx, listeners, std::slice::from_ref(&event)).await? > 0;
    Ok(Some(Changed { entry, event, heard }))
}
