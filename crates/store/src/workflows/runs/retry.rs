//! Retries an ended run: a new run with the nodes that did not succeed and everything behind them. The results of the nodes
//! that succeeded are inputs of the new nodes.

use std::collections::{HashMap, HashSet};

use domain::{JobId, Label, NeedCondition, NodeEnd, RunState, TenantId};

use super::get::Run;
use super::needs::{read_condition, read_end};
use super::start::{NewNode, NewRun, RunStarted};
use crate::access::caller::Caller;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::get::{StoredJob, find};
use crate::queue::retry::copy;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunRetried {
    Started(Vec<(Label, JobId)>),
    /// An earlier retry created this run.
    AlreadyRetried(String),
    /// The run has not ended.
    Running,
    /// Every node of the run succeeded, or its jobs were deleted.
    NothingToRetry,
    NotFound,
}

impl Store {
    /// Starts the run `new` with the nodes of `run` that did not succeed and everything behind them.
    pub async fn retry_run(
        &self,
        tenant: TenantId,
        run: Label,
        new: Label,
        by: impl Into<Caller>,
    ) -> Result<RunRetried, StoreError> {
        let by = by.into();
        let Some((old, _)) = self.run(tenant, run.clone()).await? else { return Ok(RunRetried::NotFound) };
        if old.state == RunState::Running {
            return Ok(RunRetried::Running);
        }
        if let Some(retry) = old.retried_as {
            return Ok(RunRetried::AlreadyRetried(retry));
        }
        let nodes = self.read(FindUnfinished { tenant, run: run.clone(), by: by.clone() }).await?;
        if nodes.is_empty() {
            return Ok(RunRetried::NothingToRetry);
        }
        let Run { name, on_failure, webhook, tags, .. } = old;
        let started = NewRun {
            id: new,
            name: name.as_deref().map(Label::stored),
            on_failure,
            webhook,
            tags: tags.iter().map(|tag| Label::stored(tag)).collect(),
            principal: by.name.as_str().into(),
            // The depth never shrinks, so a run that retries itself reaches the depth limit.
            depth: old.depth.max(by.depth),
            parent: Some(run),
        };
        Ok(match self.start_run(tenant, started, nodes).await? {
            RunStarted::Started(jobs) => RunRetried::Started(jobs),
            RunStarted::AlreadyRetried(retry) => RunRetried::AlreadyRetried(retry),
            RunStarted::Exists => return Err(StoreError::unexpected("the id of a retry is taken")),
            RunStarted::Refused(error) => return Err(StoreError::unexpected(format!("a retried graph: {error}"))),
        })
    }
}

struct FindUnfinished {
    tenant: TenantId,
    run: Label,
    by: Caller,
}

const NODES: Sql =
    Sql::both(&["select name, job, condition, outcome from run_nodes where tenant = $1 and run = $2 order by job"]);
const NEEDS: Sql = Sql::both(&["select e.need, e.node from run_nodes n join run_needs e on e.node = n.job
     where n.tenant = $1 and n.run = $2"]);

impl Operation for FindUnfinished {
    type Output = Vec<NewNode>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<NewNode>, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.run.as_str())];
        let mut nodes: Vec<(JobId, Label, NeedCondition)> = Vec::new();
        let mut again: Vec<JobId> = Vec::new();
        for row in tx.query(&NODES, &params).await? {
            let job = row.job("job")?;
            let end = row.opt_text("outcome")?.map(|text| read_end(&text)).transpose()?;
            if end != Some(NodeEnd::Succeeded) {
                again.push(job);
            }
            nodes.push((job, Label::stored(&row.text("name")?), read_condition(&row.text("condition")?)?));
        }
        let mut needs: HashMap<JobId, Vec<JobId>> = HashMap::new();
        let mut needed_by: HashMap<JobId, Vec<JobId>> = HashMap::new();
        for row in tx.query(&NEEDS, &params).await? {
            let (need, node) = (row.job("need")?, row.job("node")?);
            needs.entry(node).or_default().push(need);
            needed_by.entry(need).or_default().push(node);
        }
        let mut retried: HashSet<JobId> = again.iter().copied().collect();
        while let Some(job) = again.pop() {
            let behind = needed_by.get(&job).into_iter().flatten();
            again.extend(behind.filter(|node| retried.insert(**node)).copied().collect::<Vec<_>>());
        }
        let names: HashMap<JobId, Label> = nodes.iter().map(|(job, name, _)| (*job, name.clone())).collect();
        let mut unfinished = Vec::with_capacity(retried.len());
        for (job, name, condition) in nodes.into_iter().filter(|(job, ..)| retried.contains(job)) {
            // The job of a node may be deleted already; then the run cannot be repeated as it was.
            let Some(old): Option<StoredJob> = find(tx, self.tenant, job).await? else { return Ok(Vec::new()) };
            let (again, earlier): (Vec<JobId>, Vec<JobId>) =
                needs.remove(&job).unwrap_or_default().into_iter().partition(|need| retried.contains(need));
            let needs = again.iter().filter_map(|need| names.get(need).cloned()).collect();
            unfinished.push(NewNode {
                name,
                job: copy(&old, None, &self.by),
                needs,
                earlier_needs: earlier,
                condition,
            });
        }
        Ok(unfinished)
    }
}
