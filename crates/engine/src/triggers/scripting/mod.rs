//! Scripts as targets of triggers: runs the sandbox on the store, with the rights of the trigger's principal.
//!
//! The effects of a script are collected while it runs, and committed with the deletion of its outbox row in one
//! transaction. Only HTTP requests are sent immediately.

mod host;
mod job;

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::queue::job_origin::Cause;
use domain::{JobError, PrincipalRights, TenantId, TriggerId};
use script::{Input, Limits, ScriptError, Stopped};
use serde_json::Value;
use store::Store;
use store::triggers::Trigger;
use store::triggers::kv::observed_keys::ObservedKey;
use store::triggers::outbox::script_effect::ScriptEffect;
use store::triggers::outbox::{OutboxRow, failure};
use store::triggers::runs::ScriptRun;
use store::triggers::target::script_id;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::outbound::Outbound;
use host::StoreHost;

/// Timeout of one database call of a script.
const CALL_TIMEOUT: Duration = Duration::from_secs(5);

/// The principal that a script acts for, and the event that caused the run.
#[derive(Clone, Debug)]
pub struct Actor {
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub cause: Cause,
    pub principal: Arc<str>,
    /// The principal's current rights.
    pub rights: PrincipalRights,
    pub depth: i32,
}

impl Actor {
    pub fn new(trigger: &Trigger, row: &OutboxRow, rights: PrincipalRights, depth: i32) -> Self {
        let cause = Cause { event: row.event, source: row.source.clone(), op: row.op.clone() };
        let principal = trigger.principal.as_str().into();
        Self { tenant: row.tenant, trigger: trigger.id, cause, principal, rights, depth }
    }
}

/// Whether a script's outbound requests are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScriptMode {
    Real,
    /// Requests are refused. Shows what a script would do.
    Dry,
}

/// Runs scripts.
#[derive(Clone)]
pub struct ScriptRunner {
    pub store: Store,
    pub outbound: Outbound,
    pub stop: CancellationToken,
}

/// The outcome of a script run.
#[derive(Debug)]
pub enum ScriptOutcome {
    /// Completed. Its effects have not been committed yet.
    Succeeded {
        ran: ScriptRun,
        script_effects: Vec<ScriptEffect>,
        /// The keys that it read. The effects are committed only if these are unchanged.
        reads: Vec<ObservedKey>,
    },
    Failed {
        ran: ScriptRun,
        error: JobError,
    },
    /// The node is stopping. Another node runs the script from the beginning.
    Interrupted,
}

/// Checks that a script compiles, without running it.
pub fn check(source: &str) -> Result<(), String> {
    script::check(source).map_err(|error| error.to_string())
}

impl ScriptRunner {
    /// Runs a script until it ends or exceeds a limit, on a blocking thread. `event` and `data` are JSON.
    pub async fn run(&self, actor: Actor, source: String, event: &str, data: &str, way: ScriptMode) -> ScriptOutcome {
        let script = script_id(&source);
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
        let input = Input { event: parse(event), data: parse(data) };
        let host = Arc::new(StoreHost::new(Handle::current(), self.clone(), actor, way));
        let (started, host_on_thread) = (Instant::now(), host.clone());
        let running =
            tokio::task::spawn_blocking(move || script::run(&source, &input, host_on_thread, &Limits::default()));
        let ended = running.await;
        let duration_ms = started.elapsed().as_millis() as i64;
        let ran = |result: Option<String>, log| ScriptRun { script, duration_ms, result, log };
        match ended {
            _ if self.stop.is_cancelled() => ScriptOutcome::Interrupted,
            Ok(Ok(done)) => {
                let (script_effects, reads) = host.take();
                ScriptOutcome::Succeeded { ran: ran(Some(done.result.to_string()), done.log), script_effects, reads }
            }
            Ok(Err(Stopped { error, log })) => ScriptOutcome::Failed { ran: ran(None, log), error: job_error(&error) },
            Err(_) => ScriptOutcome::Interrupted,
        }
    }
}

/// A script that does not compile or exceeds a limit would do so again. One that threw an error can succeed on a retry.
fn job_error(error: &ScriptError) -> JobError {
    match error {
        ScriptError::Syntax { .. } => JobError { retryable: false, ..failure("script_invalid", error.to_string()) },
        ScriptError::Ceiling(_) => JobError { retryable: false, ..failure("script_ceiling", error.to_string()) },
        ScriptError::Failed { .. } => failure("script_failed", error.to_string()),
    }
}
