//! Starts a run with its nodes, and adds nodes to a run. All or none of the jobs are created.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use domain::workflows::graph::{self, GraphError, GraphNode};
use domain::{JobId, Label, NeedCondition, NodeDecision, NodeProgress, OnFailure, RunState, TenantId};

use super::needs::read_end;
use crate::db::clock::new_job_ids;
use crate::db::codec::to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{EnqueueBatch, EnqueueRequest, NewJob};
use crate::queue::lanes::Lane;
use crate::store::Store;

/// A run to start. Its nodes are validated, except for the graph.
#[derive(Clone, Debug)]
pub struct NewRun {
    pub id: Label,
    pub name: Option<Label>,
    pub on_failure: OnFailure,
    /// The webhook, as JSON.
    pub webhook: Option<String>,
    pub tags: Vec<Label>,
    pub principal: Arc<str>,
    pub depth: i32,
    /// The run that this one retries.
    pub parent: Option<Label>,
}

#[derive(Clone, Debug)]
pub struct NewNode {
    pub name: Label,
    pub job: NewJob,
    pub needs: Vec<Label>,
    /// Ended jobs of an earlier run that this node needs: it does not wait for them, and gets their results.
    pub earlier_needs: Vec<JobId>,
    pub condition: NeedCondition,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunStarted {
    /// The jobs by the names of their nodes.
    Started(Vec<(Label, JobId)>),
    /// A run with this id exists.
    Exists,
    Refused(GraphError),
    /// Another run has retried the parent.
    AlreadyRetried(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodesAdded {
    Added(Vec<(Label, JobId)>),
    NotFound,
    /// The run has ended or is being canceled.
    Ended(RunState),
    Refused(GraphError),
    /// The node at this index needs a node that ended otherwise than its condition requires.
    CannotStart {
        node: usize,
        cause: String,
    },
}

impl Store {
    /// Starts a run and returns after the commit.
    pub async fn start_run(
        &self,
        tenant: TenantId,
        mut run: NewRun,
        nodes: Vec<NewNode>,
    ) -> Result<RunStarted, StoreError> {
        if let Err(error) = graph::check(&graph_of(&nodes), &HashSet::new()) {
            return Ok(RunStarted::Refused(error));
        }
        if let Some(webhook) = &mut run.webhook {
            self.seal_webhook_text(tenant, webhook).await?;
        }
        let (nodes, lanes) = self.prepare(tenant, &run.id, nodes).await?;
        let (started, effects) = self.write(StartRun { tenant, run, nodes, lanes }).await?;
        self.announce(&effects);
        Ok(started)
    }

    /// Adds nodes to a run that has not ended. Their needs may name nodes that the run has already.
    pub async fn add_nodes(&self, tenant: TenantId, run: Label, nodes: Vec<NewNode>) -> Result<NodesAdded, StoreError> {
        let (nodes, lanes) = self.prepare(tenant, &run, nodes).await?;
        let (added, effects) = self.write(AddNodes { tenant, run, nodes, lanes }).await?;
        self.announce(&effects);
        Ok(added)
    }

    /// Seals the webhooks, names the run in each job, and finds the lanes.
    async fn prepare(
        &self,
        tenant: TenantId,
        run: &Label,
        mut nodes: Vec<NewNode>,
    ) -> Result<(Vec<NewNode>, Vec<i64>), StoreError> {
        for node in &mut nodes {
            let extras = node.job.extras.get_or_insert_default();
            extras.run = Some(run.clone());
            self.seal_webhooks(tenant, std::slice::from_mut(&mut node.job)).await?;
        }
        let lanes: Vec<Lane> = nodes.iter().map(|node| node.job.lane(tenant)).collect();
        let lanes = self.lane_ids(&lanes).await?;
        Ok((nodes, lanes))
    }
}

fn graph_of(nodes: &[NewNode]) -> Vec<GraphNode<'_>> {
    let mut graph = Vec::with_capacity(nodes.len());
    for node in nodes {
        graph.push(GraphNode { name: node.name.as_str(), needs: node.needs.iter().map(Label::as_str).collect() });
    }
    graph
}

struct StartRun {
    tenant: TenantId,
    run: NewRun,
    nodes: Vec<NewNode>,
    lanes: Vec<i64>,
}

const INSERT_RUN: Sql =
    Sql::both(&["insert into runs (tenant, run, name, state, on_failure, is_open, live, succeeded,
         failed, canceled, skipped, webhook, tags, principal, depth, parent, version, created_at)
     values ($1, $2, $3, 'running', $4, $5, 0, 0, 0, 0, 0, $6, $7, $8, $9, $10, 0, $11)
     on conflict (tenant, run) do nothing returning run"]);
const LINK_PARENT: Sql = Sql::both(&["update runs set retried_as = $3
     where tenant = $1 and run = $2 and retried_as is null returning run"]);
const RETRIED_AS: Sql = Sql::both(&["select retried_as from runs where tenant = $1 and run = $2"]);

impl Operation for StartRun {
    type Output = (RunStarted, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let NewRun { id, name, on_failure, webhook, tags, principal, depth, parent } = &self.run;
        if let Some(parent) = parent {
            let link = [Param::Int(self.tenant.0), Param::Text(parent.as_str()), Param::Text(id.as_str())];
            if tx.query_opt(&LINK_PARENT, &link).await?.is_none() {
                let row = tx.query_opt(&RETRIED_AS, &link[..2]).await?;
                let retry = row.map(|row| row.opt_text("retried_as")).transpose()?.flatten().unwrap_or_default();
                return Ok((RunStarted::AlreadyRetried(retry), Effects::default()));
            }
        }
        let tags = (!tags.is_empty()).then(|| to_json(&tags.iter().map(Label::as_str).collect::<Vec<_>>()));
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(id.as_str()),
            Param::text(name.as_ref().map(Label::as_str)),
            Param::Text(on_failure.as_str()),
            Param::Bool(false),
            Param::json(webhook.as_deref()),
            Param::json(tags.as_deref()),
            Param::Text(principal),
            Param::Int(i64::from(*depth)),
            Param::text(parent.as_ref().map(Label::as_str)),
            Param::Time(tx.now()),
        ];
        if tx.query_opt(&INSERT_RUN, &params).await?.is_none() {
            return Ok((RunStarted::Exists, Effects::default()));
        }
        let decided: Vec<Planned> = self.nodes.iter().map(Planned::first).collect();
        let (jobs, effects) =
            insert_nodes(tx, (self.tenant, id), &self.nodes, &self.lanes, decided, &HashMap::new()).await?;
        Ok((RunStarted::Started(jobs), effects))
    }
}

struct AddNodes {
    tenant: TenantId,
    run: Label,
    nodes: Vec<NewNode>,
    lanes: Vec<i64>,
}

const LOCK_RUN: Sql = Sql::new(
    &["select state, stopping_at from runs where tenant = $1 and run = $2"],
    "select state, stopping_at from runs where tenant = $1 and run = $2 for update",
);
const NODES: Sql = Sql::both(&["select name, job, outcome from run_nodes where tenant = $1 and run = $2"]);

impl Operation for AddNodes {
    type Output = (NodesAdded, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.run.as_str())];
        let none = Effects::default;
        let Some(row) = tx.query_opt(&LOCK_RUN, &params).await? else { return Ok((NodesAdded::NotFound, none())) };
        let state = row.text("state")?;
        let state = RunState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?;
        if state != RunState::Running || !row.is_null("stopping_at")? {
            return Ok((NodesAdded::Ended(state), none()));
        }
        let mut existing = HashMap::new();
        for row in tx.query(&NODES, &params).await? {
            let end = row.opt_text("outcome")?.map(|text| read_end(&text)).transpose()?;
            existing.insert(row.text("name")?, (row.job("job")?, end));
        }
        let names: HashSet<&str> = existing.keys().map(String::as_str).collect();
        if let Err(error) = graph::check(&graph_of(&self.nodes), &names) {
            return Ok((NodesAdded::Refused(error), none()));
        }
        let mut planned = Vec::with_capacity(self.nodes.len());
        for (number, node) in self.nodes.iter().enumerate() {
            let mut plan = Planned::first(node);
            for need in &node.needs {
                let Some((_, Some(end))) = existing.get(need.as_str()) else { continue };
                match plan.progress.need_ended(need.as_str(), *end) {
                    NodeDecision::End(_, cause) => {
                        return Ok((NodesAdded::CannotStart { node: number, cause }, none()));
                    }
                    NodeDecision::Wait | NodeDecision::Start => {}
                }
            }
            planned.push(plan);
        }
        let of_names: HashMap<&str, JobId> = existing.iter().map(|(name, (job, _))| (name.as_str(), *job)).collect();
        let run = (self.tenant, &self.run);
        let (jobs, effects) = insert_nodes(tx, run, &self.nodes, &self.lanes, planned, &of_names).await?;
        Ok((NodesAdded::Added(jobs), effects))
    }
}

/// A node and the needs that it still has.
struct Planned {
    progress: NodeProgress,
}

impl Planned {
    /// A node all of whose needs are unmet.
    fn first(node: &NewNode) -> Self {
        Self { progress: NodeProgress { condition: node.condition, unmet: node.needs.len() as i64, failed: 0 } }
    }
}

const INSERT_NODE: Sql = Sql::new(
    &["insert into run_nodes (name, job, condition, unmet, failed, tenant, run) values ($1, $2, $3, $4, $5, $6, $7)"],
    "insert into run_nodes (name, job, condition, unmet, failed, tenant, run)
     select n.*, $6::bigint, $7::text from unnest($1::text[], $2::uuid[], $3::text[], $4::bigint[], $5::bigint[]) n",
);
const INSERT_NEED: Sql = Sql::new(
    &["insert into run_needs (need, node, tenant, run) values ($1, $2, $3, $4)"],
    "insert into run_needs (need, node, tenant, run)
     select n.*, $3::bigint, $4::text from unnest($1::uuid[], $2::uuid[]) n",
);

/// Inserts the jobs of the nodes, the nodes and their needs. `existing` are the nodes that the run had before.
async fn insert_nodes(
    tx: &mut Tx<'_>,
    (tenant, run): (TenantId, &Label),
    nodes: &[NewNode],
    lanes: &[i64],
    planned: Vec<Planned>,
    existing: &HashMap<&str, JobId>,
) -> Result<(Vec<(Label, JobId)>, Effects), StoreError> {
    let ids = new_job_ids(tx.now(), nodes.len());
    let mut of_names = existing.clone();
    of_names.extend(nodes.iter().zip(&ids).map(|(node, id)| (node.name.as_str(), *id)));
    let mut jobs: Vec<NewJob> = Vec::with_capacity(nodes.len());
    for (node, plan) in nodes.iter().zip(&planned) {
        let mut job = node.job.clone();
        let extras = job.extras.get_or_insert_default();
        extras.waits = plan.progress.unmet > 0;
        extras.has_inputs = !node.needs.is_empty() || !node.earlier_needs.is_empty();
        jobs.push(job);
    }
    let columns = [
        Column::texts(nodes.iter().map(|node| node.name.as_str())),
        Column::jobs(ids.iter().copied()),
        Column::texts(nodes.iter().map(|node| node.condition.as_str())),
        Column::ints(planned.iter().map(|plan| plan.progress.unmet)),
        Column::ints(planned.iter().map(|plan| plan.progress.failed)),
    ];
    let of_run = [Param::Int(tenant.0), Param::Text(run.as_str())];
    tx.execute_each(&INSERT_NODE, &columns, &of_run).await?;
    let mut edges: Vec<(JobId, JobId)> = Vec::new();
    for (node, id) in nodes.iter().zip(&ids) {
        edges.extend(node.needs.iter().map(|need| (of_names[need.as_str()], *id)));
        edges.extend(node.earlier_needs.iter().map(|need| (*need, *id)));
    }
    let columns =
        [Column::jobs(edges.iter().map(|(need, _)| *need)), Column::jobs(edges.iter().map(|(_, node)| *node))];
    tx.execute_each(&INSERT_NEED, &columns, &of_run).await?;
    let mut ready: BTreeMap<(TenantId, domain::Name), ()> = BTreeMap::new();
    for job in jobs.iter().filter(|job| !job.extras.as_deref().is_some_and(|extras| extras.waits)) {
        ready.insert((tenant, job.queue.clone()), ());
    }
    let request = EnqueueRequest::new(tenant, jobs, lanes.to_vec()).with_ids(ids.clone());
    EnqueueBatch::one(request).run(tx).await?;
    let effects = Effects { ready: ready.into_keys().collect(), due: true, ..Effects::default() };
    Ok((nodes.iter().map(|node| node.name.clone()).zip(ids).collect(), effects))
}
