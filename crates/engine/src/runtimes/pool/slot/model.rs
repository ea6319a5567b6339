//! The model of a slot: loaded, awaited, checked, and unloaded when the slot needs another model or the model is idle.

use std::time::{Duration, Instant};

use domain::limits::RUNTIME_LOAD_S;
use domain::runtimes::pool::Member;
use domain::runtimes::{HealthStatus, OperationKind, OperationSource, RuntimeStatus};
use store::StoreError;
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{OperationOutcome, Runtime};

use super::{HeldModel, POLL, SlotRunner};

impl SlotRunner {
    /// Loads a member's runtime into this slot, after unloading the current one. Returns the duration without that of
    /// the unloading, which is counted separately.
    pub(super) async fn load(&self, held: &mut HeldModel, member: &Member) -> Result<Duration, String> {
        // Checked before anything is stopped: a runtime without a port could not receive jobs.
        let declared = self.store.runtime(self.shared.tenant, &member.runtime).await.map_err(message)?;
        if declared.is_some_and(|runtime| runtime.spec.ports.is_empty() && runtime.endpoint.is_none()) {
            return Err(format!("the runtime {} publishes no port for jobs", member.runtime));
        }
        if let Some(before) = held.member.clone().filter(|before| before != member) {
            let stopping = Instant::now();
            self.unload(&before).await?;
            let took = stopping.elapsed();
            self.shared.change(|state| {
                state.stops += 1;
                state.stop_ms += took.as_millis() as u64;
            });
        }
        let started = Instant::now();
        self.shared.reserve(&member.affinity, self.number, self.store.clock().now());
        // Recorded before the start: if the load fails from here on, the runtime may be up and occupy this slot.
        *held = HeldModel { member: Some(member.clone()), used_at: Some(started) };
        self.operate(member, OperationKind::Start).await?;
        self.wait_until_healthy(member).await?;
        held.used_at = Some(Instant::now());
        let took = started.elapsed();
        let pool = self.shared.name.to_string();
        metrics::histogram!("windlass_pool_load_seconds", "pool" => pool).record(took.as_secs_f64());
        self.loaded(member);
        Ok(took)
    }

    /// Counts a successful load. It is a swap if a job requested it.
    pub(super) fn count_load(&self, took: Duration, swaps: u64) {
        self.shared.change(|state| {
            state.loads += 1;
            state.load_ms += took.as_millis() as u64;
            state.swaps += swaps;
        });
    }

    pub(super) fn loaded(&self, member: &Member) {
        self.shared.member(&member.affinity, |state| {
            state.state = "loaded".into();
            state.slot = Some(self.number);
            state.since = Some(self.store.clock().now().micros());
            state.failures = 0;
            state.backoff_until = None;
            state.cause = None;
        });
    }

    /// Stops a runtime once no job is being posted to it.
    pub(super) async fn unload(&self, member: &Member) -> Result<(), String> {
        let in_use = self.shared.in_use(&member.affinity);
        let _exclusive = in_use.write().await;
        self.stop(member).await
    }

    /// The caller must hold the write lock of the model.
    async fn stop(&self, member: &Member) -> Result<(), String> {
        if self.belongs_to_other_slot(member) {
            return Ok(());
        }
        self.shared.release(&member.affinity, self.number);
        self.operate(member, OperationKind::Stop).await
    }

    async fn operate(&self, member: &Member, kind: OperationKind) -> Result<(), String> {
        let new = NewOperation {
            kind,
            source: OperationSource::AutoScale,
            source_ref: Some(format!("pool {}", self.shared.name)),
            image: None,
            actor: format!("pool {}", self.shared.name),
            depth: 0,
            // The endpoint is reachable only on this machine.
            on: Some(self.node.clone()),
        };
        let requested =
            self.store.request_operation(self.shared.tenant, &member.runtime, new).await.map_err(message)?;
        let operation = match requested {
            Requested::Accepted { operation, .. } => operation,
            Requested::Refused { message, .. } => return Err(message),
            Requested::NotFound => return Err(format!("the runtime {} does not exist", member.runtime)),
            Requested::NoNode => return Err("no node drives a Docker engine".into()),
        };
        loop {
            let line = self.store.operation(self.shared.tenant, operation).await.map_err(message)?;
            match line.and_then(|line| Some((line.outcome?, line.error_code, line.error_message))) {
                Some((OperationOutcome::Success, _, _)) => return Ok(()),
                Some((OperationOutcome::Failure, code, message)) => {
                    let code = code.map_or("internal_error", |code| code.as_str());
                    return Err(format!("{code}: {}", message.unwrap_or_default()));
                }
                None => tokio::time::sleep(POLL).await,
            }
        }
    }

    async fn wait_until_healthy(&self, member: &Member) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(RUNTIME_LOAD_S);
        while Instant::now() < deadline {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await;
            let runtime = runtime.map_err(message)?;
            let runtime = runtime.ok_or_else(|| format!("the runtime {} was deleted", member.runtime))?;
            match runtime.health.map(|health| (health.status, health.details)) {
                Some((HealthStatus::Healthy, _)) if runtime.endpoint.is_none() => {
                    return Err(format!("the runtime {} is healthy but has no endpoint for jobs", member.runtime));
                }
                Some((HealthStatus::Healthy, _)) => return Ok(()),
                Some((status, details)) if status.is_end() => return Err(format!("{}: {details}", status.as_str())),
                _ => tokio::time::sleep(POLL).await,
            }
        }
        Err(format!("the runtime was not healthy after {RUNTIME_LOAD_S} s"))
    }

    /// Detects that the runtime ended by itself, and stops it after the pool's idle time.
    pub(super) async fn check_model(&self, held: &mut HeldModel) -> Result<(), StoreError> {
        held.member.take_if(|member| self.belongs_to_other_slot(member));
        let Some(member) = held.member.clone() else { return Ok(()) };
        let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await?;
        if !runtime.as_ref().is_some_and(is_up) {
            self.shared.release(&member.affinity, self.number);
            held.member = None;
            return Ok(());
        }
        if !self.slot.pinned && self.is_idle(held, &member) {
            self.stop_idle(held, &member).await;
        }
        Ok(())
    }

    /// True if no slot has posted to the model for the pool's idle time.
    fn is_idle(&self, held: &HeldModel, member: &Member) -> bool {
        let Some(seconds) = self.spec.idle_stop_s else { return false };
        let used_at = held.used_at.max(self.shared.used_at(&member.affinity));
        used_at.is_some_and(|at| at.elapsed() >= Duration::from_secs(seconds as u64))
    }

    async fn stop_idle(&self, held: &mut HeldModel, member: &Member) {
        let in_use = self.shared.in_use(&member.affinity);
        // Fails while a job is being posted to the model. Posting may also have ended just now.
        let Ok(_exclusive) = in_use.try_write() else { return };
        if !self.is_idle(held, member) {
            return;
        }
        match self.stop(member).await {
            Ok(()) => held.member = None,
            // It stays loaded. The next attempt is after another idle time.
            Err(cause) => {
                tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "failed to stop an idle model");
                held.used_at = Some(Instant::now());
            }
        }
    }

    /// A model that failed to load stays recorded here. Another slot may have loaded it since.
    fn belongs_to_other_slot(&self, member: &Member) -> bool {
        self.shared.slot_of(&member.affinity).is_some_and(|at| at != self.number)
    }
}

/// True if the runtime occupies a slot: it runs or is being started.
pub(super) fn is_up(runtime: &Runtime) -> bool {
    runtime.status == RuntimeStatus::Running || runtime.in_flight.is_some_and(OperationKind::brings_up)
}

pub(super) fn is_healthy(runtime: &Runtime) -> bool {
    runtime.health.as_ref().is_some_and(|health| health.status == HealthStatus::Healthy)
}

fn message(error: StoreError) -> String {
    error.to_string()
}
