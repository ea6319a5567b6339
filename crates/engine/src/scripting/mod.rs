//! Scripts as targets of triggers (T11): the sandbox on the store, with the rights of whoever registered the trigger.
//!
//! What a script does is collected while it runs and carried out by whoever closes its row, in one transaction. Only a
//! request to the outside happens at once.

mod host;
mod job;

use std::sync::Arc;
use std::time::{Duration, Instant};

use domain::origin::Cause;
use domain::{JobError, Standing, TenantId, TriggerId};
use script::{Input, Limits, ScriptError, Stopped};
use serde_json::Value;
use store::Store;
use store::kv::seen::Seen;
use store::outbox::deed::Deed;
use store::outbox::{Taken, failure};
use store::triggers::Trigger;
use store::triggers::runs::Ran;
use store::triggers::target::script_id;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;

use crate::outbound::Outbound;
use host::StoreHost;

/// How long one call of the database may take a script.
const CALL: Duration = Duration::from_secs(5);

/// Who a script acts for, and how deep it stands.
#[derive(Clone, Debug)]
pub struct Actor {
    pub tenant: TenantId,
    pub trigger: TriggerId,
    pub cause: Cause,
    pub principal: Arc<str>,
    /// What the principal may do now.
    pub standing: Standing,
    pub depth: i32,
}

impl Actor {
    pub fn new(trigger: &Trigger, row: &Taken, standing: Standing, depth: i32) -> Self {
        let cause = Cause { event: row.event, source: row.source.clone(), op: row.op.clone() };
        let principal = trigger.principal.as_str().into();
        Self { tenant: row.tenant, trigger: trigger.id, cause, principal, standing, depth }
    }
}

/// Whether what a script asks of the outside is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Real,
    /// Nothing leaves: whoever tries a script out wants to see what it would do.
    Dry,
}

/// Where scripts run.
#[derive(Clone)]
pub struct Stage {
    pub store: Store,
    pub outbound: Outbound,
    pub stop: CancellationToken,
}

/// How a script ended.
#[derive(Debug)]
pub enum Ended {
    /// Well; nothing of what it did has been carried out yet.
    Well {
        ran: Ran,
        deeds: Vec<Deed>,
        /// The keys that it read: it is carried out only while they are as it saw them.
        reads: Vec<Seen>,
    },
    Failed {
        ran: Ran,
        error: JobError,
    },
    /// The node stops: another one runs it from its beginning.
    CutShort,
}

/// Whether a script can run at all. Nothing of it is run.
pub fn check(source: &str) -> Result<(), String> {
    script::check(source).map_err(|error| error.to_string())
}

impl Stage {
    /// Runs a script to its end or to a ceiling, off the threads that serve. `event` and `data` are JSON.
    pub async fn run(&self, actor: Actor, source: String, event: &str, data: &str, way: Way) -> Ended {
        let script = script_id(&source);
        let parse = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
        let input = Input { event: parse(event), data: parse(data) };
        let host = Arc::new(StoreHost::new(Handle::current(), self.clone(), actor, way));
        let (began, on_thread) = (Instant::now(), host.clone());
        let running = tokio::task::spawn_blocking(move || script::run(&source, &input, on_thread, &Limits::default()));
        let ended = running.await;
        let duration_ms = began.elapsed().as_millis() as i64;
        let ran = |result: Option<String>, log| Ran { script, duration_ms, result, log };
        match ended {
            _ if self.stop.is_cancelled() => Ended::CutShort,
            Ok(Ok(done)) => {
                let (deeds, reads) = host.take();
                Ended::Well { ran: ran(Some(done.result.to_string()), done.log), deeds, reads }
            }
            Ok(Err(Stopped { error, log })) => Ended::Failed { ran: ran(None, log), error: told(&error) },
            Err(_) => Ended::CutShort,
        }
    }
}

/// A script that cannot be read or does too much would do so again; one that threw may do better next time.
fn told(error: &ScriptError) -> JobError {
    match error {
        ScriptError::Syntax { .. } => JobError { retryable: false, ..failure("script_invalid", error.to_string()) },
        ScriptError::Ceiling(_) => JobError { retryable: false, ..failure("script_ceiling", error.to_string()) },
        ScriptError::Failed { .. } => failure("script_failed", error.to_string()),
    }
}
