//! Looks at this node's containers: inspects them now and then, asks them whether they are well, stops those whose time is
//! up, and brings those that someone wants to run (R4, R5).

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

use super::docker::{Checked, Container};
use super::events::exit;
use super::{RuntimeNode, Shared, reconcile};
use crate::task::{Done, Task};

/// Until it answers for the first time a runtime is asked this often: whoever waits for it should not wait longer.
const FIRST_PROBES: Duration = Duration::from_millis(500);
/// A runtime that someone wants to run and that does not is started again after this, doubling.
const REVIVE_S: u64 = 1;
const REVIVE_MAX_S: u64 = 300;
/// One that ran so long has earned a fresh start.
const SETTLED: Duration = Duration::from_secs(60);

pub(crate) struct WatchRuntimes {
    node: RuntimeNode,
    http: reqwest::Client,
    reconciled_at: std::sync::Mutex<Option<Instant>>,
}

/// What is remembered of a runtime between two looks.
#[derive(Clone, Debug, Default)]
pub(super) struct Watched {
    container_id: String,
    inspected_at: Option<Instant>,
    probed_at: Option<Instant>,
    counted_at: Option<Instant>,
    failures: u32,
    address: Option<String>,
    revived: u32,
    revived_at: Option<Instant>,
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
            at.is_none_or(|at| at.elapsed() >= shared.options.reconcile_every)
        };
        // A container that went behind our back is written off at once.
        let asked = futures_util::FutureExt::now_or_never(shared.reconcile.notified()).is_some();
        let mut done = Done::nothing();
        if due || asked {
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
                        shared.observe(store, runtime.tenant, &runtime.name, id, seen).await;
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
                self.node.shared.observe(store, runtime.tenant, &runtime.name, id, seen).await;
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
            self.node.shared.observe(store, runtime.tenant, &runtime.name, id, seen).await;
        }
    }

    /// Stops what has run long enough, and starts or stops what is not as someone wants it.
    async fn keep(&self, store: &Store, runtime: &Runtime) -> Result<(), StoreError> {
        let shared = &self.node.shared;
        let running = runtime.status == RuntimeStatus::Running;
        let over = |ttl_s: i64| runtime.started_at.is_some_and(|at| store.clock().now() >= at.plus_s(ttl_s));
        let ask = |kind, source| NewOperation {
            kind,
            source,
            source_ref: None,
            image: None,
            actor: "reconcile".into(),
            depth: 0,
        };
        if runtime.deleting {
            let cleanup = ask(OperationKind::CleanupContainer, OperationSource::AutoReconcile);
            store.request_operation(runtime.tenant, &runtime.name, cleanup).await?;
        } else if running && runtime.spec.ttl_s.is_some_and(over) {
            tracing::info!(runtime = %runtime.name, ttl_s = runtime.spec.ttl_s, "a runtime's time is up");
            let stop = ask(OperationKind::Stop, OperationSource::AutoTtl);
            store.request_operation(runtime.tenant, &runtime.name, stop).await?;
        } else if runtime.spec.desired == Some(Desired::Stopped) && running {
            let stop = ask(OperationKind::Stop, OperationSource::AutoReconcile);
            store.request_operation(runtime.tenant, &runtime.name, stop).await?;
        } else if runtime.spec.desired == Some(Desired::Running) && runtime.spec.ttl_s.is_none() && !running {
            let mut watched = shared.watched(runtime, runtime.container_id.as_deref().unwrap_or_default());
            let wait_s = REVIVE_S.saturating_mul(1 << watched.revived.min(16)).min(REVIVE_MAX_S);
            if watched.revived_at.is_some_and(|at| at.elapsed() > SETTLED.max(Duration::from_secs(2 * wait_s))) {
                watched.revived = 0;
            } else if watched.revived_at.is_some_and(|at| at.elapsed() < Duration::from_secs(wait_s)) {
                return Ok(());
            }
            watched.revived += 1;
            watched.revived_at = Some(Instant::now());
            shared.remember(runtime, watched);
            tracing::info!(runtime = %runtime.name, "a runtime that is wanted does not run: it is started");
            let start = ask(OperationKind::Start, OperationSource::AutoReconcile);
            store.request_operation(runtime.tenant, &runtime.name, start).await?;
        }
        Ok(())
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

    /// What is remembered of it; of another container nothing but how often it was revived.
    fn watched(&self, runtime: &Runtime, container_id: &str) -> Watched {
        let watched = self.watched.lock().expect("nobody panics with the map in hand");
        let known = watched.get(&Self::key(runtime)).cloned().unwrap_or_default();
        if known.container_id == container_id {
            return known;
        }
        Watched {
            container_id: container_id.to_owned(),
            revived: known.revived,
            revived_at: known.revived_at,
            ..Watched::default()
        }
    }

    fn remember(&self, runtime: &Runtime, watched: Watched) {
        self.watched.lock().expect("nobody panics with the map in hand").insert(Self::key(runtime), watched);
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
        seen: Observation,
    ) {
        let status = seen.status;
        let source = seen.source.as_str();
        let details = seen.details.clone();
        match store.observe_runtime(tenant, name, container_id, seen).await {
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
