//! What timeouts of attempts (`workers/attempt_timeouts`) and deadlines of jobs (`deadlines`) have in common.

use domain::limits::{MAINTENANCE_ROWS, OUTAGE_MS, TIMEOUT_GRACE_MS};
use domain::{Job, JobError, JobId, Refusal};

use crate::db::effects::Effects;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition::{self, LiveJob, Transition};

/// Lists one batch of overdue jobs. After an outage, workers get a grace period to report results that they could not
/// deliver during it: the parameters of the statement are now, the size of a batch, the latest start of the service and
/// its earliest last heartbeat.
pub(crate) async fn list_overdue(tx: &mut Tx<'_>, overdue: &Sql) -> Result<Vec<JobId>, StoreError> {
    let now = tx.now();
    let params = [
        Param::Time(now),
        Param::Int(MAINTENANCE_ROWS as i64),
        Param::Time(now.plus_ms(-TIMEOUT_GRACE_MS)),
        Param::Time(now.plus_ms(-OUTAGE_MS)),
    ];
    tx.query(overdue, &params).await?.iter().map(|row| row.job("id")).collect()
}

/// Writes the failure of an overdue job, and revokes its claim if a worker has it.
pub(crate) async fn fail(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    before: LiveJob,
    after: Result<Job, Refusal>,
    error: JobError,
) -> Result<Effects, StoreError> {
    let (mut counters, mut effects) = (CounterDeltas::default(), Effects::default());
    let after = after.map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
    let revoke = before.state.is_claimed();
    let transition = Transition { revoke, ..Transition::new(before, after, "failed", Some(error), None) };
    transition::write(tx, lanes, vec![transition], &mut counters, &mut effects).await?;
    transition::close(tx, lanes, counters, &mut effects).await?;
    Ok(effects)
}
