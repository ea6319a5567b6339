//! The first signal of a run: once, and as server-sent events until the run ends.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::convert::Infallible;
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use domain::limits::RUN_FORECAST_QUEUES;
use domain::workflows::forecast::{ForecastNode, forecast};
use domain::{Label, Name, RunState, TenantId, Time};
use futures_util::future::BoxFuture;
use futures_util::stream::unfold;
use store::workflows::runs::{Run, RunNode};
use store::{Store, StoreError};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::RunSignalView;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::PathRun;
use crate::http::v1::signals::streams::sse;
use crate::signals::streams::FilteredPermit;
use crate::state::AppState;
use crate::view::workflows::{self as view, RunForecast};

/// Nodes that a stream reads per second. The stream of a larger run reads less often.
const NODES_PER_S: usize = 1_000;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(signal)).routes(routes!(stream))
}

/// Get the first signal of a run: its state in a sentence, its ETA and its critical path.
///
/// The signal is computed from the nodes at each read. The ETA is `null` if a kind has too little history, no worker serves a
/// node, or a queue of the run is paused.
#[utoipa::path(get, path = "/api/v1/runs/{id}/signal", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, body = RunSignalView)))]
async fn signal(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
) -> Result<Json<RunSignalView>, ApiError> {
    let rendered = render(&state.store, principal.tenant, id).await?;
    let (signal, _) = rendered.ok_or_else(|| ApiError::not_found("run"))?;
    Ok(Json(signal))
}

/// Stream the signal of a run until the run ends.
///
/// Sends an event `signal` for each change, at most once a second. Returns 429 if the token has 200 such streams open on
/// this node.
#[utoipa::path(get, path = "/api/v1/runs/{id}/stream", tag = "runs", params(("id" = String, Path)),
    responses((status = 200, content_type = "text/event-stream", body = RunSignalView)))]
async fn stream(
    State(state): State<AppState>,
    principal: Principal,
    PathRun(id): PathRun,
) -> Result<Response, ApiError> {
    let first = render(&state.store, principal.tenant, id.clone()).await?;
    let first = first.ok_or_else(|| ApiError::not_found("run"))?;
    let permit = state.streams.open_filtered(principal.tenant, &principal.name);
    let stream = RunStream {
        stop: state.until_ended(&principal),
        tenant: principal.tenant,
        run: id,
        next: Some(first),
        sent: String::new(),
        interval: Duration::ZERO,
        state,
        _permit: permit.ok_or_else(ApiError::too_many_streams_of_token)?,
    };
    Ok(sse(unfold(stream, RunStream::next)))
}

struct RunStream {
    state: AppState,
    tenant: TenantId,
    run: Label,
    /// Completes when the server stops or the client's token ends.
    stop: BoxFuture<'static, ()>,
    /// The signal to send next. `None`: the run has ended, and its last signal is sent.
    next: Option<(RunSignalView, usize)>,
    sent: String,
    /// Minimum time between two reads.
    interval: Duration,
    _permit: FilteredPermit,
}

impl RunStream {
    async fn next(mut self) -> Option<(Result<Event, Infallible>, Self)> {
        loop {
            let (signal, nodes) = self.next.take()?;
            let body = serde_json::to_string(&signal).expect("plain data has a JSON form");
            let has_ended =
                RunState::ALL.iter().any(|state| *state != RunState::Running && state.as_str() == signal.kind);
            let event = (body != self.sent)
                .then(|| Event::default().event("signal").id(signal.version.to_string()).data(body.clone()));
            self.sent = body;
            self.interval = Duration::from_secs_f64((nodes as f64 / NODES_PER_S as f64).max(1.0));
            if has_ended {
                return event.map(|event| (Ok(event), self));
            }
            if let Some(event) = event {
                self.next = Some((signal, nodes));
                return Some((Ok(event), self));
            }
            self.read_again().await?;
        }
    }

    /// Reads the run after the interval. The timer also sees changes of other nodes and the progress of jobs.
    async fn read_again(&mut self) -> Option<()> {
        tokio::select! {
            () = &mut self.stop => return None,
            () = tokio::time::sleep(self.interval) => {}
        }
        loop {
            match render(&self.state.store, self.tenant, self.run.clone()).await {
                Ok(found) => {
                    self.next = Some(found?);
                    return Some(());
                }
                // If the database is unavailable, the next read tries again; the stream stays open.
                Err(_) => tokio::select! {
                    () = &mut self.stop => return None,
                    () = tokio::time::sleep(self.interval) => {}
                },
            }
        }
    }
}

/// The signal of a run and the number of its nodes.
async fn render(store: &Store, tenant: TenantId, id: Label) -> Result<Option<(RunSignalView, usize)>, StoreError> {
    let Some((run, nodes)) = store.run(tenant, id).await? else { return Ok(None) };
    Ok(Some((signal_of(store, tenant, &run, &nodes).await?, nodes.len())))
}

/// The signal of a run that was read with its nodes.
pub(crate) async fn signal_of(
    store: &Store,
    tenant: TenantId,
    run: &Run,
    nodes: &[RunNode],
) -> Result<RunSignalView, StoreError> {
    let forecast = match run.state {
        RunState::Running => expected(store, tenant, run, nodes).await?,
        _ => RunForecast::default(),
    };
    Ok(view::signal(run, nodes, &forecast))
}

/// Forecasts the nodes that have not ended. A kind without history has no expected duration, and the run then no ETA.
async fn expected(store: &Store, tenant: TenantId, run: &Run, nodes: &[RunNode]) -> Result<RunForecast, StoreError> {
    let open: Vec<&RunNode> = nodes.iter().filter(|node| !node.state.is_terminal()).collect();
    let key = |node: &RunNode| (Name::stored(&node.kind), node.affinity.clone());
    let keys: BTreeSet<_> = open.iter().map(|node| key(node)).collect();
    let statistics = store.duration_statistics(tenant, keys.into_iter().collect()).await?;
    let durations = |node: &RunNode| statistics.get(&key(node)).and_then(|known| known.run.as_ref());
    let now = store.clock().now();
    let elapsed_s =
        |node: &RunNode| node.started_at.filter(|_| node.state.is_claimed()).map(|at| seconds_between(at, now));
    let mut expected_s = HashMap::new();
    for node in &open {
        if let Some(durations) = durations(node) {
            let rest_s = elapsed_s(node).map_or(durations.mean_s(), |elapsed_s| durations.remaining(elapsed_s, 0.5));
            expected_s.insert(node.job, rest_s);
        }
    }
    let unknown = RunForecast { eta: None, expected_s };
    let mut queues: BTreeMap<&str, Vec<&RunNode>> = BTreeMap::new();
    open.iter().for_each(|node| queues.entry(node.queue.as_str()).or_default().push(node));
    if unknown.expected_s.len() < open.len() || queues.len() > RUN_FORECAST_QUEUES {
        return Ok(unknown);
    }
    let mut slots = Vec::with_capacity(queues.len());
    let mut slots_of: HashMap<&str, usize> = HashMap::new();
    for (queue, nodes) in &queues {
        let (snapshot, _) = store.queue_snapshot(tenant, &Name::stored(queue)).await?;
        let kinds: BTreeSet<_> = nodes.iter().map(|node| key(node)).collect();
        let is_served = |(kind, affinity): &(Name, domain::Affinity)| snapshot.serving(kind, affinity).next().is_some();
        if snapshot.paused.is_some() || !kinds.iter().all(is_served) {
            return Ok(unknown);
        }
        let of_worker = |worker: &store::signals::queue_snapshot::ServingWorker| {
            worker.concurrency.unwrap_or(1).max(worker.claims).max(1)
        };
        let serving =
            snapshot.workers.iter().filter(|worker| kinds.iter().any(|(kind, affinity)| worker.serves(kind, affinity)));
        let limit = snapshot.settings.concurrency.map_or(u64::MAX, u64::from);
        slots_of.insert(queue, slots.len());
        slots.push(serving.map(of_worker).sum::<u64>().min(limit));
    }
    let index: HashMap<&str, usize> =
        open.iter().enumerate().filter_map(|(number, node)| Some((node.name.as_deref()?, number))).collect();
    let mut simulated = Vec::with_capacity(open.len());
    for node in &open {
        let Some(durations) = durations(node) else { return Ok(unknown) };
        simulated.push(ForecastNode {
            needs: node.needs.iter().filter_map(|need| index.get(need.as_str()).copied()).collect(),
            durations,
            elapsed_s: elapsed_s(node),
            slots: slots_of[node.queue.as_str()],
        });
    }
    // Readers of one state of the run get the same estimate.
    let eta = forecast(&simulated, &slots, run.version.unsigned_abs());
    Ok(RunForecast { eta, ..unknown })
}

fn seconds_between(from: Time, to: Time) -> f64 {
    to.ms_since(from).max(0) as f64 / 1_000.0
}
