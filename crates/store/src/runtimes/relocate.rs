//! Moves a runtime to another node: automatically if its node is lost and the runtime is movable, or on request of a
//! user.
//!
//! The record is unbound from the old container in the same transaction, so a runtime has at most one current
//! container. If the old node comes back, it finds a container whose runtime is on another node, and removes it.

use domain::runtimes::placement::PlacementError;
use domain::runtimes::{Desired, OperationCode, OperationKind, OperationSource, RuntimeStatus};
use domain::{JobId, RuntimeName, TenantId, Time};

use crate::db::codec::to_json;
use crate::db::service_heartbeat::served_since;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::begin::TO_LANE;
use crate::runtimes::nodes::{self, EngineNode, LOST_AFTER_S};
use crate::runtimes::pools;
use crate::runtimes::request::{NewOperation, OperationRequest, OperationTarget, operation_requested};
use crate::runtimes::{Runtime, get, place};
use crate::store::Store;

/// The result of a move.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The runtime is on this node now. It is started there if it was running or its desired state is `running`.
    To(String),
    Refused {
        code: OperationCode,
        message: String,
    },
    NotFound,
}

/// A runtime that was moved automatically.
#[derive(Clone, Debug)]
pub struct Relocated {
    pub name: RuntimeName,
    pub from: String,
    pub to: String,
}

fn refused(code: OperationCode, message: impl Into<String>) -> Moved {
    Moved::Refused { code, message: message.into() }
}

impl Store {
    /// Moves a runtime on request of a user: to the node `to`, or to the best node if it is `None`.
    pub async fn move_runtime(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        to: Option<String>,
        actor: String,
    ) -> Result<Moved, StoreError> {
        let find = FindMoveTarget { tenant, name: name.clone(), to };
        let (from, to) = match self.read(find).await? {
            Ok(found) => found,
            Err(moved) => return Ok(moved),
        };
        let why = format!("moved from {from} to {to} by {actor}");
        let start = StartPolicy::IfRunning;
        let relocate = MovePlan { tenant, name: name.clone(), from, to, why, silent_s: None, start, actor };
        match self.relocate(relocate).await? {
            Some(to) => Ok(Moved::To(to)),
            None => {
                Ok(refused(OperationCode::Conflict, "the runtime has changed in the meantime; check it and try again"))
            }
        }
    }

    /// Moves the movable runtimes off nodes that have been silent for `after_s` seconds. Called by a task.
    pub async fn evacuate_lost_nodes(&self, after_s: i64) -> Result<Vec<Relocated>, StoreError> {
        let mut moved = Vec::new();
        for stranded in self.read(FindStranded { after_s }).await? {
            let StrandedRuntime { tenant, name, from, to, silent_s, start, pool_jobs } = stranded;
            for job in pool_jobs {
                self.cancel(tenant, job, "reconcile".into()).await?;
            }
            let why = format!("moved from {from} to {to}: {from} has been silent for {silent_s} s");
            let silent_s = Some(after_s);
            let actor = "reconcile".to_owned();
            let plan = MovePlan { tenant, name: name.clone(), from: from.clone(), to, why, silent_s, start, actor };
            if let Some(to) = self.relocate(plan).await? {
                moved.push(Relocated { name, from, to });
            }
        }
        Ok(moved)
    }

    /// Carries out a plan. Returns `None` if it is no longer valid.
    async fn relocate(&self, plan: MovePlan) -> Result<Option<String>, StoreError> {
        let start = NewOperation {
            kind: OperationKind::Start,
            source: OperationSource::AutoReconcile,
            source_ref: Some(plan.why.clone()),
            image: None,
            actor: plan.actor.clone(),
            depth: 0,
            on: None,
        };
        let (tenant, to) = (plan.tenant, plan.to.clone());
        let request = self.operation_at(tenant, &plan.name, &start, OperationTarget::Bound(to.clone())).await?;
        let lane = self.lane_of_node(tenant, &to).await?;
        if !self.write(Relocate { plan, request, lane }).await? {
            return Ok(None);
        }
        self.announce(&operation_requested(tenant));
        Ok(Some(to))
    }
}

/// Whether the move starts the runtime on the new node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum StartPolicy {
    /// If it was running, or its desired state is `running`.
    IfRunning,
    /// Never: its pool starts it when a job needs it.
    ByPool,
}

/// A move that was valid when it was planned. It is checked again when it is carried out.
struct MovePlan {
    tenant: TenantId,
    name: RuntimeName,
    from: String,
    to: String,
    why: String,
    /// Carry out the move only if the node has been silent for this long; unconditionally if `None`.
    silent_s: Option<i64>,
    start: StartPolicy,
    actor: String,
}

struct FindMoveTarget {
    tenant: TenantId,
    name: RuntimeName,
    to: Option<String>,
}

impl Operation for FindMoveTarget {
    /// The current node and the new one, or why the runtime cannot be moved.
    type Output = Result<(String, String), Moved>;

    // No tenant, because the slots of a node are shared by the runtimes of all tenants.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Some(runtime) = get::find(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Err(Moved::NotFound));
        };
        let Some(from) = runtime.node.clone() else {
            let message = "the runtime is on no node; start it to place it on one";
            return Ok(Err(refused(OperationCode::Conflict, message)));
        };
        if self.to.as_ref() == Some(&from) {
            return Ok(Err(refused(OperationCode::Conflict, format!("the runtime is already on node {from}"))));
        }
        let nodes = nodes::all(tx).await?;
        let now = tx.now();
        let is_live = nodes.iter().any(|node| node.name == from && !node.is_lost(now));
        if is_live && (runtime.status == RuntimeStatus::Running || runtime.in_flight.is_some()) {
            let message = format!("the runtime is in use on node {from}, which is not lost; stop the runtime first");
            return Ok(Err(refused(OperationCode::Conflict, message)));
        }
        let on: Vec<&str> = match &self.to {
            Some(to) => vec![to],
            None => nodes.iter().map(|node| node.name.as_str()).filter(|name| *name != from).collect(),
        };
        Ok(match place::find_on(tx, &runtime, &runtime.spec.placement, &on).await? {
            Ok(to) => Ok((from, to)),
            Err(PlacementError::NoNode) => {
                let message = match &self.to {
                    Some(to) => format!("node {to} does not drive an engine now"),
                    None => "no other node drives an engine now".into(),
                };
                Err(refused(OperationCode::ServiceUnavailable, message))
            }
            Err(error) => Err(refused(error.code(), error.to_string())),
        })
    }
}

/// A runtime on a lost node, and the node to which it can move.
struct StrandedRuntime {
    tenant: TenantId,
    name: RuntimeName,
    from: String,
    to: String,
    silent_s: i64,
    start: StartPolicy,
    /// Jobs of open operations that its pool requested on the lost node. They are canceled.
    pool_jobs: Vec<JobId>,
}

struct FindStranded {
    after_s: i64,
}

const OPEN_JOBS: Sql = Sql::both(&["select job from operations
     where tenant = $1 and runtime = $2 and finished_at is null and job is not null"]);

impl Operation for FindStranded {
    type Output = Vec<StrandedRuntime>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<StrandedRuntime>, StoreError> {
        let nodes = nodes::all(tx).await?;
        let (served, now) = (served_since(tx).await?, tx.now());
        let mut stranded = Vec::new();
        for node in nodes.iter().filter(|node| is_silent(node, self.after_s, served, now)) {
            let silent_s = silent_ms(node, served, now) / 1_000;
            for runtime in get::of_node(tx, &node.name).await? {
                if !runtime.spec.movable || runtime.deleting {
                    continue;
                }
                let Some((to, start)) = target_node(tx, &nodes, &runtime).await? else { continue };
                let pool_jobs = match start {
                    StartPolicy::IfRunning => Vec::new(),
                    StartPolicy::ByPool => open_jobs(tx, &runtime).await?,
                };
                let (tenant, name, from) = (runtime.tenant, runtime.name, node.name.clone());
                stranded.push(StrandedRuntime { tenant, name, from, to, silent_s, start, pool_jobs });
            }
        }
        Ok(stranded)
    }
}

/// Returns how long a node has been silent. Downtime of the service does not count, because heartbeats could not be
/// recorded.
fn silent_ms(node: &EngineNode, served_since: Time, now: Time) -> i64 {
    now.ms_since(node.seen_at.max(served_since))
}

fn is_silent(node: &EngineNode, for_s: i64, served_since: Time, now: Time) -> bool {
    let silent_ms = silent_ms(node, served_since, now);
    silent_ms > LOST_AFTER_S * 1_000 && silent_ms >= for_s * 1_000
}

async fn open_jobs(tx: &mut Tx<'_>, runtime: &Runtime) -> Result<Vec<JobId>, StoreError> {
    let params = [Param::Int(runtime.tenant.0), Param::Text(runtime.name.as_str())];
    tx.query(&OPEN_JOBS, &params).await?.iter().map(|row| row.job("job")).collect()
}

/// Returns the node to which a stranded runtime can move. The members of a pool move to the same node or not at all,
/// because the pool runs on the node of its members.
async fn target_node(
    tx: &mut Tx<'_>,
    nodes: &[EngineNode],
    runtime: &Runtime,
) -> Result<Option<(String, StartPolicy)>, StoreError> {
    let Some(pool) = pools::get::of_runtime(tx, runtime.tenant, &runtime.name).await? else {
        return Ok(place::find(tx, runtime, None).await?.ok().map(|to| (to, StartPolicy::IfRunning)));
    };
    let now = tx.now();
    let is_live = |name: &str| nodes.iter().any(|node| node.name == name && !node.is_lost(now));
    let mut wanted = pool.spec.placement.clone();
    for member in &pool.spec.members {
        let Some(member) = get::find(tx, runtime.tenant, member.runtime.as_str()).await? else { continue };
        wanted.labels.extend(member.spec.placement.labels);
        match member.node {
            Some(node) if is_live(&node) => return Ok(Some((node, StartPolicy::ByPool))),
            Some(_) if !member.spec.movable => return Ok(None),
            _ => {}
        }
    }
    let all: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let found = place::find_on(tx, runtime, &wanted, &all).await?;
    Ok(found.ok().map(|to| (to, StartPolicy::ByPool)))
}

struct Relocate {
    plan: MovePlan,
    request: OperationRequest,
    lane: i64,
}

const UNBIND: Sql = Sql::both(&[
    "update runtimes set node = $3, status = 'removed', container_id = null, endpoint = null, removed_at = $4,
         last_op_at = $4, health = null, health_source = null, health_details = null, health_at = null
     where tenant = $1 and name = $2",
]);
const MOVE_OPERATIONS: Sql =
    Sql::both(&["update operations set node = $3 where tenant = $1 and runtime = $2 and finished_at is null"]);

impl Operation for Relocate {
    /// Whether the runtime was moved; false if the plan is no longer valid.
    type Output = bool;

    // No tenant, because the slots of a node are shared by the runtimes of all tenants.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let MovePlan { tenant, name, from, to, why, silent_s, start, actor } = &self.plan;
        place::lock(tx).await?;
        let Some(runtime) = get::lock(tx, *tenant, name.as_str()).await? else { return Ok(false) };
        let (nodes, served, now) = (nodes::all(tx).await?, served_since(tx).await?, tx.now());
        let is_from_silent = |for_s| nodes.iter().any(|node| node.name == *from && is_silent(node, for_s, served, now));
        if runtime.node.as_ref() != Some(from) || !silent_s.is_none_or(is_from_silent) {
            return Ok(false);
        }
        if place::find(tx, &runtime, Some(to)).await?.is_err() && *start == StartPolicy::IfRunning {
            return Ok(false);
        }
        let id = [Param::Int(tenant.0), Param::Text(name.as_str())];
        tx.execute(&UNBIND, &[id[0], id[1], Param::Text(to), Param::Time(tx.now())]).await?;
        let jobs = open_jobs(tx, &runtime).await?;
        tx.execute(&MOVE_OPERATIONS, &[id[0], id[1], Param::Text(to)]).await?;
        for job in &jobs {
            tx.execute(&TO_LANE, &[Param::from(*job), Param::Int(self.lane), Param::Time(tx.now())]).await?;
        }
        let subject = name.subject();
        let detail = to_json(&serde_json::json!({
            "from": from, "to": to, "why": why, "container_id": runtime.container_id,
        }));
        let entry = Entry {
            runtime: Some(name.as_str()),
            actor: Some(actor),
            detail: Some(detail),
            ..Entry::of_subject(*tenant, &subject, "moved")
        };
        timeline::write(tx, &[entry]).await?;
        let should_run = match runtime.spec.desired {
            Some(desired) => desired == Desired::Running,
            None => runtime.status == RuntimeStatus::Running,
        };
        if jobs.is_empty() && should_run && *start == StartPolicy::IfRunning {
            self.request.submit(tx, &runtime).await?;
        }
        Ok(true)
    }
}
