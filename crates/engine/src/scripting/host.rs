//! The functions of a script, on the store: reads see what the script itself has done, writes are collected.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};
use std::time::Duration;

use domain::limits::{OUTBOUND_ANSWER_BYTES, PAYLOAD_BYTES, REASON_BYTES};
use domain::trigger::Source;
use domain::{DeadLetterId, JobId, Label, Right};
use script::{Host, HostError, HttpAnswer, HttpRequest};
use serde_json::Value;
use store::StoreError;
use store::clock::new_uuid;
use store::events::Event;
use store::kv::seen::Seen;
use store::outbox::deed::Deed;
use tokio::runtime::Handle;

use super::{Actor, CALL, Stage, Way, job};
use crate::outbound::{Request, is_reserved_header};

pub(super) struct StoreHost {
    handle: Handle,
    stage: Stage,
    actor: Actor,
    way: Way,
    done: Mutex<Done>,
}

/// What the script has done so far.
#[derive(Default)]
struct Done {
    deeds: Vec<Deed>,
    /// Keys as they will be: nothing for those it deleted.
    keys: HashMap<(String, String), Option<Value>>,
    /// Keys as it saw them first.
    reads: HashMap<(String, String), Seen>,
}

fn no(error: impl std::fmt::Display) -> HostError {
    HostError(error.to_string())
}

fn label(member: &str, text: &str) -> Result<Label, HostError> {
    Label::new(text).map_err(|error| no(format_args!("{member} {error}")))
}

fn json(member: &str, value: &Value) -> Result<String, HostError> {
    let text = value.to_string();
    match text.len() {
        got if got > PAYLOAD_BYTES => {
            Err(no(format_args!("{member} may have at most {PAYLOAD_BYTES} bytes of JSON; it has {got}")))
        }
        _ => Ok(text),
    }
}

/// What a person reads of a letter, by the rules of the API.
fn words(note: &str) -> Result<(), HostError> {
    if note.len() > REASON_BYTES {
        return Err(no(format_args!("note may have at most {REASON_BYTES} bytes")));
    }
    match note.chars().find(|c| c.is_control() && !matches!(c, '\n' | '\t')) {
        Some(odd) => Err(no(format_args!("note holds the control character U+{:04X}", odd as u32))),
        None => Ok(()),
    }
}

impl StoreHost {
    pub(super) fn new(handle: Handle, stage: Stage, actor: Actor, way: Way) -> Self {
        Self { handle, stage, actor, way, done: Mutex::default() }
    }

    /// What it did, and the keys that it read.
    pub(super) fn take(&self) -> (Vec<Deed>, Vec<Seen>) {
        let Done { deeds, reads, .. } = std::mem::take(&mut *self.done());
        (deeds, reads.into_values().collect())
    }

    fn done(&self) -> MutexGuard<'_, Done> {
        self.done.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn must(&self, right: Right) -> Result<(), HostError> {
        match self.actor.standing.has(right) {
            true => Ok(()),
            false => Err(no(format_args!("{} lacks the right {right}", self.actor.principal))),
        }
    }

    /// Waits for the database, though not for long, and not when the node stops.
    fn wait<T>(&self, asking: impl Future<Output = Result<T, StoreError>>) -> Result<T, HostError> {
        self.handle.block_on(async {
            tokio::select! {
                answer = tokio::time::timeout(CALL, asking) => match answer {
                    Ok(answer) => answer.map_err(no),
                    Err(_) => Err(no("the database did not answer in time")),
                },
                () = self.stage.stop.cancelled() => Err(no("the node stops")),
            }
        })
    }

    fn key_as_is(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        let name = (collection.to_owned(), key.to_owned());
        if let Some(known) = self.done().keys.get(&name) {
            return Ok(known.clone());
        }
        let entry = self.wait(self.stage.store.kv(self.actor.tenant, collection, key))?;
        self.done().reads.entry(name).or_insert_with(|| Seen::new(collection, key, entry.as_ref()));
        entry.map(|entry| serde_json::from_str(&entry.value).map_err(no)).transpose()
    }

    fn keep(&self, collection: &str, key: &str, value: Option<(Value, String)>) -> Result<(), HostError> {
        let (collection, key) = (label("collection", collection)?.to_string(), label("key", key)?.to_string());
        let (seen, text) = value.map_or((None, None), |(value, text)| (Some(value), Some(text.into())));
        let mut done = self.done();
        done.keys.insert((collection.clone(), key.clone()), seen);
        done.deeds.push(Deed::Keep { collection, key, value: text, depth: self.actor.depth });
        Ok(())
    }
}

impl Host for StoreHost {
    fn is_stopped(&self) -> bool {
        self.stage.stop.is_cancelled()
    }

    fn enqueue(&self, job: Value) -> Result<Option<String>, HostError> {
        let now = self.stage.store.clock().now();
        let job = job::new(job, &self.actor, now)?;
        if !self.actor.standing.may_enqueue(&job.queue) {
            let (principal, right) = (&self.actor.principal, Right::Enqueue);
            return Err(no(format_args!("{principal} lacks the right {right} for the queue {}", job.queue)));
        }
        let unique = job.extras.as_deref().is_some_and(|extras| extras.unique.is_some());
        let id = JobId::new(new_uuid(now));
        self.done().deeds.push(Deed::Enqueue { id, job: Box::new(job) });
        // Whose job it will be under a unique key is decided when it is made.
        Ok((!unique).then(|| id.to_string()))
    }

    fn kv_get(&self, collection: &str, key: &str) -> Result<Option<Value>, HostError> {
        self.must(Right::ReadPayloads)?;
        self.key_as_is(collection, key)
    }

    fn kv_set(&self, collection: &str, key: &str, value: Value) -> Result<(), HostError> {
        self.must(Right::Enqueue)?;
        let text = json("value", &value)?;
        self.keep(collection, key, Some((value, text)))
    }

    fn kv_delete(&self, collection: &str, key: &str) -> Result<bool, HostError> {
        self.must(Right::Enqueue)?;
        let was_there = self.key_as_is(collection, key)?.is_some();
        if was_there {
            self.keep(collection, key, None)?;
        }
        Ok(was_there)
    }

    fn publish(&self, topic: &str, data: Value) -> Result<String, HostError> {
        self.must(Right::Enqueue)?;
        let (topic, text) = (label("topic", topic)?, json("data", &data)?);
        let Actor { tenant, depth, .. } = self.actor;
        let event = Event::new(self.stage.store.clock().now(), tenant, Source::Pubsub, "publish", depth, text);
        let event = event.with("topic", topic.as_str());
        let id = event.id.to_string();
        self.done().deeds.push(Deed::Publish(Box::new(event)));
        Ok(id)
    }

    fn http(&self, request: HttpRequest, time_left: Duration) -> Result<HttpAnswer, HostError> {
        if self.way == Way::Dry {
            return Err(no("a dry run makes no requests"));
        }
        if let Some((name, _)) = request.headers.iter().find(|(name, _)| is_reserved_header(name)) {
            return Err(no(format_args!("the header {name} is not a script's to set")));
        }
        let mut headers = request.headers;
        headers.push(("windlass-depth".into(), self.actor.depth.to_string()));
        let request = Request {
            url: request.url,
            method: request.method,
            headers,
            body: request.body,
            timeout: time_left,
            answer_bytes: OUTBOUND_ANSWER_BYTES,
        };
        let answer = self.handle.block_on(async {
            tokio::select! {
                answer = self.stage.outbound.send(request) => answer.map_err(no),
                () = self.stage.stop.cancelled() => Err(no("the node stops")),
            }
        })?;
        Ok(HttpAnswer { status: answer.status, body: String::from_utf8_lossy(&answer.body).into_owned() })
    }

    fn resolve(&self, dead_letter: &str, note: Option<&str>) -> Result<(), HostError> {
        self.must(Right::ManageDeadLetters)?;
        let none = || no("there is no such dead letter");
        let letter = DeadLetterId::new(dead_letter.parse().map_err(|_| none())?);
        note.map_or(Ok(()), words)?;
        let found = self.wait(self.stage.store.dead_letter(self.actor.tenant, letter))?.ok_or_else(none)?;
        if let Some(before) = found.resolved {
            return Err(no(format_args!("it is {} already", before.resolution)));
        }
        self.done().deeds.push(Deed::Resolve { letter, note: note.map(str::to_owned) });
        Ok(())
    }
}
