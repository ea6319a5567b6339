//! The last step of a transaction that ended jobs or claims.

use crate::db::effects::Effects;
use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::triggers::events::queues::drained;
use crate::workflows::runs::end;

/// Records the ended jobs in their runs, emits `drained` for queues whose last job ended, and writes the counters. The
/// caller calls this once, after its last change of a job.
pub(crate) async fn close(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    mut counters: CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    end::record(tx, lanes, &mut counters, effects).await?;
    drained(tx, &lanes.triggers, &counters, effects).await?;
    counters.write(tx).await
}
