//! Revocations: claims that the server ended while the worker was still working. Heartbeats report them until the
//! worker responds or dies.

use domain::WorkerId;

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::transition::{LiveJob, Transition};

const REVOKE: Sql = Sql::new(
    &["insert into revocations (worker, job, tenant, epoch, at) values ($1, $2, $3, $4, $5)
       on conflict do nothing"],
    "insert into revocations (worker, job, tenant, epoch, at)
     select n.*, $5 from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) n
     on conflict do nothing",
);

/// Inserts a revocation for each transition that has `revoke` set and a worker.
pub(crate) async fn write(tx: &mut Tx<'_>, transitions: &[Transition]) -> Result<(), StoreError> {
    let revoked: Vec<(&LiveJob, WorkerId)> = transitions
        .iter()
        .filter(|transition| transition.revoke)
        .filter_map(|transition| transition.before.worker.map(|worker| (&transition.before, worker)))
        .collect();
    let columns = [
        Column::uuids(revoked.iter().map(|(_, worker)| worker.uuid())),
        Column::jobs(revoked.iter().map(|(job, _)| job.id)),
        Column::ints(revoked.iter().map(|(job, _)| job.tenant.0)),
        Column::ints(revoked.iter().map(|(job, _)| job.epoch.0)),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&REVOKE, &columns, &[now]).await.map(|_| ())
}
