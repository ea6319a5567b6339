//! Finds a node for a runtime, and sees to it that no node takes more than it has slots for.
//!
//! A slot is taken by a runtime that runs, or that an operation is bringing up. Whoever gives one away holds the one lock of
//! placement until its transaction ends, so that two who look at the last slot see each other.

use std::collections::HashMap;

use domain::runtime::Placement;
use domain::runtime::placement::{Candidate, Nowhere, choose};
use domain::{RuntimeName, TenantId};

use crate::error::StoreError;
use crate::runtimes::Runtime;
use crate::runtimes::nodes::{self, EngineNode};
use crate::tx::{Param, Sql, Tx};

/// Which operations take a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Counted {
    /// Those that are under way: what else there is to do on a node waits for its turn.
    Begun,
    /// Those that wait for their turn too: whoever comes new does not push in.
    Asked,
}

const TAKEN: Sql = Sql::both(&[
    "select r.node, count(*) from runtimes r where r.node is not null and not (r.tenant = $1 and r.name = $2)
         and (r.status = 'running' or exists (select 1 from operations o
             where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null and o.job is not null
                 and o.kind in ('start', 'restart', 'patch') and (o.started_at is not null or $3)))
     group by r.node",
]);

/// By node, without the one runtime that asks.
pub(super) async fn taken(
    tx: &mut Tx<'_>,
    counted: Counted,
    but: Option<(TenantId, &RuntimeName)>,
) -> Result<HashMap<String, i64>, StoreError> {
    let (tenant, name) = but.map_or((0, ""), |(tenant, name)| (tenant.0, name.as_str()));
    let params = [Param::Int(tenant), Param::Text(name), Param::Bool(counted == Counted::Asked)];
    tx.query(&TAKEN, &params).await?.iter().map(|row| Ok((row.text(0)?, row.int(1)?))).collect()
}

/// One at a time gives slots away.
pub(super) async fn lock(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    tx.lock(&["windlass placement"]).await
}

/// The node for a runtime that has none; only `on`, where it must be that one. Holds for as long as the lock does.
pub(super) async fn find(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    on: Option<&str>,
) -> Result<Result<String, Nowhere>, StoreError> {
    find_among(tx, runtime, &runtime.spec.placement, |node| on.is_none_or(|on| on == node)).await
}

/// The same among these nodes alone, for what is wanted of them.
pub(super) async fn find_on(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    wanted: &Placement,
    on: &[&str],
) -> Result<Result<String, Nowhere>, StoreError> {
    find_among(tx, runtime, wanted, |node| on.contains(&node)).await
}

async fn find_among(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    wanted: &Placement,
    may: impl Fn(&str) -> bool,
) -> Result<Result<String, Nowhere>, StoreError> {
    let taken = taken(tx, Counted::Asked, Some((runtime.tenant, &runtime.name))).await?;
    let now = tx.now();
    let nodes = nodes::all(tx).await?;
    let living = nodes.iter().filter(|node| !node.is_lost(now) && may(&node.name));
    let candidates: Vec<Candidate> = living.map(|node| candidate(node, &taken)).collect();
    Ok(choose(&candidates, wanted).map(str::to_owned))
}

/// Whether the node that a runtime is bound to has room for it now. A runtime that runs has its slot.
pub(super) async fn has_room(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    node: &str,
) -> Result<Result<(), Nowhere>, StoreError> {
    let taken = taken(tx, Counted::Begun, Some((runtime.tenant, &runtime.name))).await?;
    let nodes = nodes::all(tx).await?;
    let Some(slots) = nodes.iter().find(|known| known.name == node).and_then(|known| known.offer.slots) else {
        return Ok(Ok(()));
    };
    let taken = taken.get(node).copied().unwrap_or(0);
    let full = || Nowhere::Full { nodes: vec![format!("{taken} of {slots} on {node}")] };
    Ok(if taken < slots { Ok(()) } else { Err(full()) })
}

fn candidate<'n>(node: &'n EngineNode, taken: &HashMap<String, i64>) -> Candidate<'n> {
    Candidate {
        name: &node.name,
        labels: &node.offer.labels,
        fault: node.fault.as_deref(),
        slots: node.offer.slots,
        taken: taken.get(&node.name).copied().unwrap_or(0),
    }
}

const BIND: Sql = Sql::both(&["update runtimes set node = $3 where tenant = $1 and name = $2"]);

pub(super) async fn bind(tx: &mut Tx<'_>, runtime: &Runtime, node: &str) -> Result<(), StoreError> {
    let params = [Param::Int(runtime.tenant.0), Param::Text(runtime.name.as_str()), Param::Text(node)];
    tx.execute(&BIND, &params).await.map(|_| ())
}
