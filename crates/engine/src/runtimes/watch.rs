//! Monitors this node's containers: inspects and probes them, stops those whose TTL has passed, and brings each runtime
//! to its desired status.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use domain::limits::{PROBE_FAILURES, PROBE_TIMEOUT_S};
use domain::runtimes::{
    Desired, HealthSource, HealthStatus, Observation, OperationKind, OperationSource, Probe, RuntimeStatus,
};
use domain::{RuntimeName, TenantId, Time};
use futures_util::future::join_all;
use store::db::notifier::Topic;
use store::runtimes::Runtime;
use store::runtimes::request::NewOperation;
use store::{Store, StoreError};

use super::driver::{Container, HealthCheck};
use super::events::exit;
use super::{NodeShared, RuntimeNode, reconcile};
use crate::task::{Task, TaskOutcome};

/// Probe interval until the first response, so that those who wait for the runtime do not wait longer.
const FIRST_PROBES: Duration = Duration::from_millis(500);
/// First and longest delay before an ineffective start, stop or cleanup is requested again. It doubles each time.
const RETRY_S: u64 = 1;
const RETRY_MAX_S: u64 = 300;
/// After this long without a request the delay is reset.
const SETTLED: Duration = Duration::from_secs(60);
/// Delay before a skipped reconciliation is repeated.
const RECONCILE_RETRY: Duration = Duration::from_secs(2);

pub(crate) struct WatchRuntimes {
    node: RuntimeNode,
    http: reqwest::Client,
    reconciled_at: std::sync::Mutex<Option<Instant>>,
}

/// The state of a runtime that is kept between two checks.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    container_id: String,
    /// A restarted container keeps its id, but the rest of the state is outdated.
    started_at: Option<Time>,
    inspected_at: Option<Instant>,
    probed_at: Option<Instant>,
    counted_at: Option<Instant>,
    failures: u32,
    address: Option<String>,
    requests: RequestBackoff,
}

impl Watched {
    /// Keeps the state for the same start of the same container. Otherwise only the requests.
    fn at(self, container_id: &str, started_at: Option<Time>) -> Self {
        if self.container_id == container_id && self.started_at == started_at {
            return self;
        }
        Self { container_id: container_id.to_owned(), started_at, requests: self.requests, ..Self::default() }
    }
}

/// The last operation that was requested to reach the desired status, and how often in a row.
#[derive(Clone, Copy, Debug, Default)]
struct RequestBackoff {
    kind: Option<OperationKind>,
    times: u32,
    at: Option<Instant>,
}

impl RequestBackoff {
    /// Returns true if the operation may be requested now, and records the request. Repeated requests back off.
    fn try_request(&mut self, kind: OperationKind) -> bool {
        if self.kind != Some(kind) {
            *self = Self { kind: Some(kind), ..Self::default() };
        }
        let wait = Duration::from_secs(RETRY_S.saturating_mul(1 << self.times.min(16)).min(RETRY_MAX_S));
        match self.at.map(|at| at.elapsed()) {
            Some(passed) if passed > SETTLED.max(2 * wait) => self.times = 0,
            Some(passed) if passed < wait => return false,
            _ => {}
        }
        self.times += 1;
        self.at = Some(Instant::now());
        true
    }
}

impl WatchRuntimes {
    pub(crate) fn new(node: RuntimeNode) -> Self {
        let http = reqwest::Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .timeout(Duration::from_secs(PROBE_TIMEOUT_S))
            .pool_max_idle_per_host(1)
            .tls_backend_preconfigured(crate::outbound::public_roots())
            .build()
            .expect("the client settings are valid");
        Self { node, http, reconciled_at: std::sync::Mutex::default() }
    }
}

impl Task for WatchRuntimes {
    const NAME: &'static str = "watch_runtimes";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let shared = &self.node.shared;
        let due = {
            let at = self.reconciled_at.lock().expect("lock poisoned");
            let retry = shared.retry_reconcile.load(Ordering::Relaxed);
            let every = if retry {
                RECONCILE_RETRY.min(shared.options.reconcile_every)
            } else {
                shared.options.reconcile_every
            };
            at.is_none_or(|at| at.elapsed() >= every)
        };
        // A container that disappeared is reconciled at once.
        let requested = futures_util::FutureExt::now_or_never(shared.reconcile.notified()).is_some();
        let mut done = TaskOutcome::nothing();
        if due || requested {
            shared.retry_reconcile.store(false, Ordering::Relaxed);
            // If Docker is unavailable, the reconciliation is repeated.
            match reconcile::run(shared, store).await {
                Ok(work) => {
                    *self.reconciled_at.lock().expect("lock poisoned") = Some(Instant::now());
                    done.work = work;
                }
                Err(reconcile::ReconcileError::Store(error)) => return Err(error),
                Err(reconcile::ReconcileError::Engine(error)) => {
                    tracing::debug!(%error, "failed to reconcile containers");
                }
            }
        }
        let runtimes = store.runtimes_of_node(&shared.context.node).await?;
        shared.detect_departures(&runtimes);
        if runtimes.is_empty() {
            return Ok(done);
        }
        let idle: Vec<&Runtime> = runtimes.iter().filter(|runtime| runtime.in_flight.is_none()).collect();
        join_all(idle.iter().map(|runtime| self.check(store, runtime))).await;
        for runtime in idle {
            self.request_wanted(store, runtime).await?;
        }
        Ok(done)
    }
}

impl WatchRuntimes {
    /// Inspects and probes the container if due.
    async fn check(&self, store: &Store, runtime: &Runtime) {
        let Some(id) = runtime.container_id.as_deref() else { return };
        let ended_by_itself = runtime.health.as_ref().is_some_and(|health| health.status.is_end());
        if runtime.status != RuntimeStatus::Running && !ended_by_itself {
            return;
        }
        let shared = &self.node.shared;
        let mut watched = shared.watched(runtime, id);
        if watched.inspected_at.is_none_or(|at| at.elapsed() >= shared.options.inspect_every) {
            let at = store.clock().now();
            match shared.docker.inspect(id).await {
                Ok(found) => {
                    watched.inspected_at = Some(Instant::now());
                    let probe = runtime.spec.probe.as_ref();
                    watched.address = found.as_ref().zip(probe).and_then(|(found, probe)| found.address_of(probe.port));
                    let observation = inspected(found.as_ref(), runtime, at);
                    if let Some(observation) = observation {
                        shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, observation).await;
                    }
                }
                // An unavailable Docker engine says nothing about the container.
                Err(error) => tracing::debug!(runtime = %runtime.name, %error, "failed to inspect a container"),
            }
        }
        if let (Some(probe), Some(address)) = (&runtime.spec.probe, watched.address.clone())
            && runtime.status == RuntimeStatus::Running
        {
            self.probe(store, runtime, id, probe, &address, &mut watched).await;
        }
        shared.remember(runtime, watched);
    }

    async fn probe(
        &self,
        store: &Store,
        runtime: &Runtime,
        id: &str,
        probe: &Probe,
        address: &str,
        watched: &mut Watched,
    ) {
        let every = self.node.shared.options.probe_every;
        let interval = if runtime.health.is_none() { FIRST_PROBES.min(every) } else { every };
        if watched.probed_at.is_some_and(|at| at.elapsed() < interval) {
            return;
        }
        watched.probed_at = Some(Instant::now());
        let at = store.clock().now();
        let details = match self.http.get(format!("http://{address}{}", probe.path)).send().await {
            Ok(response) if response.status().is_success() || response.status().is_redirection() => {
                watched.failures = 0;
                watched.counted_at = None;
                let seen = Observation {
                    status: HealthStatus::Healthy,
                    source: HealthSource::Probe,
                    details: format!("{} answered {}", probe.path, response.status().as_u16()),
                    observed_at: at,
                };
                self.node.shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, seen).await;
                return;
            }
            Ok(response) => format!("{} answered {}", probe.path, response.status().as_u16()),
            Err(error) if error.is_timeout() => format!("{} did not respond within {PROBE_TIMEOUT_S} s", probe.path),
            Err(_) => format!("{} is unreachable", probe.path),
        };
        // The frequent probes at the start count once per interval.
        if watched.counted_at.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        watched.counted_at = Some(Instant::now());
        watched.failures += 1;
        if watched.failures >= PROBE_FAILURES {
            let status = HealthStatus::ProbeFailed;
            let details = format!("{details}, {} consecutive failures", watched.failures);
            let seen = Observation { status, source: HealthSource::Probe, details, observed_at: at };
            self.node.shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, seen).await;
        }
    }

    /// Requests the operation that brings the runtime to its desired status, or that its TTL requires.
    async fn request_wanted(&self, store: &Store, runtime: &Runtime) -> Result<(), StoreError> {
        let Some((kind, source)) = wanted(runtime, store.clock().now()) else { return Ok(()) };
        let shared = &self.node.shared;
        let mut watched = shared.watched(runtime, runtime.container_id.as_deref().unwrap_or_default());
        if !watched.requests.try_request(kind) {
            return Ok(());
        }
        shared.remember(runtime, watched);
        tracing::info!(runtime = %runtime.name, %kind, source = source.as_str(), "requesting an operation");
        let new =
            NewOperation { kind, source, source_ref: None, image: None, actor: "reconcile".into(), depth: 0, on: None };
        store.request_operation(runtime.tenant, &runtime.name, new).await.map(drop)
    }
}

/// The operation that a runtime without an operation in progress needs, if any.
fn wanted(runtime: &Runtime, now: Time) -> Option<(OperationKind, OperationSource)> {
    let running = runtime.status == RuntimeStatus::Running;
    let over = |ttl_s: i64| runtime.started_at.is_some_and(|at| now >= at.plus_s(ttl_s));
    if runtime.deleting {
        return Some((OperationKind::CleanupContainer, OperationSource::AutoReconcile));
    }
    if running && runtime.spec.ttl_s.is_some_and(over) {
        return Some((OperationKind::Stop, OperationSource::AutoTtl));
    }
    match runtime.spec.desired {
        Some(Desired::Stopped) if running => Some((OperationKind::Stop, OperationSource::AutoReconcile)),
        Some(Desired::Running) if !running && runtime.spec.ttl_s.is_none() => {
            Some((OperationKind::Start, OperationSource::AutoReconcile))
        }
        _ => None,
    }
}

/// The observation of an inspection. `None` if the inspection cannot decide.
fn inspected(found: Option<&Container>, runtime: &Runtime, at: Time) -> Option<Observation> {
    let seen = |status, details: &str| {
        Some(Observation { status, source: HealthSource::Inspect, details: details.into(), observed_at: at })
    };
    let Some(found) = found else {
        return seen(HealthStatus::ContainerDisappeared, "the container no longer exists");
    };
    if found.fresh {
        return None;
    }
    if !found.running {
        return Some(ended(found, at));
    }
    let current = runtime.health.as_ref().map(|health| health.status);
    match found.checked {
        Some(HealthCheck::Unhealthy) => seen(HealthStatus::InspectUnhealthy, "the image's health check fails"),
        // With a probe, only the probe decides whether the runtime responds. An inspection can detect that it runs
        // again.
        _ if runtime.spec.probe.is_some() && current.is_none_or(|current| !current.is_end()) => {
            match (current, found.checked) {
                (Some(HealthStatus::InspectUnhealthy), Some(HealthCheck::Healthy)) => {
                    seen(HealthStatus::Healthy, "the image's health check succeeds")
                }
                _ => None,
            }
        }
        _ => seen(HealthStatus::Healthy, "the container runs"),
    }
}

/// The observation of a container that does not run.
pub(super) fn ended(found: &Container, at: Time) -> Observation {
    let (status, details) = match found.oom_killed {
        true => (HealthStatus::Oom, "the container ran out of memory and was killed".to_owned()),
        false => (HealthStatus::Exited, exit(found.exit_code)),
    };
    Observation { status, source: HealthSource::Inspect, details, observed_at: at }
}

impl NodeShared {
    fn key(runtime: &Runtime) -> String {
        format!("{} {}", runtime.tenant.0, runtime.name)
    }

    /// The kept state of a runtime's container.
    fn watched(&self, runtime: &Runtime, container_id: &str) -> Watched {
        let watched = self.watched.lock().expect("lock poisoned");
        watched.get(&Self::key(runtime)).cloned().unwrap_or_default().at(container_id, runtime.started_at)
    }

    fn remember(&self, runtime: &Runtime, watched: Watched) {
        self.watched.lock().expect("lock poisoned").insert(Self::key(runtime), watched);
    }

    /// Requests a reconciliation if a runtime has moved to another node, perhaps while this node was disconnected, so
    /// that the container that it left behind is found.
    fn detect_departures(&self, runtimes: &[Runtime]) {
        let here: HashSet<String> = runtimes.iter().map(Self::key).collect();
        let mut before = self.last_runtimes.lock().expect("lock poisoned");
        if before.iter().any(|key| !here.contains(key)) {
            self.reconcile.notify_one();
        }
        *before = here;
    }

    pub(super) fn retry_reconcile_soon(&self) {
        self.retry_reconcile.store(true, Ordering::Relaxed);
    }

    pub(super) fn inspect_all(&self) {
        let mut watched = self.watched.lock().expect("lock poisoned");
        watched.values_mut().for_each(|watched| watched.inspected_at = None);
        self.reconcile.notify_one();
    }

    pub(super) async fn observe(
        &self,
        store: &Store,
        tenant: TenantId,
        name: &RuntimeName,
        container_id: &str,
        started_at: Option<Time>,
        observation: Observation,
    ) {
        let status = observation.status;
        let source = observation.source.as_str();
        let details = observation.details.clone();
        match store.observe_runtime(tenant, name, container_id, started_at, observation).await {
            Ok(true) => {
                metrics::counter!("windlass_health_changes_total", "status" => status.as_str()).increment(1);
                tracing::info!(runtime = %name, health = status.as_str(), source, details, "a runtime's health changed");
                if status == HealthStatus::ContainerDisappeared {
                    self.reconcile.notify_one();
                }
                store.notifier().runtimes_changed();
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(runtime = %name, %error, "failed to record an observation"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R4.
    #[test]
    fn a_restarted_container_resets_its_health_state() {
        let first = Some(Time::from_seconds(1));
        let watched = Watched { failures: 2, address: Some("127.0.0.1:1".into()), ..Watched::default() };
        let watched =
            Watched { container_id: "c".into(), started_at: first, inspected_at: Some(Instant::now()), ..watched };
        assert_eq!(watched.clone().at("c", first).failures, 2);
        for (id, started_at) in [("c", Some(Time::from_seconds(2))), ("c", None), ("d", first)] {
            let reset = watched.clone().at(id, started_at);
            assert_eq!((reset.failures, reset.address, reset.inspected_at), (0, None, None), "{id} {started_at:?}");
        }
    }

    /// Requirement R5.
    #[test]
    fn a_repeated_operation_request_backs_off() {
        let mut requests = RequestBackoff::default();
        assert!(requests.try_request(OperationKind::Stop), "at once");
        assert!(!requests.try_request(OperationKind::Stop), "and not again immediately");
        let ago = |requests: &mut RequestBackoff, seconds: u64| {
            requests.at = Instant::now().checked_sub(Duration::from_secs(seconds));
            assert!(requests.at.is_some(), "the machine has been up for longer");
        };
        for wait_s in [2, 4, 8] {
            ago(&mut requests, wait_s - 1);
            assert!(!requests.try_request(OperationKind::Stop), "{wait_s}");
            ago(&mut requests, wait_s + 1);
            assert!(requests.try_request(OperationKind::Stop), "{wait_s}");
        }
        assert!(requests.try_request(OperationKind::CleanupContainer), "another operation");
        assert!(!requests.try_request(OperationKind::CleanupContainer));
        ago(&mut requests, 61);
        assert!(requests.try_request(OperationKind::CleanupContainer));
        assert_eq!(requests.times, 1, "the delay was reset");
    }
}
