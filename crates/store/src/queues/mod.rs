//! Operations on queues, and what other operations ask about them.

pub mod affinities;
pub mod get;
pub mod pause;
pub mod put;
pub mod throughput;
pub mod waits;
pub mod words;

use domain::{Name, QueueSettings, TenantId};

use crate::codec::settings_from_json;
use crate::error::StoreError;
use crate::tx::{Param, Row, Sql, Tx};

const SETTINGS: Sql = Sql::both(&["select settings, concurrency, per_key, rate_per_s, starvation_s
     from queues where tenant = $1 and name = $2"]);

/// What the queue was told; the defaults when it was told nothing.
pub(crate) async fn settings(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name) -> Result<QueueSettings, StoreError> {
    match tx.query_opt(&SETTINGS, &[Param::Int(tenant.0), Param::Text(queue.as_str())]).await? {
        Some(row) => settings_at(&row, 0),
        None => Ok(QueueSettings::default()),
    }
}

/// Settings from five columns: settings, concurrency, per_key, rate_per_s, starvation_s.
pub(crate) fn settings_at(row: &Row, first: usize) -> Result<QueueSettings, StoreError> {
    let mut settings = settings_from_json(row.opt_text(first)?.as_deref())?;
    settings.concurrency = row.opt_int(first + 1)?.map(|limit| limit as u32);
    settings.per_key = row.opt_int(first + 2)?.map(|limit| limit as u32);
    settings.rate_per_s = row.opt_real(first + 3)?;
    settings.starvation_s = row.opt_int(first + 4)?;
    Ok(settings)
}
