//! The model in a slot's hands: brought up, waited for, looked after, and taken down when its place is needed or nobody
//! needs it.

use std::time::{Duration, Instant};

use domain::limits::RUNTIME_LOAD_S;
use domain::pool::Member;
use domain::runtime::{HealthStatus, OperationKind, OperationSource, RuntimeStatus};
use store::StoreError;
use store::runtimes::request::{NewOperation, Requested};
use store::runtimes::{Outcome, Runtime};

use super::{Holding, LOOK, Run};

impl Run {
    /// Brings a member's runtime up in this slot, in the place of the one that is there. Gives how long that took.
    pub(super) async fn load(&self, holding: &mut Holding, member: &Member) -> Result<Duration, String> {
        // Before anything is stopped for it: it would come up and do nobody's work.
        let declared = self.store.runtime(self.shared.tenant, &member.runtime).await.map_err(told)?;
        if declared.is_some_and(|runtime| runtime.spec.ports.is_empty() && runtime.endpoint.is_none()) {
            return Err(format!("the runtime {} publishes no port to post to", member.runtime));
        }
        if let Some(before) = holding.member.clone().filter(|before| before != member) {
            self.unload(&before).await?;
        }
        let began = Instant::now();
        self.shared.reserve(&member.affinity, self.number, self.store.clock().now());
        // In hand before it is up: whatever fails from here on, it may be up and has its place here.
        *holding = Holding { member: Some(member.clone()), used_at: Some(began) };
        self.operate(member, OperationKind::Start).await?;
        self.until_well(member).await?;
        holding.used_at = Some(Instant::now());
        let took = began.elapsed();
        let pool = self.shared.name.to_string();
        metrics::histogram!("windlass_pool_load_seconds", "pool" => pool).record(took.as_secs_f64());
        self.loaded(member);
        Ok(took)
    }

    /// A load that went well, and whether a job asked for it: then it is a swap.
    pub(super) fn count(&self, took: Duration, swaps: u64) {
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

    /// Takes a runtime down once nobody posts to it.
    pub(super) async fn unload(&self, member: &Member) -> Result<(), String> {
        let in_use = self.shared.in_use(&member.affinity);
        let _alone = in_use.write().await;
        self.take_down(member).await
    }

    /// The caller holds it alone.
    async fn take_down(&self, member: &Member) -> Result<(), String> {
        if self.is_anothers(member) {
            return Ok(());
        }
        self.shared.leave(&member.affinity, self.number);
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
            // Its endpoint is answered on this machine alone.
            on: Some(self.node.clone()),
        };
        let requested = self.store.request_operation(self.shared.tenant, &member.runtime, new).await.map_err(told)?;
        let operation = match requested {
            Requested::Accepted { operation, .. } => operation,
            Requested::Refused { message, .. } => return Err(message),
            Requested::NotFound => return Err(format!("the runtime {} is not declared", member.runtime)),
            Requested::NoNode => return Err("no node drives a Docker engine".into()),
        };
        loop {
            let line = self.store.operation(self.shared.tenant, operation).await.map_err(told)?;
            match line.and_then(|line| Some((line.outcome?, line.error_code, line.error_message))) {
                Some((Outcome::Success, _, _)) => return Ok(()),
                Some((Outcome::Failure, code, message)) => {
                    let code = code.map_or("internal_error", |code| code.as_str());
                    return Err(format!("{code}: {}", message.unwrap_or_default()));
                }
                None => tokio::time::sleep(LOOK).await,
            }
        }
    }

    async fn until_well(&self, member: &Member) -> Result<(), String> {
        let deadline = Instant::now() + Duration::from_secs(RUNTIME_LOAD_S);
        while Instant::now() < deadline {
            let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await;
            let runtime = runtime.map_err(told)?;
            let runtime = runtime.ok_or_else(|| format!("the runtime {} is gone", member.runtime))?;
            match runtime.health.map(|health| (health.status, health.details)) {
                Some((HealthStatus::Healthy, _)) if runtime.endpoint.is_none() => {
                    return Err(format!("the runtime {} is well and has no endpoint to post to", member.runtime));
                }
                Some((HealthStatus::Healthy, _)) => return Ok(()),
                Some((status, details)) if status.is_end() => return Err(format!("{}: {details}", status.as_str())),
                _ => tokio::time::sleep(LOOK).await,
            }
        }
        Err(format!("it was not well after {RUNTIME_LOAD_S} s"))
    }

    /// Notices that the runtime went by itself, and stops one that has had nothing to do for long.
    pub(super) async fn look_after(&self, holding: &mut Holding) -> Result<(), StoreError> {
        holding.member.take_if(|member| self.is_anothers(member));
        let Some(member) = holding.member.clone() else { return Ok(()) };
        let runtime = self.store.runtime(self.shared.tenant, &member.runtime).await?;
        if !runtime.as_ref().is_some_and(is_up) {
            self.shared.leave(&member.affinity, self.number);
            holding.member = None;
            return Ok(());
        }
        if !self.slot.pinned && self.is_idle(holding, &member) {
            self.stop_idle(holding, &member).await;
        }
        Ok(())
    }

    /// Whether nobody has used it for long: other slots post to it too.
    fn is_idle(&self, holding: &Holding, member: &Member) -> bool {
        let Some(seconds) = self.spec.idle_stop_s else { return false };
        let used_at = holding.used_at.max(self.shared.used_at(&member.affinity));
        used_at.is_some_and(|at| at.elapsed() >= Duration::from_secs(seconds as u64))
    }

    async fn stop_idle(&self, holding: &mut Holding, member: &Member) {
        let in_use = self.shared.in_use(&member.affinity);
        // Whoever posts to it holds it, however long that takes; and may have let go of it just now.
        let Ok(_alone) = in_use.try_write() else { return };
        if !self.is_idle(holding, member) {
            return;
        }
        match self.take_down(member).await {
            Ok(()) => holding.member = None,
            // It keeps its place, and is tried again when it has been idle for as long once more.
            Err(cause) => {
                tracing::warn!(pool = %self.shared.name, model = %member.affinity, cause, "an idle model stays up");
                holding.used_at = Some(Instant::now());
            }
        }
    }

    /// A model that did not come up here stays in hand; another slot may have had more luck with it since.
    fn is_anothers(&self, member: &Member) -> bool {
        self.shared.slot_of(&member.affinity).is_some_and(|at| at != self.number)
    }
}

/// Whether it takes up a slot: it runs, or is being started.
pub(super) fn is_up(runtime: &Runtime) -> bool {
    runtime.status == RuntimeStatus::Running || runtime.in_flight.is_some_and(OperationKind::brings_up)
}

pub(super) fn is_well(runtime: &Runtime) -> bool {
    runtime.health.as_ref().is_some_and(|health| health.status == HealthStatus::Healthy)
}

fn told(error: StoreError) -> String {
    error.to_string()
}
