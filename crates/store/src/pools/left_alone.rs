//! Models of a pool that could not be loaded and are left alone for a while: said in the signals of their jobs, and to whoever
//! asks why they do not run.

use std::collections::HashMap;

use domain::{Affinity, Backoff, Label, Name, TenantId, Time};

use crate::error::StoreError;
use crate::pools::codec::MemberState;
use crate::pools::get;
use crate::tx::Tx;

/// By affinity, until when and why, of the pool that runs the jobs of a queue, if one does.
pub(crate) async fn of_queue(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    queue: &Name,
) -> Result<HashMap<Affinity, Backoff>, StoreError> {
    let now = tx.now();
    let Some(pool) = get::all(tx, tenant).await?.into_iter().find(|pool| pool.spec.queue == *queue) else {
        return Ok(HashMap::new());
    };
    let by = format!("pool {}", pool.name);
    let left_alone = |(affinity, member): (&String, &MemberState)| {
        let until = Time::from_micros(member.backoff_until?);
        let why = member.cause.as_deref().unwrap_or("nobody said why");
        let cause = format!("the model {affinity} could not be loaded: {why}");
        let backoff = Backoff { until: Some(until), cause, by: by.clone(), wait_s: None, at: now };
        backoff.holds(now).then(|| (Some(Label::stored(affinity)), backoff))
    };
    Ok(pool.state.members.iter().filter_map(left_alone).collect())
}
