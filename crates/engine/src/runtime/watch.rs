//! Looks at this node's containers: inspects them now and then, asks them whether they are well, stops those whose time is
//! up, and brings those that someone wants to run (R4, R5).

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use domain::limits::{PROBE_FAILURES, PROBE_TIMEOUT_S};
use domain::runtime::{
    Desired, HealthSource, HealthStatus, Observation, OperationKind, OperationSource, Probe, RuntimeStatus,
};
use domain::{RuntimeName, TenantId, Time};
use futures_util::future::join_all;
use store::hints::Topic;
use store::runtimes::Runtime;
use store::runtimes::request::NewOperation;
use store::{Store, StoreError};

use super::driver::{Checked, Container};
use super::events::exit;
use super::{RuntimeNode, Shared, reconcile};
use crate::task::{Done, Task};

/// Until it answers for the first time a runtime is asked this often: whoever waits for it should not wait longer.
const FIRST_PROBES: Duration = Duration::from_millis(500);
/// A runtime that is not as someone wants it is started, stopped or cleaned up again after this, doubling.
const AGAIN_S: u64 = 1;
const AGAIN_MAX_S: u64 = 300;
/// One that was left alone so long has earned a fresh start.
const SETTLED: Duration = Duration::from_secs(60);
/// When what was left for later is looked at again.
const LEFT_OVER: Duration = Duration::from_secs(2);

pub(crate) struct WatchRuntimes {
    node: RuntimeNode,
    http: reqwest::Client,
    reconciled_at: std::sync::Mutex<Option<Instant>>,
}

/// What is remembered of a runtime between two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    container_id: String,
    /// A container that is started anew keeps its id, and little else that is known of it.
    started_at: Option<Time>,
    inspected_at: Option<Instant>,
    probed_at: Option<Instant>,
    counted_at: Option<Instant>,
    failures: u32,
    address: Option<String>,
    asked: Asked,
}

impl Watched {
    /// The same for this start of this container; of another nothing but what was asked for.
    fn at(self, container_id: &str, started_at: Option<Time>) -> Self {
        if self.container_id == container_id && self.started_at == started_at {
            return self;
        }
        Self { container_id: container_id.to_owned(), started_at, asked: self.asked, ..Self::default() }
    }
}

/// What was last asked for to have a runtime as someone wants it, and how often in a row.
#[derive(Clone, Copy, Debug, Default)]
struct Asked {
    kind: Option<OperationKind>,
    times: u32,
    at: Option<Instant>,
}

impl Asked {
    /// Whether it may be asked for now, which is then noted. What does not help is asked for ever less often.
    fn again(&mut self, kind: OperationKind) -> bool {
        if self.kind != Some(kind) {
            *self = Self { kind: Some(kind), ..Self::default() };
        }
        let wait = Duration::from_secs(AGAIN_S.saturating_mul(1 << self.times.min(16)).min(AGAIN_MAX_S));
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
            .expect("the settings above make a client");
        Self { node, http, reconciled_at: std::sync::Mutex::default() }
    }
}

impl Task for WatchRuntimes {
    const NAME: &'static str = "watch_runtimes";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Runtimes);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let shared = &self.node.shared;
        let due = {
            let at = self.reconciled_at.lock().expect("nobody panics with the time in hand");
            let left_over = shared.left_over.load(Ordering::Relaxed);
            let every =
                if left_over { LEFT_OVER.min(shared.options.reconcile_every) } else { shared.options.reconcile_every };
            at.is_none_or(|at| at.elapsed() >= every)
        };
        // A container that went behind our back is written off at once.
        let asked = futures_util::FutureExt::now_or_never(shared.reconcile.notified()).is_some();
        let mut done = Done::nothing();
        if due || asked {
            shared.left_over.store(false, Ordering::Relaxed);
            // An engine that is away is compared when it is back.
            match reconcile::run(shared, store).await {
                Ok(work) => {
                    *self.reconciled_at.lock().expect("nobody panics with the time in hand") = Some(Instant::now());
                    done.work = work;
                }
                Err(reconcile::ReconcileError::Store(error)) => return Err(error),
                Err(reconcile::ReconcileError::Engine(error)) => {
                    tracing::debug!(%error, "containers and records could not be compared");
                }
            }
        }
        let runtimes = store.runtimes_of_node(&shared.place.node).await?;
        shared.note_who_is_here(&runtimes);
        if runtimes.is_empty() {
            return Ok(done);
        }
        let idle: Vec<&Runtime> = runtimes.iter().filter(|runtime| runtime.in_flight.is_none()).collect();
        join_all(idle.iter().map(|runtime| self.look(store, runtime))).await;
        for runtime in idle {
            self.keep(store, runtime).await?;
        }
        Ok(done)
    }
}

impl WatchRuntimes {
    /// Inspects and probes what is due.
    async fn look(&self, store: &Store, runtime: &Runtime) {
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
                    let seen = inspected(found.as_ref(), runtime, at);
                    if let Some(seen) = seen {
                        shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, seen).await;
                    }
                }
                // An engine that does not answer says nothing about the container.
                Err(error) => tracing::debug!(runtime = %runtime.name, %error, "a container could not be inspected"),
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
        let pace = if runtime.health.is_none() { FIRST_PROBES.min(every) } else { every };
        if watched.probed_at.is_some_and(|at| at.elapsed() < pace) {
            return;
        }
        watched.probed_at = Some(Instant::now());
        let at = store.clock().now();
        let details = match self.http.get(format!("http://{address}{}", probe.path)).send().await {
            Ok(answer) if answer.status().is_success() || answer.status().is_redirection() => {
                watched.failures = 0;
                watched.counted_at = None;
                let seen = Observation {
                    status: HealthStatus::Healthy,
                    source: HealthSource::Probe,
                    details: format!("{} answered {}", probe.path, answer.status().as_u16()),
                    observed_at: at,
                };
                self.node.shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, seen).await;
                return;
            }
            Ok(answer) => format!("{} answered {}", probe.path, answer.status().as_u16()),
            Err(error) if error.is_timeout() => format!("{} did not answer within {PROBE_TIMEOUT_S} s", probe.path),
            Err(_) => format!("{} could not be reached", probe.path),
        };
        // The quick questions at the start count once per term.
        if watched.counted_at.is_some_and(|at| at.elapsed() < every) {
            return;
        }
        watched.counted_at = Some(Instant::now());
        watched.failures += 1;
        if watched.failures >= PROBE_FAILURES {
            let status = HealthStatus::ProbeFailed;
            let details = format!("{details}, {} times in a row", watched.failures);
            let seen = Observation { status, source: HealthSource::Probe, details, observed_at: at };
            self.node.shared.observe(store, runtime.tenant, &runtime.name, id, runtime.started_at, seen).await;
        }
    }

    /// Stops what has run long enough, and starts or stops what is not as someone wants it.
    async fn keep(&self, store: &Store, runtime: &Runtime) -> Result<(), StoreError> {
        let Some((kind, source)) = wanted(runtime, store.clock().now()) else { return Ok(()) };
        let shared = &self.node.shared;
        let mut watched = shared.watched(runtime, runtime.container_id.as_deref().unwrap_or_default());
        if !watched.asked.again(kind) {
            return Ok(());
        }
        shared.remember(runtime, watched);
        tracing::info!(runtime = %runtime.name, %kind, source = source.as_str(), "a runtime is not as it is wanted");
        let new =
            NewOperation { kind, source, source_ref: None, image: None, actor: "reconcile".into(), depth: 0, on: None };
        store.request_operation(runtime.tenant, &runtime.name, new).await.map(drop)
    }
}

/// What is to be done with a runtime that nobody asks for anything, if something is.
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

/// What an inspection says of a runtime's health, if it is its to say.
fn inspected(found: Option<&Container>, runtime: &Runtime, at: Time) -> Option<Observation> {
    let seen = |status, details: &str| {
        Some(Observation { status, source: HealthSource::Inspect, details: details.into(), observed_at: at })
    };
    let Some(found) = found else {
        return seen(HealthStatus::ContainerDisappeared, "there is no such container any more");
    };
    if found.fresh {
        return None;
    }
    if !found.running {
        return Some(ended(found, at));
    }
    let held = runtime.health.as_ref().map(|health| health.status);
    match found.checked {
        Some(Checked::Unhealthy) => seen(HealthStatus::InspectUnhealthy, "the image's own check fails"),
        // Whether it answers is the probe's to say; that it runs again is not.
        _ if runtime.spec.probe.is_some() && held.is_none_or(|held| !held.is_end()) => match (held, found.checked) {
            (Some(HealthStatus::InspectUnhealthy), Some(Checked::Healthy)) => {
                seen(HealthStatus::Healthy, "the image's own check is well")
            }
            _ => None,
        },
        _ => seen(HealthStatus::Healthy, "the container runs"),
    }
}

/// What is to be said of a container that does not run.
pub(super) fn ended(found: &Container, at: Time) -> Observation {
    let (status, details) = match found.oom_killed {
        true => (HealthStatus::Oom, "the container ran out of memory and was ended".to_owned()),
        false => (HealthStatus::Exited, exit(found.exit_code)),
    };
    Observation { status, source: HealthSource::Inspect, details, observed_at: at }
}

impl Shared {
    fn key(runtime: &Runtime) -> String {
        format!("{} {}", runtime.tenant.0, runtime.name)
    }

    /// What is remembered of it.
    fn watched(&self, runtime: &Runtime, container_id: &str) -> Watched {
        let watched = self.watched.lock().expect("nobody panics with the map in hand");
        watched.get(&Self::key(runtime)).cloned().unwrap_or_default().at(container_id, runtime.started_at)
    }

    fn remember(&self, runtime: &Runtime, watched: Watched) {
        self.watched.lock().expect("nobody panics with the map in hand").insert(Self::key(runtime), watched);
    }

    /// A runtime that was here and is not any more was moved away, perhaps while this node was cut off: what it left behind
    /// is to be found at once.
    fn note_who_is_here(&self, runtimes: &[Runtime]) {
        let here: HashSet<String> = runtimes.iter().map(Self::key).collect();
        let mut before = self.seen_here.lock().expect("nobody panics with the set in hand");
        if before.iter().any(|key| !here.contains(key)) {
            self.reconcile.notify_one();
        }
        *before = here;
    }

    pub(super) fn look_again_soon(&self) {
        self.left_over.store(true, Ordering::Relaxed);
    }

    pub(super) fn look_at_everything(&self) {
        let mut watched = self.watched.lock().expect("nobody panics with the map in hand");
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
        seen: Observation,
    ) {
        let status = seen.status;
        let source = seen.source.as_str();
        let details = seen.details.clone();
        match store.observe_runtime(tenant, name, container_id, started_at, seen).await {
            Ok(true) => {
                metrics::counter!("windlass_health_changes_total", "status" => status.as_str()).increment(1);
                tracing::info!(runtime = %name, health = status.as_str(), source, details, "a runtime's health changed");
                if status == HealthStatus::ContainerDisappeared {
                    self.reconcile.notify_one();
                }
                store.hints().runtimes_changed();
            }
            Ok(false) => {}
            Err(error) => tracing::warn!(runtime = %name, %error, "an observation could not be written down"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r4_a_container_that_is_started_anew_is_watched_anew() {
        let first = Some(Time::from_seconds(1));
        let known = Watched { failures: 2, address: Some("127.0.0.1:1".into()), ..Watched::default() };
        let known =
            Watched { container_id: "c".into(), started_at: first, inspected_at: Some(Instant::now()), ..known };
        assert_eq!(known.clone().at("c", first).failures, 2);
        for (id, started_at) in [("c", Some(Time::from_seconds(2))), ("c", None), ("d", first)] {
            let anew = known.clone().at(id, started_at);
            assert_eq!((anew.failures, anew.address, anew.inspected_at), (0, None, None), "{id} {started_at:?}");
        }
    }

    #[test]
    fn r5_what_does_not_help_is_asked_for_ever_less_often() {
        let mut asked = Asked::default();
        assert!(asked.again(OperationKind::Stop), "at once");
        assert!(!asked.again(OperationKind::Stop), "and not again in the same moment");
        let ago = |asked: &mut Asked, seconds: u64| {
            asked.at = Instant::now().checked_sub(Duration::from_secs(seconds));
            assert!(asked.at.is_some(), "the machine has run longer than that");
        };
        for wait_s in [2, 4, 8] {
            ago(&mut asked, wait_s - 1);
            assert!(!asked.again(OperationKind::Stop), "{wait_s}");
            ago(&mut asked, wait_s + 1);
            assert!(asked.again(OperationKind::Stop), "{wait_s}");
        }
        assert!(asked.again(OperationKind::CleanupContainer), "what is wanted now was not tried yet");
        assert!(!asked.again(OperationKind::CleanupContainer));
        ago(&mut asked, 61);
        assert!(asked.again(OperationKind::CleanupContainer));
        assert_eq!(asked.times, 1, "it was well for a while");
    }
}
