//! What the ends of jobs mean for their runs: counts, nodes that start, nodes that cannot start any more, and the end of
//! the run. Runs in the transaction that ends the jobs, after all its other locks.

use std::collections::{BTreeMap, HashMap, HashSet};

use domain::queue::job::Event as JobEvent;
use domain::triggers::trigger::Source;
use domain::workflows::run::run_end;
use domain::{JobError, JobId, JobState, NodeEnd, OnFailure, RunState, TenantId};
use serde_json::json;

use super::needs;
use crate::db::codec::from_json;
use crate::db::effects::Effects;
use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::LaneCache;
use crate::queue::transition::{self, Transition};
use crate::triggers::deliveries::{NewDelivery, insert};
use crate::triggers::events::{Event, emit};

/// A job of a run that ended in this transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RunJobEnd {
    pub(crate) tenant: TenantId,
    pub(crate) run: String,
    pub(crate) job: JobId,
    pub(crate) state: JobState,
}

/// The error code of a job whose needs cannot be met.
pub(crate) const NEEDS: &str = "needs";

// Concurrent ends of one run wait here for each other, and the later one sees what the earlier one committed.
const COUNT: Sql = Sql::new(
    &["update runs set live = live - $3 - $4 - $5 - $6, succeeded = succeeded + $3, failed = failed + $4,
           canceled = canceled + $5, skipped = skipped + $6, version = version + 1
       where tenant = $1 and run = $2
       returning tenant, run, state, on_failure, live, failed, canceled, stopping_at, canceled_by"],
    "with n as materialized (
         select * from unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
             as n(tenant, run, succeeded, failed, canceled, skipped)),
     locked as materialized (
         select r.tenant, r.run from runs r join n on n.tenant = r.tenant and n.run = r.run
         order by r.tenant, r.run for update of r)
     update runs r set live = r.live - n.succeeded - n.failed - n.canceled - n.skipped,
         succeeded = r.succeeded + n.succeeded, failed = r.failed + n.failed, canceled = r.canceled + n.canceled,
         skipped = r.skipped + n.skipped, version = r.version + 1
     from n, locked l where l.tenant = n.tenant and l.run = n.run and r.tenant = n.tenant and r.run = n.run
     returning r.tenant, r.run, r.state, r.on_failure, r.live, r.failed, r.canceled, r.stopping_at, r.canceled_by",
);
const STOP: Sql = Sql::both(&["update runs set stopping_at = $3 where tenant = $1 and run = $2"]);
const FINISH: Sql = Sql::both(&["update runs set state = $3, finished_at = $4
     where tenant = $1 and run = $2 and live = 0 and state = 'running'
     returning name, principal, depth, webhook, tags, succeeded, failed, canceled, skipped, created_at"]);

/// The counts of a run after this transaction's ends.
struct CountedRun {
    state: RunState,
    on_failure: OnFailure,
    live: i64,
    failed: i64,
    canceled: i64,
    is_stopping: bool,
    is_canceled: bool,
}

/// Records the jobs of runs that ended in this transaction. `transition::close` calls it.
pub(crate) async fn record(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let mut runs: BTreeMap<(TenantId, String), CountedRun> = BTreeMap::new();
    let mut skipped: HashSet<JobId> = HashSet::new();
    // Nodes that cannot start end as well, and are counted in the second round.
    while !effects.run_ends.is_empty() {
        let mut ends: BTreeMap<(TenantId, String), Vec<(JobId, NodeEnd)>> = BTreeMap::new();
        for end in std::mem::take(&mut effects.run_ends) {
            let node_end = match end.state {
                JobState::Succeeded => NodeEnd::Succeeded,
                JobState::Failed => NodeEnd::Failed,
                _ if skipped.contains(&end.job) => NodeEnd::Skipped,
                _ => NodeEnd::Canceled,
            };
            ends.entry((end.tenant, end.run)).or_default().push((end.job, node_end));
        }
        runs.extend(count(tx, &ends).await?);
        for ((tenant, run), ends) in &ends {
            let consequences = needs::nodes_ended(tx, (*tenant, run), ends).await?;
            transition::wake(tx, lanes, &consequences.start, counters, effects).await?;
            let is_skipped = |(_, end, _): &&(JobId, NodeEnd, String)| *end == NodeEnd::Skipped;
            skipped.extend(consequences.end.iter().filter(is_skipped).map(|(job, ..)| *job));
            end_nodes(tx, lanes, consequences.end, counters, effects).await?;
        }
    }
    for ((tenant, run), counted) in &runs {
        if counted.live > 0 && counted.failed > 0 && counted.on_failure == OnFailure::Cancel && !counted.is_stopping {
            tx.execute(&STOP, &[Param::Int(tenant.0), Param::Text(run), Param::Time(tx.now())]).await?;
            effects.stopping_runs = true;
        }
        if counted.live == 0 && counted.state == RunState::Running {
            finish(tx, lanes, (*tenant, run), counted, effects).await?;
        }
    }
    Ok(())
}

async fn count(
    tx: &mut Tx<'_>,
    ends: &BTreeMap<(TenantId, String), Vec<(JobId, NodeEnd)>>,
) -> Result<Vec<((TenantId, String), CountedRun)>, StoreError> {
    let counts = |end: NodeEnd| {
        Column::ints(ends.values().map(move |jobs| jobs.iter().filter(|(_, of)| *of == end).count() as i64))
    };
    let columns = [
        Column::ints(ends.keys().map(|(tenant, _)| tenant.0)),
        Column::texts(ends.keys().map(|(_, run)| run.as_str())),
        counts(NodeEnd::Succeeded),
        counts(NodeEnd::Failed),
        counts(NodeEnd::Canceled),
        counts(NodeEnd::Skipped),
    ];
    tx.query_each(&COUNT, &columns, &[]).await?.iter().map(CountedRun::read).collect()
}

impl CountedRun {
    fn read(row: &Row) -> Result<((TenantId, String), Self), StoreError> {
        let (state, on_failure) = (row.text("state")?, row.text("on_failure")?);
        let counted = Self {
            state: RunState::parse(&state).ok_or_else(|| StoreError::unexpected(format!("state {state}")))?,
            on_failure: OnFailure::parse(&on_failure)
                .ok_or_else(|| StoreError::unexpected(format!("on_failure {on_failure}")))?,
            live: row.int("live")?,
            failed: row.int("failed")?,
            canceled: row.int("canceled")?,
            is_stopping: !row.is_null("stopping_at")?,
            is_canceled: !row.is_null("canceled_by")?,
        };
        Ok(((TenantId(row.int("tenant")?), row.text("run")?), counted))
    }
}

/// Ends the waiting jobs of nodes that cannot start any more.
async fn end_nodes(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    nodes: Vec<(JobId, NodeEnd, String)>,
    counters: &mut CounterDeltas,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let mut causes: HashMap<JobId, String> = nodes.into_iter().map(|(job, _, cause)| (job, cause)).collect();
    let mut jobs: Vec<JobId> = causes.keys().copied().collect();
    jobs.sort_unstable();
    let live = transition::load(tx, &jobs).await?;
    let of_lane = lanes.of(tx, &live.values().map(|job| job.lane).collect::<Vec<_>>()).await?;
    let mut transitions = Vec::with_capacity(live.len());
    for (id, before) in live {
        let job = before.job(&of_lane[&before.lane].kind, &Default::default())?;
        let after = job.apply(JobEvent::Cancel, tx.now());
        let after = after.map_err(|refusal| StoreError::unexpected(refusal.to_string()))?;
        let message = causes.remove(&id).unwrap_or_default();
        let cause = JobError { code: NEEDS.into(), message, retryable: false };
        transitions.push(Transition::new(before, after, "canceled", Some(cause), None));
    }
    transition::write(tx, lanes, transitions, counters, effects).await
}

/// Ends a run whose last job has ended, and publishes the end to triggers and to the run's webhook.
async fn finish(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    (tenant, run): (TenantId, &str),
    counted: &CountedRun,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let now = tx.now();
    let state = run_end(counted.is_canceled, counted.failed, counted.canceled);
    let params = [Param::Int(tenant.0), Param::Text(run), Param::Text(state.as_str()), Param::Time(now)];
    let Some(row) = tx.query_opt(&FINISH, &params).await? else { return Ok(()) };
    let listeners = lanes.triggers.current(tx).await?;
    let webhook: Option<RunWebhook> = row.opt_text("webhook")?.map(|text| from_json(&text)).transpose()?;
    if !listeners.listen_to(Source::Run) && webhook.is_none() {
        return Ok(());
    }
    let (name, depth) = (row.opt_text("name")?, row.int("depth")? as i32);
    let at = |time: domain::Time| jiff::Timestamp::from_microsecond(time.micros()).unwrap_or(jiff::Timestamp::MAX);
    let tags: Vec<String> = row.opt_text("tags")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default();
    let data = json!({
        "run": run,
        "name": name,
        "state": state.as_str(),
        "tags": tags,
        "counts": {
            "succeeded": row.int("succeeded")?,
            "failed": row.int("failed")?,
            "canceled": row.int("canceled")? + row.int("skipped")?,
        },
        "created_at": at(row.time("created_at")?),
        "finished_at": at(now),
    });
    let event = Event::new(now, tenant, Source::Run, state.as_str(), depth, data.to_string());
    let event = event.with("run", run).with("name", name.unwrap_or_default());
    effects.outbox |= emit(tx, &listeners, &[event]).await? > 0;
    if let Some(RunWebhook { url, secret, secrets }) = webhook {
        let kind = format!("run.{}", state.as_str());
        let body = json!({"type": kind, "timestamp": at(now), "data": data});
        let delivery = NewDelivery {
            source: "run".into(),
            op: state.as_str().into(),
            principal: row.text("principal")?,
            depth,
            secrets: secret.into_iter().chain(secrets).collect(),
            ..NewDelivery::post(tenant, url, body.to_string())
        };
        effects.deliveries |= !insert(tx, vec![delivery]).await?.is_empty();
    }
    Ok(())
}

/// The `webhook` column of a run.
#[derive(serde::Deserialize)]
struct RunWebhook {
    url: String,
    #[serde(default)]
    secret: Option<String>,
    #[serde(default)]
    secrets: Vec<String>,
}
