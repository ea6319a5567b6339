//! Claims the server ended under a worker's hands: the worker is told with its heartbeat until it answers or dies.

use domain::WorkerId;

use crate::error::StoreError;
use crate::jobs::transition::{LiveJob, Step};
use crate::tx::{Column, Param, Sql, Tx};

const REVOKE: Sql = Sql::new(
    &["insert into revocations (worker, job, tenant, epoch, at) values ($1, $2, $3, $4, $5)
       on conflict do nothing"],
    "insert into revocations (worker, job, tenant, epoch, at)
     select n.*, $5 from unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[]) n
     on conflict do nothing",
);

pub(crate) async fn write(tx: &mut Tx<'_>, steps: &[Step]) -> Result<(), StoreError> {
    let revoked: Vec<(&LiveJob, WorkerId)> = steps
        .iter()
        .filter(|step| step.revoke)
        .filter_map(|step| step.before.worker.map(|worker| (&step.before, worker)))
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
