//! Reads runs: one with its nodes, or a page of them, newest first.

use std::collections::HashMap;

use domain::limits::{RUN_NODES, SCAN_ROWS};
use domain::{Affinity, JobError, JobId, JobState, Label, NeedCondition, OnFailure, RunState, TenantId, Time};

use super::needs::read_condition;
use crate::db::codec::{error_from_json, from_json};
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    pub id: String,
    pub name: Option<String>,
    pub state: RunState,
    pub on_failure: OnFailure,
    pub is_open: bool,
    /// Jobs that have not ended.
    pub live: i64,
    pub succeeded: i64,
    pub failed: i64,
    /// Canceled and skipped jobs.
    pub canceled: i64,
    pub is_stopping: bool,
    pub canceled_by: Option<String>,
    pub tags: Vec<String>,
    pub principal: String,
    pub depth: i32,
    pub webhook: Option<String>,
    pub parent: Option<String>,
    pub retried_as: Option<String>,
    pub version: i64,
    pub created_at: Time,
    pub finished_at: Option<Time>,
}

/// A job of a run.
#[derive(Clone, Debug)]
pub struct RunNode {
    /// `None` for a job that was pushed with the run's id.
    pub name: Option<String>,
    pub job: JobId,
    pub queue: String,
    pub kind: String,
    pub affinity: Affinity,
    pub state: JobState,
    pub attempt: i32,
    pub condition: NeedCondition,
    /// The names of the nodes that it needs.
    pub needs: Vec<String>,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub error: Option<JobError>,
    pub created_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
}

#[derive(Clone, Debug, Default)]
pub struct RunFilter {
    pub state: Option<RunState>,
    pub name: Option<Label>,
    pub tag: Option<Label>,
}

/// A page of runs.
#[derive(Clone, Debug, PartialEq)]
pub struct RunPage {
    pub runs: Vec<Run>,
    /// Only the newest runs were searched.
    pub is_partial: bool,
}

impl Store {
    /// Returns a run with its jobs, at most `RUN_NODES` of them, in the order of their creation.
    pub async fn run(&self, tenant: TenantId, run: Label) -> Result<Option<(Run, Vec<RunNode>)>, StoreError> {
        self.read(GetRun { tenant, run }).await
    }

    /// Returns up to `limit` runs that were created before the run `before`, newest first.
    pub async fn runs(
        &self,
        tenant: TenantId,
        filter: RunFilter,
        before: Option<(Time, String)>,
        limit: usize,
    ) -> Result<RunPage, StoreError> {
        self.read(ListRuns { tenant, filter, before, limit }).await
    }
}

const RUN: Sql =
    Sql::both(&["select run, name, state, on_failure, is_open, live, succeeded, failed, canceled, skipped,
         stopping_at, canceled_by, tags, principal, depth, webhook, parent, retried_as, version, created_at, finished_at
     from runs where tenant = $1 and run = $2"]);
const JOBS: Sql = Sql::both(&["select j.id, j.queue, j.kind, j.affinity, j.state, j.attempt, j.phase, j.progress, j.error,
         j.created_at, j.started_at, j.finished_at, n.name, n.condition
     from (select * from (
               select id, queue, kind, affinity, state, attempt, phase, progress, error, created_at, started_at, finished_at
               from live_jobs where tenant = $1 and run = $2 order by id limit $3) live
           union all
           select * from (
               select id, queue, kind, affinity, state, attempt, phase, progress, error, created_at, started_at, finished_at
               from ended_jobs where tenant = $1 and run = $2 order by id limit $3) over) j
     left join run_nodes n on n.job = j.id order by j.id limit $3"]);
const NEEDS: Sql = Sql::both(&["select e.node, n.name from run_nodes x join run_needs e on e.node = x.job
         join run_nodes n on n.job = e.need
     where x.tenant = $1 and x.run = $2 order by e.node, n.name"]);

impl Run {
    fn read(row: &Row) -> Result<Self, StoreError> {
        let (state, on_failure) = (row.text("state")?, row.text("on_failure")?);
        Ok(Self {
            id: row.text("run")?,
            name: row.opt_text("name")?,
            state: RunState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            on_failure: OnFailure::parse(&on_failure)
                .ok_or_else(|| StoreError::unexpected(format!("on_failure {on_failure}")))?,
            is_open: row.bool("is_open")?,
            live: row.int("live")?,
            succeeded: row.int("succeeded")?,
            failed: row.int("failed")?,
            canceled: row.int("canceled")? + row.int("skipped")?,
            is_stopping: !row.is_null("stopping_at")?,
            canceled_by: row.opt_text("canceled_by")?,
            tags: row.opt_text("tags")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default(),
            principal: row.text("principal")?,
            depth: row.int("depth")? as i32,
            webhook: row.opt_text("webhook")?,
            parent: row.opt_text("parent")?,
            retried_as: row.opt_text("retried_as")?,
            version: row.int("version")?,
            created_at: row.time("created_at")?,
            finished_at: row.opt_time("finished_at")?,
        })
    }
}

struct GetRun {
    tenant: TenantId,
    run: Label,
}

impl Operation for GetRun {
    type Output = Option<(Run, Vec<RunNode>)>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let params = [Param::Int(self.tenant.0), Param::Text(self.run.as_str()), Param::Int(RUN_NODES as i64)];
        let Some(row) = tx.query_opt(&RUN, &params[..2]).await? else { return Ok(None) };
        let mut needs: HashMap<JobId, Vec<String>> = HashMap::new();
        for row in tx.query(&NEEDS, &params[..2]).await? {
            needs.entry(row.job("node")?).or_default().push(row.text("name")?);
        }
        let mut nodes = Vec::new();
        for row in tx.query(&JOBS, &params).await? {
            let (job, state) = (row.job("id")?, row.text("state")?);
            nodes.push(RunNode {
                name: row.opt_text("name")?,
                job,
                queue: row.text("queue")?,
                kind: row.text("kind")?,
                affinity: Some(row.text("affinity")?).filter(|text| !text.is_empty()).map(|text| Label::stored(&text)),
                state: JobState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
                attempt: row.int("attempt")? as i32,
                condition: match row.opt_text("condition")? {
                    Some(condition) => read_condition(&condition)?,
                    None => NeedCondition::default(),
                },
                needs: needs.remove(&job).unwrap_or_default(),
                phase: row.opt_text("phase")?,
                progress: row.opt_real("progress")?,
                error: row.opt_text("error")?.map(|text| error_from_json(&text)).transpose()?,
                created_at: row.time("created_at")?,
                started_at: row.opt_time("started_at")?,
                finished_at: row.opt_time("finished_at")?,
            });
        }
        Ok(Some((Run::read(&row)?, nodes)))
    }
}

struct ListRuns {
    tenant: TenantId,
    filter: RunFilter,
    before: Option<(Time, String)>,
    limit: usize,
}

const LIST: Sql = Sql::new(
    &["select run, name, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, stopping_at, canceled_by,
           tags, principal, depth, webhook, parent, retried_as, version, created_at, finished_at
       from (select * from runs where tenant = $1 and (created_at, run) < ($2, $3)
             order by created_at desc, run desc limit $7)
       where ($4 = '' or state = $4) and ($5 = '' or name = $5)
           and ($6 = '' or exists (select 1 from json_each(tags) t where t.value = $6))
       order by created_at desc, run desc limit $8"],
    "select run, name, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, stopping_at, canceled_by,
         tags, principal, depth, webhook, parent, retried_as, version, created_at, finished_at
     from (select * from runs where tenant = $1 and (created_at, run) < ($2, $3)
           order by created_at desc, run desc limit $7) newest
     where ($4::text = '' or state = $4) and ($5::text = '' or name = $5)
         and ($6::text = '' or exists (select 1 from json_array_elements_text(tags) t(tag) where t.tag = $6))
     order by created_at desc, run desc limit $8",
);
const BEYOND: Sql = Sql::both(&["select run from runs where tenant = $1 and (created_at, run) < ($2, $3)
     order by created_at desc, run desc limit 1 offset $4"]);

impl Operation for ListRuns {
    type Output = RunPage;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<RunPage, StoreError> {
        let RunFilter { state, name, tag } = &self.filter;
        let (at, run) = self.before.as_ref().map_or((Time::NEVER, ""), |(at, run)| (*at, run.as_str()));
        let params = [
            Param::Int(self.tenant.0),
            Param::Time(at),
            Param::Text(run),
            Param::Text(state.map_or("", RunState::as_str)),
            Param::Text(name.as_ref().map_or("", Label::as_str)),
            Param::Text(tag.as_ref().map_or("", Label::as_str)),
            Param::Int(SCAN_ROWS as i64),
            Param::Int(self.limit as i64),
        ];
        let rows = tx.query(&LIST, &params).await?;
        let runs: Vec<Run> = rows.iter().map(Run::read).collect::<Result<_, _>>()?;
        let is_partial = runs.len() < self.limit && {
            let beyond = [params[0], params[1], params[2], Param::Int(SCAN_ROWS as i64)];
            tx.query_opt(&BEYOND, &beyond).await?.is_some()
        };
        Ok(RunPage { runs, is_partial })
    }
}
