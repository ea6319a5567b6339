//! The nodes of runs whose needs ended: which of them start and which cannot start any more.

use std::collections::{BTreeMap, HashMap, VecDeque};

use domain::{JobId, NeedCondition, NodeDecision, NodeEnd, NodeProgress, TenantId};

use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;

/// A node that has not ended.
struct OpenNode {
    name: String,
    progress: NodeProgress,
    decision: NodeDecision,
    is_changed: bool,
}

/// The nodes of a run that have not ended, and for each job the nodes that need it.
#[derive(Default)]
struct OpenGraph {
    nodes: BTreeMap<JobId, OpenNode>,
    needed_by: HashMap<JobId, Vec<JobId>>,
}

/// A node that ended, with its name.
type EndedNode = (JobId, String, NodeEnd);

/// What the ends of nodes cause in one run.
#[derive(Default)]
pub(super) struct Consequences {
    pub(super) start: Vec<JobId>,
    /// Nodes that cannot start any more: how they end and why.
    pub(super) end: Vec<(JobId, NodeEnd, String)>,
}

const SET_OUTCOME: Sql = Sql::new(
    &["update run_nodes set outcome = $2 where job = $1 and outcome is null returning job, name, outcome"],
    "update run_nodes r set outcome = n.outcome from unnest($1::uuid[], $2::text[]) as n(job, outcome)
     where r.job = n.job and r.outcome is null returning r.job, r.name, r.outcome",
);
const NEEDED_BY: Sql = Sql::new(
    &["select e.need, n.job, n.name, n.condition, n.unmet, n.failed
       from run_needs e join run_nodes n on n.job = e.node where e.need = $1 and n.outcome is null"],
    "select e.need, n.job, n.name, n.condition, n.unmet, n.failed
     from run_needs e join run_nodes n on n.job = e.node where e.need = any($1::uuid[]) and n.outcome is null",
);
const OPEN_NODES: Sql = Sql::both(&["select job, name, condition, unmet, failed from run_nodes
     where tenant = $1 and run = $2 and outcome is null"]);
const OPEN_NEEDS: Sql = Sql::both(&["select e.need, e.node from run_nodes n join run_needs e on e.node = n.job
     where n.tenant = $1 and n.run = $2 and n.outcome is null"]);
const SET_PROGRESS: Sql = Sql::new(
    &["update run_nodes set unmet = $2, failed = $3 where job = $1"],
    "update run_nodes r set unmet = n.unmet, failed = n.failed
     from unnest($1::uuid[], $2::bigint[], $3::bigint[]) as n(job, unmet, failed) where r.job = n.job",
);

/// Records the ends of nodes of one run and decides what follows for the nodes that need them. The caller has locked the
/// run. Jobs that are not nodes, and nodes whose end is recorded, have no effect.
pub(super) async fn nodes_ended(
    tx: &mut Tx<'_>,
    (tenant, run): (TenantId, &str),
    ends: &[(JobId, NodeEnd)],
) -> Result<Consequences, StoreError> {
    let ended = set_outcomes(tx, ends).await?;
    if ended.is_empty() {
        return Ok(Consequences::default());
    }
    let mut graph = OpenGraph::default();
    for row in tx.query_each(&NEEDED_BY, &[Column::jobs(ended.iter().map(|(job, ..)| *job))], &[]).await? {
        let (node, open) = OpenNode::read(&row)?;
        graph.needed_by.entry(row.job("need")?).or_default().push(node);
        graph.nodes.insert(node, open);
    }
    if graph.propagate(ended.clone()) {
        // A node ended without having started, and others may need it. Such a chain can be as long as the run, so it is
        // followed in memory.
        graph = OpenGraph::default();
        let of_run = [Param::Int(tenant.0), Param::Text(run)];
        for row in tx.query(&OPEN_NODES, &of_run).await? {
            let (node, open) = OpenNode::read(&row)?;
            graph.nodes.insert(node, open);
        }
        for row in tx.query(&OPEN_NEEDS, &of_run).await? {
            graph.needed_by.entry(row.job("need")?).or_default().push(row.job("node")?);
        }
        graph.propagate(ended);
    }
    let changed: Vec<(JobId, OpenNode)> = graph.nodes.into_iter().filter(|(_, node)| node.is_changed).collect();
    let columns = [
        Column::jobs(changed.iter().map(|(job, _)| *job)),
        Column::ints(changed.iter().map(|(_, node)| node.progress.unmet)),
        Column::ints(changed.iter().map(|(_, node)| node.progress.failed)),
    ];
    tx.execute_each(&SET_PROGRESS, &columns, &[]).await?;
    let mut consequences = Consequences::default();
    for (job, node) in changed {
        match node.decision {
            NodeDecision::Wait => {}
            NodeDecision::Start => consequences.start.push(job),
            NodeDecision::End(end, cause) => consequences.end.push((job, end, cause)),
        }
    }
    set_outcomes(tx, &consequences.end.iter().map(|(job, end, _)| (*job, *end)).collect::<Vec<_>>()).await?;
    Ok(consequences)
}

/// Sets the outcomes of nodes that have none, and returns those nodes.
async fn set_outcomes(tx: &mut Tx<'_>, ends: &[(JobId, NodeEnd)]) -> Result<Vec<EndedNode>, StoreError> {
    let columns =
        [Column::jobs(ends.iter().map(|(job, _)| *job)), Column::texts(ends.iter().map(|(_, end)| end.as_str()))];
    let rows = tx.query_each(&SET_OUTCOME, &columns, &[]).await?;
    rows.iter().map(|row| Ok((row.job("job")?, row.text("name")?, read_end(&row.text("outcome")?)?))).collect()
}

pub(super) fn read_end(text: &str) -> Result<NodeEnd, StoreError> {
    NodeEnd::parse(text).ok_or_else(|| StoreError::unexpected(format!("outcome {text}")))
}

pub(super) fn read_condition(text: &str) -> Result<NeedCondition, StoreError> {
    NeedCondition::parse(text).ok_or_else(|| StoreError::unexpected(format!("condition {text}")))
}

impl OpenNode {
    fn read(row: &Row) -> Result<(JobId, Self), StoreError> {
        let progress = NodeProgress {
            condition: read_condition(&row.text("condition")?)?,
            unmet: row.int("unmet")?,
            failed: row.int("failed")?,
        };
        let (name, decision) = (row.text("name")?, NodeDecision::Wait);
        Ok((row.job("job")?, Self { name, progress, decision, is_changed: false }))
    }
}

impl OpenGraph {
    /// Applies the ends of nodes to the nodes that need them. A node that cannot start any more ends too, and is applied to
    /// the nodes that need it. Returns true if there was one.
    fn propagate(&mut self, ended: Vec<EndedNode>) -> bool {
        let mut queue: VecDeque<EndedNode> = ended.into();
        let mut has_ended_more = false;
        while let Some((job, name, end)) = queue.pop_front() {
            for node in self.needed_by.get(&job).into_iter().flatten() {
                let Some(open) = self.nodes.get_mut(node).filter(|open| open.decision == NodeDecision::Wait) else {
                    continue;
                };
                open.decision = open.progress.need_ended(&name, end);
                open.is_changed = true;
                if let NodeDecision::End(end, _) = &open.decision {
                    queue.push_back((*node, open.name.clone(), *end));
                    has_ended_more = true;
                }
            }
        }
        has_ended_more
    }
}
