//! Explains jobs that wait for a lost node, for signals and for `why`.

use std::collections::HashMap;

use domain::{Affinity, Label, Name, TenantId};

use crate::db::tx::Tx;
use crate::error::StoreError;
use crate::runtimes::pools;
use crate::runtimes::pools::Pool;
use crate::runtimes::{QUEUE, get, nodes};

/// Returns, by affinity, why no worker serves the jobs of a queue: for operations, that their node is silent; for the
/// jobs of a pool, that the node of their runtime is. Returns an empty map for any other queue that has workers.
pub(crate) async fn explain(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    queue: &Name,
    workers: usize,
) -> Result<HashMap<Affinity, String>, StoreError> {
    if queue.as_str() == QUEUE {
        return operations(tx).await;
    }
    if workers > 0 {
        return Ok(HashMap::new());
    }
    match pools::get::all(tx, tenant).await?.into_iter().find(|pool| pool.spec.queue == *queue) {
        Some(pool) => members(tx, &pool).await,
        None => Ok(HashMap::new()),
    }
}

/// Returns the lost nodes and for how many seconds each has sent no heartbeat.
async fn silent(tx: &mut Tx<'_>) -> Result<HashMap<String, i64>, StoreError> {
    let now = tx.now();
    let lost = nodes::all(tx).await?.into_iter().filter(|node| node.is_lost(now));
    Ok(lost.map(|node| (node.name, now.ms_since(node.seen_at) / 1_000)).collect())
}

async fn operations(tx: &mut Tx<'_>) -> Result<HashMap<Affinity, String>, StoreError> {
    let reason = |(node, for_s): (&String, &i64)| {
        (Some(Label::stored(node)), format!("the operation's node {node} has been silent for {for_s} s"))
    };
    Ok(silent(tx).await?.iter().map(reason).collect())
}

async fn members(tx: &mut Tx<'_>, pool: &Pool) -> Result<HashMap<Affinity, String>, StoreError> {
    let silent = silent(tx).await?;
    let mut lost = HashMap::new();
    if silent.is_empty() {
        return Ok(lost);
    }
    for member in &pool.spec.members {
        let runtime = get::find(tx, pool.tenant, member.runtime.as_str()).await?;
        if let Some(node) = runtime.and_then(|runtime| runtime.node)
            && let Some(for_s) = silent.get(&node)
        {
            let reason =
                format!("the runtime {} is on the node {node}, which has been silent for {for_s} s", member.runtime);
            lost.insert(Some(member.affinity.clone()), reason);
        }
    }
    Ok(lost)
}
