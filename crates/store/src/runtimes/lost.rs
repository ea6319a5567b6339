//! What waits for a node that is lost: said in the signals of its jobs, and to whoever asks why they do not run.

use std::collections::HashMap;

use domain::{Affinity, Label, Name, TenantId};

use crate::error::StoreError;
use crate::pools::{self, Pool};
use crate::runtimes::{QUEUE, get, nodes};
use crate::tx::Tx;

/// By affinity, why the jobs of a queue have nobody: of operations, that their node is silent; of a pool's jobs, that the
/// node of their runtime is. A queue that somebody serves is not looked into any further.
pub(crate) async fn behind(
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

/// Nodes that are lost, and for how many seconds they have been silent.
async fn silent(tx: &mut Tx<'_>) -> Result<HashMap<String, i64>, StoreError> {
    let now = tx.now();
    let lost = nodes::all(tx).await?.into_iter().filter(|node| node.is_lost(now));
    Ok(lost.map(|node| (node.name, now.ms_since(node.seen_at) / 1_000)).collect())
}

async fn operations(tx: &mut Tx<'_>) -> Result<HashMap<Affinity, String>, StoreError> {
    let told = |(node, for_s): (&String, &i64)| {
        (Some(Label::stored(node)), format!("the node {node}, which is to do it, has been silent for {for_s} s"))
    };
    Ok(silent(tx).await?.iter().map(told).collect())
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
            let told =
                format!("the runtime {} is on the node {node}, which has been silent for {for_s} s", member.runtime);
            lost.insert(Some(member.affinity.clone()), told);
        }
    }
    Ok(lost)
}
