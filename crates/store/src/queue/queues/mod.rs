//! Operations on queues, and the queue settings that other operations read.

pub mod affinities;
pub mod autocomplete;
pub mod delete;
pub mod get;
pub mod pause;
pub mod put;
pub mod throughput;
pub mod waits;

use domain::{Name, QueueSettings, TenantId};

use crate::db::codec::settings_from_json;
use crate::db::tx::{Param, Row, Sql, Tx};
use crate::error::StoreError;

const SETTINGS: Sql = Sql::both(&["select settings, concurrency, per_key, rate_per_s, starvation_s
     from queues where tenant = $1 and name = $2"]);

/// Returns the queue's settings, or the defaults if it has none.
pub(crate) async fn settings(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<QueueSettings, StoreError> {
    match tx.query_opt(&SETTINGS, &[Param::Int(tenant.0), Param::Text(queue.as_str())]).await? {
        Some(row) => read_settings(&row),
        None => Ok(QueueSettings::default()),
    }
}

/// Reads settings from the columns settings, concurrency, per_key, rate_per_s and starvation_s.
pub(crate) fn read_settings(row: &Row) -> Result<QueueSettings, StoreError> {
    read_settings_of(row, row.opt_text("settings")?.as_deref())
}

/// Does the same with the value of the column `settings`, which the caller has read.
pub(crate) fn read_settings_of(row: &Row, stored: Option<&str>) -> Result<QueueSettings, StoreError> {
    let mut settings = settings_from_json(stored)?;
    settings.concurrency = row.opt_int("concurrency")?.map(|limit| limit as u32);
    settings.per_key = row.opt_int("per_key")?.map(|limit| limit as u32);
    settings.rate_per_s = row.opt_real("rate_per_s")?;
    settings.starvation_s = row.opt_int("starvation_s")?;
    Ok(settings)
}
