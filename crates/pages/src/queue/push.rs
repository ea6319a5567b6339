//! The form that pushes a job, with recent payloads to start from.

use wire::{JobView, RawValue};

use crate::html;

/// Payloads up to this size are offered.
const PAYLOAD_BYTES: usize = 4 * 1024;
/// Number of payloads that the form offers.
const PAYLOADS: usize = 6;
/// Characters of a payload in the list.
const SHOWN_CHARACTERS: usize = 80;

/// What the form needs. `None` where the reader may not push jobs.
#[derive(Clone, Debug, Default)]
pub struct PushForm {
    pub can_push: bool,
    /// The queue of the page; the reader cannot change it.
    pub queue: Option<String>,
    pub kinds: Vec<String>,
    pub recent: Vec<RecentPayload>,
}

#[derive(Clone, Debug)]
pub struct RecentPayload {
    pub kind: String,
    pub json: String,
}

impl PushForm {
    /// Distinct payloads of the newest jobs. A payload that the reader may not read is left out.
    pub fn new(can_push: bool, queue: Option<String>, kinds: Vec<String>, jobs: &[JobView]) -> Self {
        let mut recent: Vec<RecentPayload> = Vec::new();
        for job in jobs.iter().filter(|job| !job.redacted.iter().any(|hidden| hidden == "payload")) {
            let json = whole(&job.payload);
            let is_known = recent.iter().any(|known| known.kind == job.kind && known.json == json);
            if json.len() <= PAYLOAD_BYTES && json != "null" && !is_known && recent.len() < PAYLOADS {
                recent.push(RecentPayload { kind: job.kind.clone(), json });
            }
        }
        Self { can_push, queue, kinds, recent }
    }
}

impl PushForm {
    /// Members of the request that the page determines.
    pub(crate) fn base(&self) -> String {
        let queue = self.queue.as_ref().map(|queue| ("queue".to_owned(), queue.clone().into()));
        serde_json::Value::Object(queue.into_iter().collect()).to_string()
    }
}

fn whole(payload: &RawValue) -> String {
    html::whole_json(payload)
}

impl RecentPayload {
    pub(crate) fn short(&self) -> String {
        let line: String = self.json.split_whitespace().collect::<Vec<_>>().join(" ");
        match line.chars().count() > SHOWN_CHARACTERS {
            true => line.chars().take(SHOWN_CHARACTERS).chain(['…']).collect(),
            false => line,
        }
    }
}
