//! Declares or changes a process. After a change of its selector the scan re-evaluates every subject, in batches.

use domain::limits::PROCESSES;
use domain::{Name, ProcessSettings, TenantId};
use serde_json::json;

use crate::db::codec::to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::processes::codec::{selector_from_json, settings_to_json};
use crate::fleet::subjects::eligibility;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessPut {
    Done,
    /// The tenant already has the maximum number of processes.
    TooMany,
}

impl Store {
    /// Creates or replaces the declaration of a process.
    pub async fn put_process(
        &self,
        tenant: TenantId,
        name: Name,
        settings: ProcessSettings,
        principal: String,
    ) -> Result<ProcessPut, StoreError> {
        let (put, effects) = self.write(PutProcess { tenant, name, settings, principal }).await?;
        self.announce(&effects);
        Ok(put)
    }
}

struct PutProcess {
    tenant: TenantId,
    name: Name,
    settings: ProcessSettings,
    principal: String,
}

const FIND: Sql = Sql::new(
    &["select settings, swept_to, dropped_at from processes where tenant = $1 and name = $2"],
    "select settings, swept_to, dropped_at from processes where tenant = $1 and name = $2 for update",
);
const COUNT: Sql = Sql::both(&["select count(*) as processes from processes where tenant = $1"]);
const UPSERT: Sql =
    Sql::both(&["insert into processes (tenant, name, queue, kind, settings, max_active, every_s, excludes,
         principal, swept_to, created_at, updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $11)
     on conflict (tenant, name) do update set queue = excluded.queue, kind = excluded.kind,
         settings = excluded.settings, max_active = excluded.max_active, every_s = excluded.every_s,
         excludes = excluded.excludes, principal = excluded.principal, swept_to = excluded.swept_to,
         dropped_at = null, updated_at = excluded.updated_at"]);

impl Operation for PutProcess {
    type Output = (ProcessPut, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut effects = Effects::default();
        // Evaluations hold this lock in shared mode, so none is in progress now.
        tx.lock(&[&eligibility::lock_name(self.tenant)]).await?;
        let id = [Param::Int(self.tenant.0), Param::Text(self.name.as_str())];
        // Sweep from the first subject, unless a sweep with this selector is done or under way.
        let mut swept_to = Some(String::new());
        match tx.query_opt(&FIND, &id).await? {
            Some(row) if row.opt_time("dropped_at")?.is_none() => {
                // A selector that this version cannot read counts as different.
                if selector_from_json(&row.text("settings")?).is_ok_and(|selector| selector == self.settings.selector) {
                    swept_to = row.opt_text("swept_to")?;
                }
            }
            Some(_) => {}
            None => {
                let count = tx.query_opt(&COUNT, &id[..1]).await?.map(|row| row.int("processes")).transpose()?;
                if count.unwrap_or(0) >= PROCESSES as i64 {
                    return Ok((ProcessPut::TooMany, effects));
                }
            }
        }
        let settings = settings_to_json(&self.settings)?;
        let excludes: Vec<&str> = self.settings.excludes.iter().map(Name::as_str).collect();
        let excludes = (!excludes.is_empty()).then(|| to_json(&excludes));
        let params = [
            id[0],
            id[1],
            Param::Text(self.settings.queue.as_str()),
            Param::Text(self.settings.kind.as_str()),
            Param::Json(&settings),
            Param::int(self.settings.max_active.map(i64::from)),
            Param::Int(self.settings.every_s()),
            Param::json(excludes.as_deref()),
            Param::Text(&self.principal),
            Param::text(swept_to.as_deref()),
            Param::Time(tx.now()),
        ];
        tx.execute(&UPSERT, &params).await?;
        let detail = json!({"process": self.name.as_str()}).to_string();
        timeline::write(tx, &[Entry::by(self.tenant, &self.principal, "process_changed", detail)]).await?;
        effects.scan = true;
        Ok((ProcessPut::Done, effects))
    }
}
