//! Moves a runtime to another node: by itself when its node is lost and it is movable, or because somebody says so.
//!
//! The record lets go of the container there at once, so that there is one current container at any time. Should that node
//! come back, it finds a container whose runtime is elsewhere, and disposes of it.

use domain::runtime::placement::Nowhere;
use domain::runtime::{Desired, OperationCode, OperationKind, OperationSource, RuntimeStatus};
use domain::{JobId, RuntimeName, TenantId, Time};

use crate::codec::to_json;
use crate::error::StoreError;
use crate::maintenance::beat::served_since;
use crate::pools;
use crate::runtimes::begin::TO_LANE;
use crate::runtimes::nodes::{self, EngineNode, LOST_AFTER_S};
use crate::runtimes::request::{NewOperation, Place, Request, asked_for};
use crate::runtimes::{Runtime, get, place};
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

/// What came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Moved {
    /// It is on this node now, and is started there if it ran or is wanted.
    To(String),
    Refused {
        code: OperationCode,
        message: String,
    },
    NotFound,
}

/// A runtime that was moved by itself.
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
    /// Moves a runtime by hand: to this node, or to the one that has the most room.
    pub async fn move_runtime(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        to: Option<String>,
        actor: String,
    ) -> Result<Moved, StoreError> {
        let look = LookAround { tenant, name: name.clone(), to };
        let (from, to) = match self.read(look).await? {
            Ok(found) => found,
            Err(moved) => return Ok(moved),
        };
        let why = format!("moved from {from} to {to} by {actor}");
        let relocate = Plan { tenant, name: name.clone(), from, to, why, silent_s: None, start: Start::IfItRan, actor };
        match self.relocate(relocate).await? {
            Some(to) => Ok(Moved::To(to)),
            None => Ok(refused(OperationCode::Conflict, "it has changed meanwhile; look at it and ask again")),
        }
    }

    /// Moves what is movable off nodes that have been silent for so long.
    pub async fn leave_lost_nodes(&self, after_s: i64) -> Result<Vec<Relocated>, StoreError> {
        let mut moved = Vec::new();
        for stranded in self.read(Strand { after_s }).await? {
            let Stranded { tenant, name, from, to, silent_s, start, in_the_way } = stranded;
            for job in in_the_way {
                self.cancel(tenant, job, "reconcile".into()).await?;
            }
            let why = format!("moved from {from} to {to}: {from} has been silent for {silent_s} s");
            let silent_s = Some(after_s);
            let actor = "reconcile".to_owned();
            let plan = Plan { tenant, name: name.clone(), from: from.clone(), to, why, silent_s, start, actor };
            if let Some(to) = self.relocate(plan).await? {
                moved.push(Relocated { name, from, to });
            }
        }
        Ok(moved)
    }

    async fn relocate(&self, plan: Plan) -> Result<Option<String>, StoreError> {
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
        let request = self.operation_at(tenant, &plan.name, &start, Place::Bound(to.clone())).await?;
        let lane = self.lane_of_node(tenant, &to).await?;
        if !self.write(Relocate { plan, request, lane }).await? {
            return Ok(None);
        }
        self.announce(&asked_for(tenant));
        Ok(Some(to))
    }
}

/// Whether it is started where it comes to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Start {
    IfItRan,
    /// Its pool does that when somebody needs it.
    ByItsPool,
}

/// A move that would do a moment ago.
struct Plan {
    tenant: TenantId,
    name: RuntimeName,
    from: String,
    to: String,
    why: String,
    /// Only if the node has been silent for so long; whatever it does, when `None`.
    silent_s: Option<i64>,
    start: Start,
    actor: String,
}

struct LookAround {
    tenant: TenantId,
    name: RuntimeName,
    to: Option<String>,
}

impl Operation for LookAround {
    type Output = Result<(String, String), Moved>;

    // No tenant: slots are everybody's.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Some(runtime) = get::find(tx, self.tenant, self.name.as_str()).await? else {
            return Ok(Err(Moved::NotFound));
        };
        let Some(from) = runtime.node.clone() else {
            let message = "it is on no node; a start finds one";
            return Ok(Err(refused(OperationCode::Conflict, message)));
        };
        if self.to.as_ref() == Some(&from) {
            return Ok(Err(refused(OperationCode::Conflict, format!("it is on the node {from} already"))));
        }
        let nodes = nodes::all(tx).await?;
        let now = tx.now();
        let is_there = nodes.iter().any(|node| node.name == from && !node.is_lost(now));
        if is_there && (runtime.status == RuntimeStatus::Running || runtime.in_flight.is_some()) {
            let message = format!("the node {from}, which it is on, is there; stop it first");
            return Ok(Err(refused(OperationCode::Conflict, message)));
        }
        let on: Vec<&str> = match &self.to {
            Some(to) => vec![to],
            None => nodes.iter().map(|node| node.name.as_str()).filter(|name| *name != from).collect(),
        };
        Ok(match place::find_on(tx, &runtime, &runtime.spec.placement, &on).await? {
            Ok(to) => Ok((from, to)),
            Err(Nowhere::NoNode) => {
                let message = match &self.to {
                    Some(to) => format!("the node {to} does not drive an engine now"),
                    None => "no other node drives an engine now".into(),
                };
                Err(refused(OperationCode::ServiceUnavailable, message))
            }
            Err(nowhere) => Err(refused(nowhere.code(), nowhere.to_string())),
        })
    }
}

/// A runtime on a node that is lost, and where it can go.
struct Stranded {
    tenant: TenantId,
    name: RuntimeName,
    from: String,
    to: String,
    silent_s: i64,
    start: Start,
    /// Jobs of operations that its pool asked for on that node.
    in_the_way: Vec<JobId>,
}

struct Strand {
    after_s: i64,
}

const OPEN_JOBS: Sql = Sql::both(&["select job from operations
     where tenant = $1 and runtime = $2 and finished_at is null and job is not null"]);

impl Operation for Strand {
    type Output = Vec<Stranded>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Stranded>, StoreError> {
        let nodes = nodes::all(tx).await?;
        let (served, now) = (served_since(tx).await?, tx.now());
        let mut stranded = Vec::new();
        for node in nodes.iter().filter(|node| is_silent(node, self.after_s, served, now)) {
            let silent_s = silent_ms(node, served, now) / 1_000;
            for runtime in get::of_node(tx, &node.name).await? {
                if !runtime.spec.movable || runtime.deleting {
                    continue;
                }
                let Some((to, start)) = whereto(tx, &nodes, &runtime).await? else { continue };
                let in_the_way = match start {
                    Start::IfItRan => Vec::new(),
                    Start::ByItsPool => open_jobs(tx, &runtime).await?,
                };
                let (tenant, name, from) = (runtime.tenant, runtime.name, node.name.clone());
                stranded.push(Stranded { tenant, name, from, to, silent_s, start, in_the_way });
            }
        }
        Ok(stranded)
    }
}

/// For how long a node could have been heard and was not: an outage of ours is nobody's silence.
fn silent_ms(node: &EngineNode, served_since: Time, now: Time) -> i64 {
    now.ms_since(node.seen_at.max(served_since))
}

fn is_silent(node: &EngineNode, for_s: i64, served_since: Time, now: Time) -> bool {
    let silent_ms = silent_ms(node, served_since, now);
    silent_ms > LOST_AFTER_S * 1_000 && silent_ms >= for_s * 1_000
}

async fn open_jobs(tx: &mut Tx<'_>, runtime: &Runtime) -> Result<Vec<JobId>, StoreError> {
    let params = [Param::Int(runtime.tenant.0), Param::Text(runtime.name.as_str())];
    tx.query(&OPEN_JOBS, &params).await?.iter().map(|row| row.job(0)).collect()
}

/// Members of a pool go together, or not at all: the pool is run where they are.
async fn whereto(
    tx: &mut Tx<'_>,
    nodes: &[EngineNode],
    runtime: &Runtime,
) -> Result<Option<(String, Start)>, StoreError> {
    let Some(pool) = pools::get::of_runtime(tx, runtime.tenant, &runtime.name).await? else {
        return Ok(place::find(tx, runtime, None).await?.ok().map(|to| (to, Start::IfItRan)));
    };
    let now = tx.now();
    let is_there = |name: &str| nodes.iter().any(|node| node.name == name && !node.is_lost(now));
    let mut wanted = pool.spec.placement.clone();
    for member in &pool.spec.members {
        let Some(member) = get::find(tx, runtime.tenant, member.runtime.as_str()).await? else { continue };
        wanted.labels.extend(member.spec.placement.labels);
        match member.node {
            Some(node) if is_there(&node) => return Ok(Some((node, Start::ByItsPool))),
            Some(_) if !member.spec.movable => return Ok(None),
            _ => {}
        }
    }
    let everywhere: Vec<&str> = nodes.iter().map(|node| node.name.as_str()).collect();
    let found = place::find_on(tx, runtime, &wanted, &everywhere).await?;
    Ok(found.ok().map(|to| (to, Start::ByItsPool)))
}

struct Relocate {
    plan: Plan,
    request: Request,
    lane: i64,
}

const LEAVE: Sql = Sql::both(&[
    "update runtimes set node = $3, status = 'removed', container_id = null, endpoint = null, removed_at = $4,
         last_op_at = $4, health = null, health_source = null, health_details = null, health_at = null
     where tenant = $1 and name = $2",
]);
const TAKE_ALONG: Sql =
    Sql::both(&["update operations set node = $3 where tenant = $1 and runtime = $2 and finished_at is null"]);

impl Operation for Relocate {
    /// Whether it was moved; if not, things have changed since it was looked at.
    type Output = bool;

    // No tenant: slots are everybody's.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Plan { tenant, name, from, to, why, silent_s, start, actor } = &self.plan;
        place::lock(tx).await?;
        let Some(runtime) = get::lock(tx, *tenant, name.as_str()).await? else { return Ok(false) };
        let (nodes, served, now) = (nodes::all(tx).await?, served_since(tx).await?, tx.now());
        let is_still = |for_s| nodes.iter().any(|node| node.name == *from && is_silent(node, for_s, served, now));
        let still_silent = silent_s.is_none_or(is_still);
        if runtime.node.as_ref() != Some(from) || !still_silent {
            return Ok(false);
        }
        if place::find(tx, &runtime, Some(to)).await?.is_err() && *start == Start::IfItRan {
            return Ok(false);
        }
        let id = [Param::Int(tenant.0), Param::Text(name.as_str())];
        tx.execute(&LEAVE, &[id[0], id[1], Param::Text(to), Param::Time(tx.now())]).await?;
        let jobs = open_jobs(tx, &runtime).await?;
        tx.execute(&TAKE_ALONG, &[id[0], id[1], Param::Text(to)]).await?;
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
        let wanted = match runtime.spec.desired {
            Some(desired) => desired == Desired::Running,
            None => runtime.status == RuntimeStatus::Running,
        };
        if jobs.is_empty() && wanted && *start == Start::IfItRan {
            self.request.ask(tx, &runtime).await?;
        }
        Ok(true)
    }
}
