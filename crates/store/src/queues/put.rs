//! Tells a queue what to do. What is left out goes back to its default.

use std::collections::BTreeSet;

use domain::trigger::queue::CHANGED;
use domain::{Epoch, JobId, Name, QueueSettings, TenantId};
use serde_json::json;
use uuid::Uuid;

use crate::caller::Caller;
use crate::codec::{from_json, settings_to_json};
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::queues::{QueueChange, happened};
use crate::jobs::holds;
use crate::queues;
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::triggers::cache::TriggerCache;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

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
        let effects = self.write(Put { tenant, name: name.clone(), settings, by, triggers }).await?;
        self.kept_surroundings().forget(&(tenant, name));
        self.announce(&effects);
        Ok(())
    }
}

struct Put {
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
const FORGET_RATE: Sql = Sql::both(&["delete from rates where tenant = $1 and queue = $2"]);
const CLAIMED: Sql = Sql::both(&["select jobs from claims where tenant = $1"]);
const MARK_HELD: Sql = Sql::new(
    &["update jobs set held = 1 where id = $1 and worker is not null
       and lane in (select lane from lanes where tenant = $2 and queue = $3) returning id, epoch"],
    "update jobs set held = true where id = any($1::uuid[]) and worker is not null
     and lane in (select lane from lanes where tenant = $2 and queue = $3) returning id, epoch",
);
const UNPARK: Sql = Sql::both(&["update jobs set parked = null
     where tenant = $1 and parked is not null and parked >= $2 and parked < $3"]);

impl Operation for Put {
    const WATCHES_TRIGGERS: bool = true;
    type Output = Effects;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Effects, StoreError> {
        let scope = holds::queue_scope(&self.name);
        // Claims of this queue wait until the new limit holds.
        holds::lock_and_count(tx, self.tenant, &BTreeSet::from([scope.as_str()])).await?;
        let before = queues::settings(tx, self.tenant, &self.name).await?;
        let after = self.with_kept_secrets(&before);
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
        // Who says the same again is not given a full bucket for it.
        if self.settings.rate_per_s != before.rate_per_s {
            tx.execute(&FORGET_RATE, &queue).await?;
        }
        if self.settings.concurrency.is_some() {
            self.count_running(tx, &scope).await?;
        }
        // Keys may have more room now: whoever waits for one looks again, and is parked again if there is none.
        let from = format!("key {} ", self.name);
        let to = format!("key {}!", self.name);
        tx.execute(&UNPARK, &[queue[0], Param::Text(&from), Param::Text(&to)]).await?;
        let outbox = self.tell(tx, &before, &after).await?;
        Ok(Effects { outbox, ready: [(self.tenant, self.name.clone())].into(), ..Effects::default() })
    }
}

impl Put {
    /// Secrets are not shown, so whoever sends back what was read has none: the same webhook keeps them.
    fn with_kept_secrets(&self, before: &QueueSettings) -> QueueSettings {
        let mut settings = self.settings.clone();
        if let Some(webhook) = settings.webhook.as_mut().filter(|webhook| webhook.secrets.is_empty()) {
            let before = before.webhook.as_ref().filter(|before| before.url == webhook.url);
            webhook.secrets = before.map_or(Vec::new(), |before| before.secrets.clone());
        }
        settings
    }

    /// History and triggers hear what is different, and of the webhook only that it is: its URL may be a secret. Gives
    /// whether a trigger heard.
    async fn tell(&self, tx: &mut Tx<'_>, before: &QueueSettings, after: &QueueSettings) -> Result<bool, StoreError> {
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

    /// Jobs that run already count towards the limit.
    async fn count_running(&self, tx: &mut Tx<'_>, scope: &str) -> Result<(), StoreError> {
        let mut claimed: Vec<JobId> = Vec::new();
        for row in tx.query(&CLAIMED, &[Param::Int(self.tenant.0)]).await? {
            claimed.extend(from_json::<Vec<Uuid>>(&row.text(0)?)?.into_iter().map(JobId::new));
        }
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        let rows = tx.query_each(&MARK_HELD, &[Column::jobs(claimed)], &params).await?;
        let held = |row: &Row| Ok((scope.to_owned(), (row.job(0)?, Epoch(row.int(1)?))));
        let running = rows.iter().map(held).collect::<Result<Vec<_>, StoreError>>()?;
        holds::take(tx, self.tenant, &running).await
    }
}
