//! The host functions of scripts, on the store. Reads see the script's own writes; writes are collected.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use domain::limits::{OUTBOUND_RESPONSE_BYTES, PAYLOAD_BYTES, REASON_BYTES};
use domain::triggers::trigger::Source;
use domain::{DeadLetterId, JobId, Label, Right};
use script::{Host, HostError, HttpRequest, HttpResponse};
use serde_json::Value;
use store::StoreError;
use store::db::clock::new_uuid;
use store::triggers::events::Event;
use store::triggers::kv::observed_keys::ObservedKey;
use store::triggers::outbox::script_effect::ScriptEffect;
use tokio::runtime::Handle;

use super::{Actor, CALL_TIMEOUT, ScriptMode, ScriptRunner, job};
use crate::outbound::{OutboundRequest, is_reserved_header};

pub(super) struct StoreHost {
    handle: Handle,
    runner: ScriptRunner,
    actor: Actor,
    mode: ScriptMode,
    state: Mutex<ScriptState>,
}

/// The effects of the script so far.
#[derive(Default)]
struct ScriptState {
    script_effects: Vec<ScriptEffect>,
    /// The keys that it wrote. `None`: deleted.
    keys: HashMap<(String, String), Option<Value>>,
    /// The keys that it read, as it first saw them.
    reads: HashMap<(String, String), ObservedKey>,
}

fn error(error: impl std::fmt::Display) -> HostError {
    HostError(error.to_string())
}

fn label(member: &str, text: &str) -> Result<Label, HostError> {
    Label::new(text).map_err(|reason| error(format_args!("{member} {reason}")))
}

fn json(member: &str, value: &Value) -> Result<String, HostError> {
    let text = value.to_string();
    match text.len() {
        got if got > PAYLOAD_BYTES => {
            Err(error(format_args!("{member} may have at most {PAYLOAD_BYTES} bytes of JSON; it has {got}")))
        }
        _ => Ok(text),
    }
}

/// Validates a dead letter's note, as the API does.
fn check_note(note: &str) -> Result<(), HostError> {
    if note.len() > REASON_BYTES {
        return Err(error(format_args!("note may have at most {REASON_BYTES} bytes")));
    }
    match note.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        Some(control) => Err(error(format_args!("note contains the control character U+{:04X}", control as u32))),
        None => Ok(()),
    }
}

impl StoreHost {
    pub(super) fn new(handle: Handle, runner: ScriptRunner, actor: Actor, mode: ScriptMode) -> Self {
        Self { handle, runner, actor, mode, state: Mutex::default() }
    }

    /// Returns the effects of the script and the keys that it read.
    pub(super) fn take(&self) -> (Vec<ScriptEffect>, Vec<ObservedKey>) {
        let ScriptState { script_effects, reads, .. } = std::mem::take(&mut *self.state());
        (script_effects, reads.into_values().collect())
    }

    fn state(&self) -> MutexGuard<'_, ScriptState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn require(&self, right: Right) -> Result<(), HostError> {
        match self.actor.rights.has(right) {
            true => Ok(()),
            false => Err(error(format_args!("{} lacks the right {right}", self.actor.principal))),
        }
    }

    /// Waits for the database, up to `CALL_TIMEOUT` and not when the node stops.
    fn wait<T>(&self, query: impl Future<Output = Result<T, StoreError>>) -> Result<T, HostError> {
        self.handle.block_on(async {
            tokio::select! {
                result = tokio::time::timeout(CALL_TIMEOUT, query) => match result {
                    Ok(result) => result.map_err(error),
                    Err(_) => Err(error("the database did not respond in time")),
                },
                () = self.runner.stop.cancelled() => Err(error("the node is stopping")),
            }
        })
    }

    fn read_key(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        let name = (collection.to_owned(), key.to_owned());
        if let Some(written) = self.state().keys.get(&name) {
            return Ok(written.clone());
        }
        let entry = self.wait(self.runner.store.kv(self.actor.tenant, collection, key))?;
        self.state().reads.entry(name).or_insert_with(|| ObservedKey::new(collection, key, entry.as_ref()));
        entry.map(|entry| serde_json::from_str(&entry.value).map_err(error)).transpose()
    }

    fn write_key(&self, collection: &str, key: &str, value: Option<(Value, String)>) -> Result<(), HostError> {
        let (collection, key) = (label("collection", collection)?.to_string(), label("key", key)?.to_string());
        let (written, text) = value.map_or((None, None), |(value, text)| (Some(value), Some(text.into())));
        let mut state = self.state();
        state.keys.insert((collection.clone(), key.clone()), written);
        state.script_effects.push(ScriptEffect::ChangeKv { collection, key, value: text, depth: self.actor.depth });
        Ok(())
    }
}

impl Host for StoreHost {
    fn is_stopped(&self) -> bool {
        self.runner.stop.is_cancelled()
    }

    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError> {
        let now = self.runner.store.clock().now();
        let job = job::new(job, &self.actor, now)?;
        if !self.actor.rights.may_enqueue(&job.queue) {
            let (principal, right) = (&self.actor.principal, Right::Enqueue);
            return Err(error(format_args!("{principal} lacks the right {right} for the queue {}", job.queue)));
        }
        let unique = job.extras.as_deref().is_some_and(|extras| extras.unique.is_some());
        let id = JobId::new(new_uuid(now));
        self.state().script_effects.push(ScriptEffect::Enqueue { id, job: Box::new(job) });
        // With a unique key, the id is only known at the commit: an existing job may be used instead.
        Ok((!unique).then(|| id.to_string()))
    }

    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        self.require(Right::ReadPayloads)?;
        self.read_key(collection, key)
    }

    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError> {
        self.require(Right::Enqueue)?;
        let text = json("value", &value)?;
        self.write_key(collection, key, Some((value, text)))
    }

    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError> {
        self.require(Right::Enqueue)?;
        let existed = self.read_key(collection, key)?.is_some();
        if existed {
            self.write_key(collection, key, None)?;
        }
        Ok(existed)
    }

    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError> {
        self.require(Right::Enqueue)?;
        let (topic, text) = (label("topic", topic)?, json("data", &data)?);
        let Actor { tenant, depth, .. } = self.actor;
        let event = Event::new(self.runner.store.clock().now(), tenant, Source::Pubsub, "publish", depth, text);
        let event = event.with("topic", topic.as_str());
        let id = event.id.to_string();
        self.state().script_effects.push(ScriptEffect::Publish(Box::new(event)));
        Ok(id)
    }

    fn http(&self, request: HttpRequest, remaining: Duration) -> Result<HttpResponse, HostError> {
        if self.mode == ScriptMode::Dry {
            return Err(error("a dry run sends no requests"));
        }
        if let Some((name, _)) = request.headers.iter().find(|(name, _)| is_reserved_header(name)) {
            return Err(error(format_args!("a script must not set the header {name}")));
        }
        let mut headers = request.headers;
        headers.push(("windlass-depth".into(), self.actor.depth.to_string()));
        let request = OutboundRequest {
            url: request.url,
            method: request.method,
            headers,
            body: request.body,
            timeout: remaining,
            max_response_bytes: OUTBOUND_RESPONSE_BYTES,
        };
        let response = self.handle.block_on(async {
            tokio::select! {
                response = self.runner.outbound.send(request) => response.map_err(error),
                () = self.runner.stop.cancelled() => Err(error("the node is stopping")),
            }
        })?;
        Ok(HttpResponse { status: response.status, body: String::from_utf8_lossy(&response.body).into_owned() })
    }

    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError> {
        self.require(Right::ManageDeadLetters)?;
        let not_found = || error("dead letter not found");
        let letter = DeadLetterId::new(dead_letter.parse().map_err(|_| not_found())?);
        note.map_or(Ok(()), check_note)?;
        let found = self.wait(self.runner.store.dead_letter(self.actor.tenant, letter))?.ok_or_else(not_found)?;
        if let Some(before) = found.resolved {
            return Err(error(format_args!("the dead letter is already {}", before.resolution)));
        }
        self.state().script_effects.push(ScriptEffect::Resolve { letter, note: note.map(str::to_owned) });
        Ok(())
    }
}
