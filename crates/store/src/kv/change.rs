//! Sets and deletes values; each change is an event for the triggers that listen to the collection (T1).

use domain::TenantId;
use domain::trigger::Source;

use crate::error::StoreError;
use crate::events::waited::Waited;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::kv::{Entry, read};
use crate::store::Store;
use crate::triggers::cache::{Listeners, TriggerCache};
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn set_kv(
        &self,
        tenant: TenantId,
        collection: &str,
        key: &str,
        value: Box<str>,
        depth: i32,
    ) -> Result<(Entry, Vec<Waited>), StoreError> {
        let (collection, key) = (collection.to_owned(), key.to_owned());
        let change =
            Change { tenant, collection, key, value: Some(value), depth, triggers: self.triggers_cache().clone() };
        let changed = self.write(change).await?;
        let changed = changed.ok_or_else(|| StoreError::unexpected("a value that was set is not there"))?;
        self.told(changed).await
    }

    /// The entry that was there, if one was.
    pub async fn delete_kv(
        &self,
        tenant: TenantId,
        collection: &str,
        key: &str,
        depth: i32,
    ) -> Result<Option<(Entry, Vec<Waited>)>, StoreError> {
        let (collection, key) = (collection.to_owned(), key.to_owned());
        let change = Change { tenant, collection, key, value: None, depth, triggers: self.triggers_cache().clone() };
        match self.write(change).await? {
            Some(changed) => self.told(changed).await.map(Some),
            None => Ok(None),
        }
    }

    async fn told(&self, changed: Changed) -> Result<(Entry, Vec<Waited>), StoreError> {
        let Changed { entry, event, heard } = changed;
        if !heard {
            return Ok((entry, Vec::new()));
        }
        self.hints().tell(Topic::Outbox);
        Ok((entry, self.waited_for(&[event]).await?))
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
    depth: i32,
    triggers: TriggerCache,
}

const SET: Sql = Sql::both(&["insert into kv (tenant, collection, key, value, version, created_at, updated_at)
     values ($1, $2, $3, $4, 1, $5, $5)
     on conflict (tenant, collection, key) do update
         set value = excluded.value, version = kv.version + 1, updated_at = excluded.updated_at
     returning collection, key, value, version, created_at, updated_at"]);
const DELETE: Sql = Sql::both(&["delete from kv where tenant = $1 and collection = $2 and key = $3
     returning collection, key, value, version, created_at, updated_at"]);

impl Operation for Change {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Option<Changed>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Changed>, StoreError> {
        let Self { tenant, collection, key, value, depth, triggers } = self;
        let listeners = triggers.current(tx).await?;
        change(tx, &listeners, *tenant, (collection, key), value.as_deref(), *depth).await
    }
}

/// Sets the value, or without one deletes it; nothing when there was nothing to delete.
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
