//! Backoffs of pool members whose model could not be loaded, for signals and for `why`.

use std::collections::HashMap;

use domain::{Affinity, Backoff, Label, Name, TenantId, Time};

use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::runtimes::pools::codec::MemberState;
use crate::runtimes::pools::get;

/// Returns the unexpired backoffs by affinity for the pool that serves a queue. Empty if no pool serves it.
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
    let member_backoff = |(affinity, member): (&String, &MemberState)| {
        let until = Time::from_micros(member.backoff_until?);
        let why = member.cause.as_deref().unwrap_or("unknown cause");
        let cause = format!("the model {affinity} could not be loaded: {why}");
        let backoff = Backoff { until: Some(until), cause, by: by.clone(), wait_s: None, at: now };
        backoff.holds(now).then(|| (Some(Label::stored(affinity)), backoff))
    };
    Ok(pool.state.members.iter().filter_map(member_backoff).collect())
}
