//! Figures for Prometheus (X11). Labels are bounded: routes by their pattern, queues up to a page.

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
use store::dead_letters::list::DeadLetterFilter;
use store::processes::get::Process;
use store::queues::get::Queue;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;

use crate::auth::Principal;
use crate::rights::Found;
use crate::state::AppState;

/// From what a commit on a good disk takes to the longest long-poll.
const SECONDS: [f64; 12] = [0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0, 30.0, 60.0];

static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();

/// How often histograms are folded, so that they do not grow while nobody scrapes.
pub(crate) const UPKEEP: Duration = Duration::from_secs(5);

/// Makes this process count. Once is enough; a process that already has a recorder of its own keeps that.
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
    describe_counter!("windlass_http_requests_total", "Answers given, by route, method and status.");
    describe_histogram!("windlass_http_request_seconds", "Time from a request's head to its answer's head.");
    describe_counter!("windlass_jobs_enqueued_total", "Jobs made over HTTP by this node.");
    describe_counter!("windlass_jobs_claimed_total", "Jobs handed to workers by this node.");
    describe_counter!("windlass_outcomes_total", "Outcomes that workers told this node, by what became of them.");
    describe_gauge!("windlass_docker_up", "Whether the Docker engine of this node answers.");
    describe_counter!("windlass_operations_total", "Operations on runtimes that ended, by kind, outcome and code.");
    describe_histogram!("windlass_operation_seconds", "Time that operations on runtimes took, by kind.");
    describe_histogram!("windlass_pool_load_seconds", "Time until a model that a pool brought up was well, by pool.");
    describe_counter!("windlass_pool_load_failures_total", "Models that a pool could not bring up, by pool.");
    describe_counter!("windlass_batches_ended_total", "Batches of the OpenAI-compatible face that ended.");
    describe_counter!("windlass_health_changes_total", "Changes of the health of runtimes, by what they became.");
    describe_counter!("windlass_claims_expired_total", "Claims ended because their worker's lease passed.");
    describe_counter!("windlass_attempts_timed_out_total", "Attempts ended because they ran past their time-out.");
    describe_counter!("windlass_pruned_total", "Records forgotten after their retention, by kind.");
    describe_counter!("windlass_calls_total", "Synchronous calls that this node took in.");
    describe_counter!("windlass_calls_abandoned_total", "Answers to calls that came when their caller was gone.");
    describe_counter!("windlass_delivery_attempts_total", "Requests sent for deliveries, by what became of them.");
    describe_histogram!("windlass_delivery_seconds", "Time from a delivery's first packet to the end of its answer.");
    describe_gauge!("windlass_deliveries_oldest_due_seconds", "How long the oldest delivery that could go has waited.");
    describe_gauge!("windlass_circuits_open", "Receivers with something due that are left alone for now.");
    describe_gauge!("windlass_blob_garbage", "Blobs that no artifact names and uploads under way, up to ten thousand.");
    describe_counter!("windlass_clock_steps_total", "Times that the database's clock was ahead and came back.");
    describe_counter!("windlass_task_errors_total", "Runs of background tasks that failed, by task.");
    describe_counter!("windlass_process_jobs_made_total", "Jobs that this node made for processes.");
    describe_counter!(
        "windlass_subjects_judged_total",
        "Subjects that this node held against selectors because of age or a new one."
    );
    describe_counter!("windlass_events_total", "Events taken in by this node over HTTP.");
    describe_counter!("windlass_mails_total", "Mails taken in by this node.");
    describe_counter!("windlass_runtimes_moved_total", "Runtimes moved off lost nodes by this one.");
    describe_counter!(
        "windlass_trigger_runs_total",
        "Runs of triggers that this node dispatched, by what became of them."
    );
    describe_counter!(
        "windlass_schedule_slots_total",
        "Slots of schedules that this node fired or left out as missed."
    );
    describe_histogram!("windlass_ttfs_seconds", "Time to first signal as users saw it, by surface.");
    describe_counter!(
        "windlass_ttfs_events_total",
        "Events of the time to first signal, by surface, type and cache hit."
    );
    describe_gauge!("windlass_figure_faults", "Queues whose kept figures differ from their jobs; 0 is right.");
}

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(scrape))
}

/// Figures in the text format of Prometheus. Those of this process are told while the database is away, too.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, body = String)))]
async fn scrape(State(state): State<AppState>, principal: Principal) -> Response {
    let mut text = of_this_process(&principal);
    tasks(&mut text, &state.engine.tasks());
    if state.store.is_postgres() {
        let up = u8::from(state.store.hints().are_relayed());
        gauge(&mut text, "windlass_hint_relay_up", "Whether the connection for hints of other nodes is up.", up);
    }
    let queues = state.store.list_queues(principal.tenant, None, PAGE_ITEMS).await;
    gauge(&mut text, "windlass_database_up", "Whether the database answered this scrape.", u8::from(queues.is_ok()));
    // What the database would have to tell is left out, and a scrape does not wait for it once more.
    if let Ok(queues) = queues {
        jobs(&mut text, &queues);
        oldest(&mut text, &queues, state.store.clock().now());
        kept(&mut text, &state, principal.tenant).await;
        if principal.is_of_the_house() {
            of_the_database(&mut text, &state).await;
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
    head(text, name, "When a background task of this node last succeeded, or was begun, by task.");
    for task in tasks {
        let at = task.last_success_at.millis() as f64 / 1_000.0;
        let _ = writeln!(text, "{name}{{task=\"{}\"}} {at}", task.name);
    }
}

const TTFS_ALERT: &str = "windlass_ttfs_alert";

/// The figures of this process that are the caller's to see. What another's pools are called is not, and alerts are read
/// with what is kept: this process knows only of those that it noticed.
fn of_this_process(principal: &Principal) -> String {
    let text = handle().map(PrometheusHandle::render).unwrap_or_default();
    let shown = |line: &&str| !is_alert(line) && (principal.is_of_the_house() || !names_a_pool(line));
    text.lines().filter(shown).flat_map(|line| [line, "\n"]).collect()
}

fn is_alert(line: &str) -> bool {
    let line = line.strip_prefix("# HELP ").or_else(|| line.strip_prefix("# TYPE ")).unwrap_or(line);
    line.starts_with(TTFS_ALERT)
}

fn names_a_pool(line: &str) -> bool {
    line.contains("{pool=\"") || line.contains(",pool=\"")
}

async fn kept(text: &mut String, state: &AppState, tenant: TenantId) {
    if let Ok(alerts) = state.store.ttfs_alerts(tenant).await {
        let _ = writeln!(text, "# HELP {TTFS_ALERT} Alerts on the time to first signal; 1 while one holds.");
        let _ = writeln!(text, "# TYPE {TTFS_ALERT} gauge");
        for alert in alerts {
            let _ = writeln!(text, "{TTFS_ALERT}{{alert=\"{}\",surface=\"{}\"}} 1", alert.alert, alert.surface);
        }
    }
    if let Ok(living) = state.store.living_workers(tenant).await {
        head(text, "windlass_workers", "Workers that live, by whether they take more jobs or are draining.");
        for (state, count) in [("working", living.working), ("draining", living.draining)] {
            let _ = writeln!(text, "windlass_workers{{state=\"{state}\"}} {count}");
        }
    }
    if let Ok(found) = state.store.list_processes(tenant, None, PAGE_ITEMS).await {
        processes(text, &found, state.store.clock().now());
    }
    if let (Ok(age_ms), Ok(letters)) = (state.store.outbox_age_ms().await, unresolved(state, tenant).await) {
        text.push_str(
            "# HELP windlass_outbox_age_seconds Since when the oldest run that could start has been waiting.\n",
        );
        text.push_str("# TYPE windlass_outbox_age_seconds gauge\n");
        let _ = writeln!(text, "windlass_outbox_age_seconds {}", age_ms as f64 / 1_000.0);
        text.push_str("# HELP windlass_dead_letters Unresolved dead letters, counted up to ten thousand.\n");
        text.push_str("# TYPE windlass_dead_letters gauge\n");
        let _ = writeln!(text, "windlass_dead_letters {letters}");
    }
}

/// What is of no tenant.
async fn of_the_database(text: &mut String, state: &AppState) {
    if let Ok(size) = state.store.size().await {
        let help = "Size on disk: of the SQLite file, or of PostgreSQL's tables with their indexes.";
        gauge(text, "windlass_database_bytes", help, size.bytes);
    }
    if let Some(bytes) = state.store.sqlite_wal_bytes() {
        gauge(text, "windlass_wal_bytes", "Size of SQLite's write-ahead log on disk.", bytes);
    }
    if let Ok(rows) = state.store.quarantined().await {
        let help = "Rows that a task set aside because it could not deal with them, counted up to ten thousand.";
        gauge(text, "windlass_quarantined", help, rows);
    }
}

async fn unresolved(state: &AppState, tenant: TenantId) -> Result<usize, store::StoreError> {
    let open = DeadLetterFilter { resolved: Some(false), ..DeadLetterFilter::default() };
    Ok(state.store.count_dead_letters(tenant, open).await?.count)
}

/// Read at the scrape: kept figures belong to the database, not to this process.
fn jobs(text: &mut String, queues: &[Queue]) {
    text.push_str("# HELP windlass_jobs Jobs by queue and state; ended ones since the queue began.\n");
    text.push_str("# TYPE windlass_jobs gauge\n");
    for queue in queues {
        let counts = &queue.counts;
        let states = [
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
    head(text, "windlass_queue_oldest_seconds", "How long the first job that could run has waited, by queue.");
    for queue in queues {
        let waits = queue.oldest_waiting_at.filter(|_| queue.paused.is_none());
        let age_ms = waits.map_or(0, |at| now.ms_since(at).max(0));
        let age = age_ms as f64 / 1_000.0;
        let _ = writeln!(text, "windlass_queue_oldest_seconds{{queue=\"{}\"}} {age}", queue.name);
    }
}

/// W7: by the queries that make the jobs.
fn processes(text: &mut String, processes: &[Process], now: Time) {
    let oldest_s = |process: &Process| process.figures.oldest.map_or(0, |oldest| now.ms_since(oldest).max(0) / 1_000);
    type Figure = (&'static str, &'static str, fn(&Process) -> i64);
    let figures: [Figure; 3] = [
        ("eligible", "Subjects for which a job may be made now, by process.", |process| process.figures.eligible),
        ("active", "Subjects with an unfinished job, by process.", |process| process.figures.active),
        ("in_backoff", "Subjects held off by a backoff, by process.", |process| process.figures.in_backoff),
    ];
    for (name, help, figure) in figures {
        let _ = writeln!(text, "# HELP windlass_process_{name} {help}\n# TYPE windlass_process_{name} gauge");
        for process in processes {
            let _ = writeln!(text, "windlass_process_{name}{{process=\"{}\"}} {}", process.name, figure(process));
        }
    }
    text.push_str(
        "# HELP windlass_process_oldest_seconds How long the first eligible subject has waited, by process.\n",
    );
    text.push_str("# TYPE windlass_process_oldest_seconds gauge\n");
    for process in processes {
        let age = oldest_s(process);
        let _ = writeln!(text, "windlass_process_oldest_seconds{{process=\"{}\"}} {age}", process.name);
    }
}

/// Counts an answer and how long it took, by route.
pub(crate) struct Timed {
    started: Instant,
    route: &'static str,
    method: &'static str,
}

/// What is counted of the answers of one kind.
struct Answers {
    given: Counter,
    seconds: Histogram,
}

/// Looking a figure up by its labels takes longer than counting.
static ANSWERS: LazyLock<RwLock<HashMap<Kind, Answers>>> = LazyLock::new(RwLock::default);

/// Route, method and status.
type Kind = (&'static str, &'static str, StatusCode);

impl Timed {
    pub(crate) fn start(found: Option<&Found>, method: &Method) -> Self {
        let route = found.and_then(Found::path).unwrap_or("unmatched");
        Self { started: Instant::now(), route, method: method_label(method) }
    }

    pub(crate) fn answered(self, response: &Response) {
        let kind = (self.route, self.method, response.status());
        let count = |answers: &Answers| {
            answers.given.increment(1);
            answers.seconds.record(self.started.elapsed().as_secs_f64());
        };
        if let Some(answers) = ANSWERS.read().expect("no reader panics").get(&kind) {
            return count(answers);
        }
        count(ANSWERS.write().expect("no writer panics").entry(kind).or_insert_with(|| Answers::of(kind)));
    }
}

impl Answers {
    fn of((route, method, status): Kind) -> Self {
        let status = status.as_u16().to_string();
        Self {
            given: metrics::counter!("windlass_http_requests_total", "route" => route, "method" => method, "status" => status),
            seconds: metrics::histogram!("windlass_http_request_seconds", "route" => route, "method" => method),
        }
    }
}

/// A caller may invent methods; each would be a series of its own.
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
