//! The journal of a job in memory, with the rules of the server.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use serde_json::value::to_raw_value;
use serde_json::{Value, json};
use uuid::Uuid;
use wire::{EventsSince, JobError, JournalEntry, JournalOp, JournalOperation, Problem, RawValue, code};

use crate::workflows::digest::operation_name;

#[derive(Default)]
pub(super) struct TestJournal {
    pub(super) entries: Vec<JournalEntry>,
    /// What the open entries wait for, by key.
    open: BTreeMap<String, OpenWait>,
    /// Events that no entry has received.
    mailbox: Vec<(String, Value)>,
    resolved: i64,
}

enum OpenWait {
    Time,
    Event {
        name: String,
        matches: BTreeMap<String, Value>,
    },
    Approval,
    /// Children that have not ended, and all children in order.
    Children(Vec<Uuid>),
}

/// What an operation of a journal changes elsewhere.
pub(super) enum SideEffect {
    None,
    /// The children to start.
    Start(Vec<wire::JobRequest>),
    Publish {
        topic: String,
        data: Value,
    },
}

impl TestJournal {
    pub(super) fn entry(&self, key: &str) -> Option<&JournalEntry> {
        self.entries.iter().find(|entry| entry.key == key)
    }

    fn entry_mut(&mut self, key: &str) -> &mut JournalEntry {
        self.entries.iter_mut().find(|entry| entry.key == key).expect("an open operation has an entry")
    }

    /// Records an operation. Returns the answer and what follows from a new entry.
    pub(super) fn record(
        &mut self,
        operation: &JournalOperation,
        strict: bool,
        now: Timestamp,
    ) -> Result<(JournalEntry, SideEffect), Box<Problem>> {
        let op = operation_name(operation.op);
        if let Some(entry) = self.entry(&operation.key) {
            let drift = matches!((&entry.hash, &operation.hash), (Some(recorded), Some(met)) if recorded != met);
            if entry.op != op || (drift && strict) {
                return Err(problem(409, code::WORKFLOW_DRIFT, &operation.key));
            }
            if entry.seq.is_some() {
                return Ok((JournalEntry { existing: Some(true), ..entry.clone() }, SideEffect::None));
            }
        } else {
            self.entries.push(new_entry(operation, self.entries.len() as i64 + 1, now));
        }
        let mut effect = SideEffect::None;
        let key = operation.key.as_str();
        match operation.op {
            JournalOp::Step => {
                let entry = self.entry_mut(key);
                entry.attempt = operation.attempt.unwrap_or(entry.attempt + 1).max(entry.attempt);
                match (&operation.result, &operation.error) {
                    (_, Some(error)) if error.retryable => {}
                    (_, Some(error)) => self.resolve(key, Err(error.clone()), now),
                    (result, None) => self.resolve(key, Ok(result.clone().unwrap_or_default()), now),
                }
            }
            JournalOp::Publish => {
                let data = parse(operation.data.as_deref());
                effect = SideEffect::Publish { topic: operation.topic.clone().unwrap_or_default(), data };
                self.resolve(key, Ok(Box::default()), now);
            }
            JournalOp::Sleep => {
                self.open.entry(key.to_owned()).or_insert(OpenWait::Time);
            }
            JournalOp::Event => {
                let name = operation.name.clone().unwrap_or_default();
                let matches = operation.matches.clone().unwrap_or_default();
                let kept = self.mailbox.iter().position(|(sent, data)| *sent == name && is_match(&matches, data));
                match kept.filter(|_| operation.since != Some(EventsSince::Now)) {
                    Some(place) => {
                        let (_, data) = self.mailbox.remove(place);
                        self.resolve(key, Ok(raw(&data)), now);
                    }
                    None => drop(self.open.insert(key.to_owned(), OpenWait::Event { name, matches })),
                }
            }
            JournalOp::Approval => drop(self.open.insert(key.to_owned(), OpenWait::Approval)),
            JournalOp::Child => {
                if !self.open.contains_key(key) {
                    effect = SideEffect::Start(operation.jobs.clone().unwrap_or_default());
                }
            }
        }
        let entry = self.entry(key).expect("it was just recorded").clone();
        // The server omits the result of a step that this request resolved.
        let result = entry.result.filter(|_| operation.op != JournalOp::Step);
        Ok((JournalEntry { existing: Some(false), result, error: None, ..entry }, effect))
    }

    pub(super) fn started(&mut self, key: &str, children: Vec<Uuid>) {
        self.open.insert(key.to_owned(), OpenWait::Children(children));
    }

    fn resolve(&mut self, key: &str, outcome: Result<Box<RawValue>, JobError>, now: Timestamp) {
        self.resolved += 1;
        let seq = self.resolved;
        self.open.remove(key);
        let entry = self.entry_mut(key);
        (entry.seq, entry.resolved_at, entry.due_at) = (Some(seq), Some(now), None);
        entry.status = "resolved".into();
        match outcome {
            Ok(result) => entry.result = Some(result),
            Err(error) => entry.error = Some(error),
        }
    }

    /// The time at which the next open entry resolves by itself.
    pub(super) fn next_due(&self) -> Option<Timestamp> {
        self.entries.iter().filter(|entry| entry.seq.is_none()).filter_map(|entry| entry.due_at).min()
    }

    /// Resolves the entries that are due.
    pub(super) fn resolve_due(&mut self, now: Timestamp) {
        let is_due = |entry: &&JournalEntry| entry.seq.is_none() && entry.due_at.is_some_and(|due_at| due_at <= now);
        let due: Vec<(String, String)> =
            self.entries.iter().filter(is_due).map(|entry| (entry.key.clone(), entry.op.clone())).collect();
        for (key, op) in due {
            let timeout =
                JobError { code: "timeout".into(), message: format!("no {op} arrived in time"), retryable: false };
            self.resolve(&key, if op == "sleep" { Ok(Box::default()) } else { Err(timeout) }, now);
        }
    }

    /// Gives an event to the first open entry that waits for it, or keeps it.
    pub(super) fn send(&mut self, name: &str, data: Value, now: Timestamp) {
        let waits = |wait: &OpenWait| matches!(wait, OpenWait::Event { name: awaited, matches } if awaited == name && is_match(matches, &data));
        let positions = self.open.iter().filter(|(_, wait)| waits(wait)).map(|(key, _)| key);
        let first = positions.min_by_key(|key| self.entry(key).map(|entry| entry.position)).cloned();
        match first {
            Some(key) => self.resolve(&key, Ok(raw(&data)), now),
            None => self.mailbox.push((name.to_owned(), data)),
        }
    }

    /// Records that the job is canceled and its steps are to be undone.
    pub(super) fn cancel(&mut self, now: Timestamp) {
        let key = "$cancel".to_owned();
        let operation = JournalOperation { op: JournalOp::Event, key: key.clone(), ..JournalOperation::default() };
        self.entries.push(new_entry(&operation, self.entries.len() as i64 + 1, now));
        self.resolve(&key, Ok(raw(&json!({"by": "test", "at": now}))), now);
    }

    /// Answers an open approval. Returns false if there is none with this key.
    pub(super) fn answer(&mut self, key: &str, approved: bool, now: Timestamp) -> bool {
        let is_open = matches!(self.open.get(key), Some(OpenWait::Approval));
        if is_open {
            self.resolve(key, Ok(raw(&json!({"approved": approved, "by": "test", "at": now}))), now);
        }
        is_open
    }

    /// Resolves the entries of children that have all ended. `outcome` returns the end of a child.
    pub(super) fn resolve_children(&mut self, outcome: impl Fn(Uuid) -> Option<Value>, now: Timestamp) {
        let ended = |wait: &OpenWait| match wait {
            OpenWait::Children(children) => children.iter().map(|child| outcome(*child)).collect::<Option<Vec<_>>>(),
            _ => None,
        };
        let ends: Vec<(String, Vec<Value>)> =
            self.open.iter().filter_map(|(key, wait)| Some((key.clone(), ended(wait)?))).collect();
        for (key, outcomes) in ends {
            self.resolve(&key, Ok(raw(&json!(outcomes))), now);
        }
    }
}

fn new_entry(operation: &JournalOperation, position: i64, now: Timestamp) -> JournalEntry {
    let after =
        |seconds: f64| now.saturating_add(SignedDuration::try_from_secs_f64(seconds).unwrap_or(SignedDuration::MAX));
    let due_in = operation.for_s.or(operation.timeout_s).and_then(|seconds| after(seconds).ok());
    JournalEntry {
        key: operation.key.clone(),
        op: operation_name(operation.op).into(),
        status: "open".into(),
        existing: None,
        position,
        seq: None,
        hash: operation.hash.clone(),
        attempt: 0,
        attempts: Vec::new(),
        result: None,
        error: None,
        bytes: 0,
        duration_ms: operation.duration_ms,
        created_at: now,
        resolved_at: None,
        input: None,
        due_at: operation.until.or(due_in),
    }
}

fn is_match(matches: &BTreeMap<String, Value>, data: &Value) -> bool {
    matches.iter().all(|(member, value)| data.get(member) == Some(value))
}

fn parse(data: Option<&RawValue>) -> Value {
    data.and_then(|data| serde_json::from_str(data.get()).ok()).unwrap_or_default()
}

pub(super) fn raw(value: &Value) -> Box<RawValue> {
    to_raw_value(value).expect("a value is JSON")
}

pub(super) fn problem(status: u16, code: &str, detail: &str) -> Box<Problem> {
    Box::new(Problem {
        kind: Problem::kind_of(code),
        title: code.into(),
        status,
        detail: detail.into(),
        code: code.into(),
        ..Problem::default()
    })
}
