//! Replaces the settings of a queue. Omitted settings return to their defaults.

use std::collections::BTreeSet;

use domain::triggers::trigger::queue::CHANGED;
use domain::{Epoch, JobId, Name, QueueSettings, TenantId};
use serde_json::json;
use uuid::Uuid;

use crate::access::caller::Caller;
use crate::db::codec::{from_json, settings_to_json};
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::queue::holds;
use crate::queue::queues;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::queues::{QueueChange, happened};

impl Store {
    pub async fn put_queue(
        &self,
        tenant: TenantId,
        name: Name,
        mut settings: QueueSettings,
        by: Caller,
    ) -> Result<(), StoreError> {
        if let Some(webhook) = &mut settings.webhook {
            self.seal_webhook(tenant, webhook).await?;
        }
        let triggers = self.triggers_cache().clone();
        let effects = self.write(PutQueue { tenant, name: name.clone(), settings, by, triggers }).await?;
        self.queue_snapshot_cache().invalidate(&(tenant, name));
        self.announce(&effects);
        Ok(())
    }
}

struct PutQueue {
    tenant: TenantId,
    name: Name,
    settings: QueueSettings,
    by: Caller,
    triggers: TriggerCache,
}

const UPSERT: Sql = Sql::both(&["insert into queues
         (tenant, name, concurrency, per_key, rate_per_s, starvation_s, settings, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8)
     on conflict (tenant, name) do update set concurrency = excluded.concurrency, per_key = excluded.per_key,
         rate_per_s = excluded.rate_per_s, starvation_s = excluded.starvation_s, settings = excluded.settings,
         updated_at = excluded.updated_at"]);
const RESET_RATE: Sql = Sql::both(&["delete from rates where tenant = $1 and queue = $2"]);
const CLAIMED: Sql = Sql::both(&["select jobs from claims where tenant = $1"]);
const MARK_HELD: Sql = Sql::new(
    &["update jobs set held = 1 where id = $1 and worker is not null
       and lane in (select lane from lanes where tenant = $2 and queue = $3) returning id, epoch"],
    "update jobs set held = true where id = any($1::uuid[]) and worker is not null
     and lane in (select lane from lanes where tenant = $2 and queue = $3) returning id, epoch",
);
const UNPARK: Sql = Sql::both(&["update jobs set parked = null
     where tenant = $1 and parked is not null and parked >= $2 and parked < $3"]);

impl Operation for PutQueue {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = Effects;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Effects, StoreError> {
        let scope = holds::queue_scope(&self.name);
        // Lock the queue's scope: claims of this queue wait until the new limit is committed.
        holds::lock_and_count(tx, self.tenant, &BTreeSet::from([scope.as_str()])).await?;
        let before = queues::settings(tx, self.tenant, &self.name).await?;
        let after = self.with_stored_secrets(&before);
        let settings = settings_to_json(&after);
        let queue = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let params = [
            queue[0],
            queue[1],
            Param::int(self.settings.concurrency.map(i64::from)),
            Param::int(self.settings.per_key.map(i64::from)),
            self.settings.rate_per_s.map_or(Param::Null, Param::Real),
            Param::int(self.settings.starvation_s),
            Param::Json(&settings),
            Param::Time(tx.now()),
        ];
        tx.execute(&UPSERT, &params).await?;
        // An unchanged rate keeps its token bucket; a reset would fill it.
        if self.settings.rate_per_s != before.rate_per_s {
            tx.execute(&RESET_RATE, &queue).await?;
        }
        if self.settings.concurrency.is_some() {
            self.count_running(tx, &scope).await?;
        }
        // The key limit may be higher now: unpark the jobs of all keys. A claim parks them again if their key is still
        // full.
        let from = format!("key {} ", self.name);
        let to = format!("key {}!", self.name);
        tx.execute(&UNPARK, &[queue[0], Param::Text(&from), Param::Text(&to)]).await?;
        let outbox = self.record_change(tx, &before, &after).await?;
        Ok(Effects { outbox, ready: [(self.tenant, self.name.clone())].into(), ..Effects::default() })
    }
}

impl PutQueue {
    /// Returns the settings with stored webhook secrets filled in. Responses omit secrets, so a client that sends back
    /// what it read has none; a webhook with the same URL keeps the stored ones.
    fn with_stored_secrets(&self, before: &QueueSettings) -> QueueSettings {
        let mut settings = self.settings.clone();
        if let Some(webhook) = settings.webhook.as_mut().filter(|webhook| webhook.secrets.is_empty()) {
            let before = before.webhook.as_ref().filter(|before| before.url == webhook.url);
            webhook.secrets = before.map_or(Vec::new(), |before| before.secrets.clone());
        }
        settings
    }

    /// Writes the changed settings to the timeline and emits the trigger event. The webhook appears only as changed:
    /// its URL may be a secret. Returns whether a trigger matched.
    async fn record_change(
        &self,
        tx: &mut Tx<'_>,
        before: &QueueSettings,
        after: &QueueSettings,
    ) -> Result<bool, StoreError> {
        let changed = after.differences(before);
        if changed.is_empty() {
            return Ok(false);
        }
        let data = json!({
            "queue": self.name.as_str(), "by": self.by.name, "changed": changed, "concurrency": after.concurrency,
            "per_key": after.per_key, "rate_per_s": after.rate_per_s, "starvation_s": after.starvation_s,
            "timeout_s": after.timeout_s, "retention_s": after.retention_s,
        });
        let data = data.to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.by.name, "queue_changed", data.clone())]).await?;
        let Self { tenant, name, by, .. } = self;
        let change = QueueChange { tenant: *tenant, queue: name, op: CHANGED, depth: by.depth, data };
        happened(tx, &self.triggers, change).await
    }

    /// Inserts holds for the jobs that already run, so that they count towards the new limit.
    async fn count_running(&self, tx: &mut Tx<'_>, scope: &str) -> Result<(), StoreError> {
        let mut claimed: Vec<JobId> = Vec::new();
        for row in tx.query(&CLAIMED, &[Param::Int(self.tenant.0)]).await? {
            claimed.extend(from_json::<Vec<Uuid>>(&row.text("jobs")?)?.into_iter().map(JobId::new));
        }
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let rows = tx.query_each(&MARK_HELD, &[Column::jobs(claimed)], &params).await?;
        let held = |row: &Row| Ok((scope.to_owned(), (row.job("id")?, Epoch(row.int("epoch")?))));
        let running = rows.iter().map(held).collect::<Result<Vec<_>, StoreError>>()?;
        holds::acquire(tx, self.tenant, &running).await
    }
}
