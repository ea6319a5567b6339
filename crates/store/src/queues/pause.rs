//! Stops a queue from handing out jobs, with a reason, and lets it go on. One row: no job is touched.

use domain::{Name, TenantId};
use serde_json::json;

use crate::effects::Effects;
use crate::error::StoreError;
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    pub async fn pause_queue(
        &self,
        tenant: TenantId,
        name: Name,
        by: String,
        reason: Option<String>,
    ) -> Result<(), StoreError> {
        self.write(Pause { tenant, name: name.clone(), by, reason }).await?;
        self.surroundings_cache().forget(tenant, &name);
        Ok(())
    }

    pub async fn resume_queue(&self, tenant: TenantId, name: Name) -> Result<(), StoreError> {
        self.write(Resume { tenant, name: name.clone() }).await?;
        self.surroundings_cache().forget(tenant, &name);
        self.announce(&Effects { ready: [(tenant, name)].into(), ..Effects::default() });
        Ok(())
    }
}

struct Pause {
    tenant: TenantId,
    name: Name,
    by: String,
    reason: Option<String>,
}

const PAUSE: Sql = Sql::both(&["insert into queues (tenant, name, paused_at, paused_by, paused_reason, updated_at)
     values ($1, $2, $3, $4, $5, $3)
     on conflict (tenant, name) do update set paused_at = coalesce(queues.paused_at, excluded.paused_at),
         paused_by = excluded.paused_by, paused_reason = excluded.paused_reason, updated_at = excluded.updated_at"]);
const RESUME: Sql = Sql::both(&["update queues set paused_at = null, paused_by = null, paused_reason = null,
         updated_at = $3
     where tenant = $1 and name = $2"]);

impl Operation for Pause {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.name.as_str()),
            Param::Time(tx.now()),
            Param::Text(&self.by),
            Param::text(self.reason.as_deref()),
        ];
        tx.execute(&PAUSE, &params).await?;
        let detail = json!({"queue": self.name.as_str()}).to_string();
        let entry = Entry::by(self.tenant, &self.by, "queue_paused", detail);
        timeline::write(tx, &[Entry { cause: self.reason.as_deref(), ..entry }]).await
    }
}

struct Resume {
    tenant: TenantId,
    name: Name,
}

impl Operation for Resume {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.name.as_str()), Param::Time(tx.now())];
        tx.execute(&RESUME, &params).await.map(|_| ())
    }
}
