//! Failed jobs, grouped by kind, phase, error code and message pattern.

pub mod learn;
pub mod list;
pub mod prune;
pub mod repair;
pub mod replay;

use domain::{JobId, TenantId, Time};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

const FEED: Sql = Sql::new(
    &["insert into failure_feed (job, tenant, at) values ($1, $2, $3) on conflict do nothing"],
    "insert into failure_feed (job, tenant, at)
     select n.job, n.tenant, $3 from unnest($1::uuid[], $2::bigint[]) as n(job, tenant) on conflict do nothing",
);

/// Queues permanently failed jobs for grouping, in the transaction that ends them. Writes nothing if `failed` is empty.
pub(crate) async fn feed(tx: &mut Tx<'_>, failed: &[(JobId, TenantId)], now: Time) -> Result<(), StoreError> {
    let columns =
        [Column::jobs(failed.iter().map(|(job, _)| *job)), Column::ints(failed.iter().map(|(_, tenant)| tenant.0))];
    tx.execute_each(&FEED, &columns, &[Param::Time(now)]).await.map(|_| ())
}
