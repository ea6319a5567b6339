//! Prometheus metrics at `/metrics`. Label values are bounded: a route is labeled by its pattern, and queues up to one
//! page.

use std::collections::HashMap;
use std::fmt::{Display, Write};
use std::sync::{LazyLock, OnceLock, RwLock};
use std::time::{Duration, Instant};

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use domain::limits::PAGE_ITEMS;
use domain::{TenantId, Time};
use engine::TaskStatus;
use metrics::{Counter, Histogram, describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use store::fleet::processes::get::Process;
use store::queue::queues::get::Queue;
use store::triggers::dead_letters::list::DeadLetterFilter;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::access::auth::Principal;
use crate::access::rights::RouteMatch;
use crate::state::AppState;

/// Histogram buckets: from the time of one commit on a fast disk to the longest long-poll.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0];

static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// Interval of histogram upkeep, so that histograms do not grow between scrapes.
pub(crate) const UPKEEP: Duration = Duration::from_secs(5);

/// Installs the metrics recorder of this process. Repeated calls have no effect, and an existing recorder is kept.
pub fn install() {
    handle();
}

fn handle() -> Option<&'static PrometheusHandle> {
    let build = || {
        let buckets = Matcher::Suffix("_seconds".into());
        let builder = PrometheusBuilder::new().set_buckets_for_metric(buckets, &SECONDS).ok()?;
        let handle = builder.install_recorder().ok()?;
        describe();
        metrics::gauge!("windlass_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
        Some(handle)
    };
    HANDLE.get_or_init(build).as_ref()
}

pub(crate) fn upkeep() {
    if let Some(handle) = handle() {
        handle.run_upkeep();
    }
}

fn describe() {
    describe_gauge!("windlass_build_info", "The running version; always 1.");
    describe_counter!("windlass_http_requests_total", "HTTP responses, by route, method and status.");
    describe_histogram!(
        "windlass_http_request_seconds",
        "Time from the request head to the response head, by route and method."
    );
    describe_counter!("windlass_jobs_enqueued_total", "Jobs enqueued over HTTP by this node.");
    describe_counter!("windlass_jobs_claimed_total", "Jobs claimed by workers from this node.");
    describe_counter!("windlass_outcomes_total", "Outcomes reported by workers to this node, by result.");
    describe_gauge!("windlass_docker_up", "1 if the Docker engine of this node responds.");
    describe_counter!("windlass_operations_total", "Finished operations on runtimes, by kind, outcome and code.");
    describe_histogram!("windlass_operation_seconds", "Duration of operations on runtimes, by kind.");
    describe_histogram!("windlass_pool_load_seconds", "Time until a model loaded by a pool was healthy, by pool.");
    describe_counter!("windlass_pool_load_failures_total", "Models that a pool failed to load, by pool.");
    describe_counter!("windlass_batches_ended_total", "Finished batches of the OpenAI-compatible API.");
    describe_counter!("windlass_health_changes_total", "Health changes of runtimes, by new status.");
    describe_counter!("windlass_claims_expired_total", "Claims released because the worker's lease expired.");
    describe_counter!("windlass_attempts_timed_out_total", "Attempts ended by their timeout.");
    describe_counter!("windlass_jobs_past_deadline_total", "Jobs that failed because their deadline passed.");
    describe_counter!("windlass_pruned_total", "Records deleted after their retention, by kind.");
    describe_counter!("windlass_calls_total", "Synchronous calls accepted by this node.");
    describe_counter!("windlass_calls_abandoned_total", "Results of synchronous calls that no caller received.");
    describe_counter!("windlass_delivery_attempts_total", "Delivery requests sent, by result.");
    describe_histogram!(
        "windlass_delivery_seconds",
        "Time from the first packet of a delivery to the end of its response."
    );
    describe_gauge!("windlass_deliveries_oldest_due_seconds", "Wait time of the oldest due delivery.");
    describe_gauge!("windlass_circuits_open", "Receivers with due deliveries and an open circuit.");
    describe_gauge!(
        "windlass_blob_garbage",
        "Blobs without an artifact, including uploads in progress, counted up to 10000."
    );
    describe_counter!("windlass_clock_steps_total", "Steps of the database clock of more than a minute.");
    describe_counter!("windlass_connections_refused_total", "Connections that got no place, or health checks only.");
    describe_counter!("windlass_task_errors_total", "Failed runs of background tasks, by task.");
    describe_counter!("windlass_process_jobs_made_total", "Jobs created for processes by this node.");
    describe_counter!(
        "windlass_subjects_judged_total",
        "Subjects re-evaluated by this node because facts aged or a selector changed."
    );
    describe_counter!("windlass_events_total", "Events accepted over HTTP by this node.");
    describe_counter!("windlass_mails_total", "Mails accepted by this node.");
    describe_counter!("windlass_runtimes_moved_total", "Runtimes moved off lost nodes by this node.");
    describe_counter!("windlass_trigger_runs_total", "Trigger runs dispatched by this node, by result.");
    describe_counter!("windlass_schedule_slots_total", "Schedule slots fired or skipped as missed by this node.");
    describe_histogram!("windlass_ttfs_seconds", "Time to first signal observed by users, by surface.");
    describe_counter!("windlass_ttfs_events_total", "Time-to-first-signal events, by surface, type and cache hit.");
    describe_gauge!("windlass_figure_faults", "Queues with stored counters that differ from their jobs; must be 0.");
}

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(scrape))
}

/// Get metrics in the Prometheus text format.
///
/// Metrics of this process are returned even while the database is unavailable.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, body = String)))]
async fn scrape(State(state): State<AppState>, principal: Principal) -> Response {
    let mut text = process_metrics(&principal);
    tasks(&mut text, &state.engine.tasks());
    if state.store.is_postgres() {
        let is_up = u8::from(state.store.notifier().is_listening());
        gauge(
            &mut text,
            "windlass_hint_relay_up",
            "1 if the LISTEN connection for notifications of other nodes is up.",
            is_up,
        );
    }
    let queues = state.store.list_queues(principal.tenant, None, PAGE_ITEMS).await;
    gauge(&mut text, "windlass_database_up", "1 if the database responded to this scrape.", u8::from(queues.is_ok()));
    // Without the database its metrics are omitted, so that the scrape waits for only one failing query.
    if let Ok(queues) = queues {
        jobs(&mut text, &queues);
        oldest(&mut text, &queues, state.store.clock().now());
        tenant_metrics(&mut text, &state, principal.tenant).await;
        if principal.sees_installation() {
            database_metrics(&mut text, &state).await;
        }
    }
    ([(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn head(text: &mut String, name: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} gauge");
}

fn gauge(text: &mut String, name: &str, help: &str, value: impl Display) {
    head(text, name, help);
    let _ = writeln!(text, "{name} {value}");
}

fn tasks(text: &mut String, tasks: &[TaskStatus]) {
    let name = "windlass_task_last_success_timestamp_seconds";
    head(text, name, "Last success of a background task of this node, or its start, by task.");
    for task in tasks {
        let at = task.last_success_at.millis() as f64 / 1_000.0;
        let _ = writeln!(text, "{name}{{task=\"{}\"}} {at}", task.name);
    }
}

const TTFS_ALERT: &str = "windlass_ttfs_alert";

/// Returns the metrics of this process that the caller may see. Names of other tenants' pools are hidden. Alerts are
/// omitted here, because they are read from the database: this process knows only those that it detected itself.
fn process_metrics(principal: &Principal) -> String {
    let text = handle().map(PrometheusHandle::render).unwrap_or_default();
    let is_visible = |line: &&str| !is_alert(line) && (principal.sees_installation() || !names_a_pool(line));
    text.lines().filter(is_visible).flat_map(|line| [line, "\n"]).collect()
}

fn is_alert(line: &str) -> bool {
    let line = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
    line.starts_with(TTFS_ALERT)
}

fn names_a_pool(line: &str) -> bool {
    line.contains("{pool=\"") || line.contains(",pool=\"")
}

async fn tenant_metrics(text: &mut String, state: &AppState, tenant: TenantId) {
    if let Ok(alerts) = state.store.ttfs_alerts(tenant).await {
        let _ = writeln!(text, "# HELP {TTFS_ALERT} Time-to-first-signal alerts; 1 while firing.");
        let _ = writeln!(text, "# TYPE {TTFS_ALERT} gauge");
        for alert in alerts {
            let _ = writeln!(text, "{TTFS_ALERT}{{alert=\"{}\",surface=\"{}\"}} 1", alert.alert, alert.surface);
        }
    }
    if let Ok(live_workers) = state.store.count_workers(tenant).await {
        head(text, "windlass_workers", "Live workers, by state: working or draining.");
        for (state, count) in [("working", live_workers.working), ("draining", live_workers.draining)] {
            let _ = writeln!(text, "windlass_workers{{state=\"{state}\"}} {count}");
        }
    }
    if let Ok(listed) = state.store.list_processes(tenant, None, PAGE_ITEMS).await {
        processes(text, &listed, state.store.clock().now());
    }
    if let (Ok(age_ms), Ok(letters)) = (state.store.outbox_age_ms().await, unresolved(state, tenant).await) {
        text.push_str("# HELP windlass_outbox_age_seconds Wait time of the oldest due trigger run.\n");
        text.push_str("# TYPE windlass_outbox_age_seconds gauge\n");
        let _ = writeln!(text, "windlass_outbox_age_seconds {}", age_ms as f64 / 1_000.0);
        text.push_str("# HELP windlass_dead_letters Unresolved dead letters, counted up to 10000.\n");
        text.push_str("# TYPE windlass_dead_letters gauge\n");
        let _ = writeln!(text, "windlass_dead_letters {letters}");
    }
}

/// Metrics of the whole database, for callers that may see the installation.
async fn database_metrics(text: &mut String, state: &AppState) {
    if let Ok(size) = state.store.size().await {
        let help = "Size on disk of the SQLite file, or of PostgreSQL's tables and indexes.";
        gauge(text, "windlass_database_bytes", help, size.bytes);
    }
    if let Some(bytes) = state.store.sqlite_wal_bytes() {
        gauge(text, "windlass_wal_bytes", "Size of SQLite's write-ahead log on disk.", bytes);
    }
    if let Ok(rows) = state.store.quarantined().await {
        let help = "Rows that a background task could not process and quarantined, counted up to 10000.";
        gauge(text, "windlass_quarantined", help, rows);
    }
}

async fn unresolved(state: &AppState, tenant: TenantId) -> Result<usize, store::StoreError> {
    let open = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
    Ok(state.store.count_dead_letters(tenant, open).await?.count)
}

/// Read at every scrape: the counters are in the database, not in this process.
fn jobs(text: &mut String, queues: &[Queue]) {
    text.push_str(
        "# HELP windlass_jobs Jobs by queue and state; ended jobs are counted since the queue was created.\n",
    );
    text.push_str("# TYPE windlass_jobs gauge\n");
    for queue in queues {
        let counts = &queue.counts;
        let states = [
            ("waiting", counts.waiting),
            ("scheduled", counts.scheduled),
            ("queued", counts.queued),
            ("running", counts.running),
            ("succeeded", counts.succeeded),
            ("failed", counts.failed),
            ("canceled", counts.canceled),
        ];
        for (state, count) in states {
            let _ = writeln!(text, "windlass_jobs{{queue=\"{}\",state=\"{state}\"}} {count}", queue.name);
        }
    }
}

fn oldest(text: &mut String, queues: &[Queue], now: Time) {
    head(text, "windlass_queue_oldest_seconds", "Wait time of the oldest job that could run, by queue.");
    for queue in queues {
        let waiting_since = queue.oldest_waiting_at.filter(|_| queue.paused.is_none());
        let age_ms = waiting_since.map_or(0, |at| now.ms_since(at).max(0));
        let age = age_ms as f64 / 1_000.0;
        let _ = writeln!(text, "windlass_queue_oldest_seconds{{queue=\"{}\"}} {age}", queue.name);
    }
}

/// Computed by the same queries that create the jobs.
fn processes(text: &mut String, processes: &[Process], now: Time) {
    let oldest_s = |process: &Process| process.counts.oldest.map_or(0, |oldest| now.ms_since(oldest).max(0) / 1_000);
    type Figure = (&'static str, &'static str, fn(&Process) -> i64);
    let figures: [Figure; 3] = [
        ("eligible", "Subjects eligible for a job now, by process.", |process| process.counts.eligible),
        ("active", "Subjects with an unfinished job, by process.", |process| process.counts.active),
        ("in_backoff", "Subjects in backoff, by process.", |process| process.counts.in_backoff),
    ];
    for (name, help, figure) in figures {
        let _ = writeln!(text, "# HELP windlass_process_{name} {help}\n# TYPE windlass_process_{name} gauge");
        for process in processes {
            let _ = writeln!(text, "windlass_process_{name}{{process=\"{}\"}} {}", process.name, figure(process));
        }
    }
    text.push_str("# HELP windlass_process_oldest_seconds Wait time of the first eligible subject, by process.\n");
    text.push_str("# TYPE windlass_process_oldest_seconds gauge\n");
    for process in processes {
        let age = oldest_s(process);
        let _ = writeln!(text, "windlass_process_oldest_seconds{{process=\"{}\"}} {age}", process.name);
    }
}

/// Counts a response and records its duration, by route.
pub(crate) struct RequestTimer {
    started: Instant,
    route: &'static str,
    method: &'static str,
}

/// The metrics of one kind of response.
struct ResponseMetrics {
    total: Counter,
    seconds: Histogram,
}

/// Cache of metric handles: a lookup by labels costs more than the counting itself.
static RESPONSE_METRICS: LazyLock<RwLock<HashMap<ResponseKind, ResponseMetrics>>> = LazyLock::new(RwLock::default);

/// Route, method and status.
type ResponseKind = (&'static str, &'static str, StatusCode);

impl RequestTimer {
    pub(crate) fn start(route_match: Option<&RouteMatch>, method: &Method) -> Self {
        let route = route_match.and_then(RouteMatch::path).unwrap_or("unmatched");
        Self { started: Instant::now(), route, method: method_label(method) }
    }

    pub(crate) fn finish(self, response: &Response) {
        let kind = (self.route, self.method, response.status());
        let count = |response_metrics: &ResponseMetrics| {
            response_metrics.total.increment(1);
            response_metrics.seconds.record(self.started.elapsed().as_secs_f64());
        };
        if let Some(response_metrics) = RESPONSE_METRICS.read().expect("lock poisoned").get(&kind) {
            return count(response_metrics);
        }
        count(
            RESPONSE_METRICS.write().expect("lock poisoned").entry(kind).or_insert_with(|| ResponseMetrics::of(kind)),
        );
    }
}

impl ResponseMetrics {
    fn of((route, method, status): ResponseKind) -> Self {
        let status = status.as_u16().to_string();
        Self {
            total: metrics::counter!("windlass_http_requests_total", "route" => route, "method" => method, "status" => status),
            seconds: metrics::histogram!("windlass_http_request_seconds", "route" => route, "method" => method),
        }
    }
}

/// Bounds the method label: a client can send any method, and each would become a time series.
fn method_label(method: &axum::http::Method) -> &'static str {
    match method.as_str() {
        "GET" => "GET",
        "HEAD" => "HEAD",
        "POST" => "POST",
        "PUT" => "PUT",
        "DELETE" => "DELETE",
        _ => "other",
    }
}
