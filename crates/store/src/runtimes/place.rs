//! Placement: finds a node for a runtime and enforces the number of slots per node.
//!
//! A runtime uses a slot while it runs or while an operation brings it up. A transaction that assigns a slot holds the
//! single placement lock until it ends, so two transactions cannot both assign the last slot.

use std::collections::HashMap;

use domain::runtimes::Placement;
use domain::runtimes::placement::{Candidate, PlacementError, choose};
use domain::{RuntimeName, TenantId};

use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::Runtime;
use crate::runtimes::nodes::{self, EngineNode};

/// Which open operations count as using a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotUse {
    /// Started ones only. Used when an operation begins on its node: requests that still wait there do not block it.
    Started,
    /// All requested ones. Used when a runtime is placed: it must not overtake requests that wait already.
    Requested,
}

const USED_SLOTS: Sql = Sql::both(&["select r.node, count(*) as runtimes from runtimes r
     where r.node is not null and not (r.tenant = $1 and r.name = $2)
         and (r.status = 'running' or exists (select 1 from operations o
             where o.tenant = r.tenant and o.runtime = r.name and o.finished_at is null and o.job is not null
                 and o.kind in ('start', 'restart', 'patch') and (o.started_at is not null or $3)))
     group by r.node"]);

/// Returns the number of used slots by node, not counting the runtime `except`.
pub(super) async fn used_slots(
    tx: &mut Tx<'_>,
    counted: SlotUse,
    except: Option<(TenantId, &RuntimeName)>,
) -> Result<HashMap<String, i64>, StoreError> {
    let (tenant, name) = except.map_or((0, ""), |(tenant, name)| (tenant.0, name.as_str()));
    let params = [Param::Int(tenant), Param::Text(name), Param::Bool(counted == SlotUse::Requested)];
    tx.query(&USED_SLOTS, &params).await?.iter().map(|row| Ok((row.text("node")?, row.int("runtimes")?))).collect()
}

/// Takes the placement lock until the transaction ends.
pub(super) async fn lock(tx: &mut Tx<'_>) -> Result<(), StoreError> {
    tx.lock(&["windlass placement"]).await
}

/// Returns a node for a runtime that has none; only `on` is considered if it is set. The result is valid while the
/// caller holds the placement lock.
pub(super) async fn find(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    on: Option<&str>,
) -> Result<Result<String, PlacementError>, StoreError> {
    find_among(tx, runtime, &runtime.spec.placement, |node| on.is_none_or(|on| on == node)).await
}

/// Like [`find`], among the nodes `on` and with the labels `wanted`.
pub(super) async fn find_on(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    wanted: &Placement,
    on: &[&str],
) -> Result<Result<String, PlacementError>, StoreError> {
    find_among(tx, runtime, wanted, |node| on.contains(&node)).await
}

async fn find_among(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    wanted: &Placement,
    is_allowed: impl Fn(&str) -> bool,
) -> Result<Result<String, PlacementError>, StoreError> {
    let used = used_slots(tx, SlotUse::Requested, Some((runtime.tenant, &runtime.name))).await?;
    let now = tx.now();
    let nodes = nodes::all(tx).await?;
    let live = nodes.iter().filter(|node| !node.is_lost(now) && is_allowed(&node.name));
    let candidates: Vec<Candidate> = live.map(|node| candidate(node, &used)).collect();
    Ok(choose(&candidates, wanted).map(str::to_owned))
}

/// Checks that the node to which a runtime is bound has a free slot for it now.
pub(super) async fn has_free_slot(
    tx: &mut Tx<'_>,
    runtime: &Runtime,
    node: &str,
) -> Result<Result<(), PlacementError>, StoreError> {
    let used = used_slots(tx, SlotUse::Started, Some((runtime.tenant, &runtime.name))).await?;
    let nodes = nodes::all(tx).await?;
    let Some(slots) = nodes.iter().find(|other| other.name == node).and_then(|other| other.offer.slots) else {
        return Ok(Ok(()));
    };
    let used = used.get(node).copied().unwrap_or(0);
    let full = || PlacementError::Full { nodes: vec![format!("{used} of {slots} on {node}")] };
    Ok(if used < slots { Ok(()) } else { Err(full()) })
}

fn candidate<'n>(node: &'n EngineNode, used: &HashMap<String, i64>) -> Candidate<'n> {
    Candidate {
        name: &node.name,
        labels: &node.offer.labels,
        fault: node.fault.as_deref(),
        slots: node.offer.slots,
        taken: used.get(&node.name).copied().unwrap_or(0),
    }
}

const BIND: Sql = Sql::both(&["update runtimes set node = $3 where tenant = $1 and name = $2"]);

/// Binds a runtime to a node.
pub(super) async fn bind(tx: &mut Tx<'_>, runtime: &Runtime, node: &str) -> Result<(), StoreError> {
    let params = [Param::Int(runtime.tenant.0), Param::Text(runtime.name.as_str()), Param::Text(node)];
    tx.execute(&BIND, &params).await.map(|_| ())
}
