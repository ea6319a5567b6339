//! The workers of the requests that share a commit: which exist, and which are alive. `settle` and the journal's `write`
//! call it.

use std::collections::{HashMap, HashSet};

use domain::{TenantId, WorkerId};

use super::{load, prefetch_workers};
use crate::db::tx::{Prefetch, Tx};
use crate::error::StoreError;

/// Prefetches [`load_living`] for an operation that begins with it.
pub(crate) fn prefetch_living(asking: &HashSet<(WorkerId, TenantId)>) -> Prefetch<'static> {
    prefetch_workers(&ids(asking))
}

/// Loads the workers and whether they are alive, and renews the leases of those that are.
///
/// The key has the tenant: a request of another tenant that names a worker in the same commit has no effect.
pub(crate) async fn load_living(
    tx: &mut Tx<'_>,
    asking: &HashSet<(WorkerId, TenantId)>,
) -> Result<HashMap<(WorkerId, TenantId), bool>, StoreError> {
    let mut living = HashMap::new();
    let mut known = load(tx, &ids(asking)).await?;
    known.sort_by_key(|worker| worker.id);
    for worker in known.iter().filter(|worker| asking.contains(&(worker.id, worker.tenant))) {
        let is_alive = worker.is_alive(tx.now());
        living.insert((worker.id, worker.tenant), is_alive);
        if is_alive {
            worker.touch(tx).await?;
        }
    }
    Ok(living)
}

fn ids(asking: &HashSet<(WorkerId, TenantId)>) -> Vec<WorkerId> {
    let mut ids: Vec<WorkerId> = asking.iter().map(|(worker, _)| *worker).collect();
    ids.sort_unstable();
    ids.dedup();
    ids
}
