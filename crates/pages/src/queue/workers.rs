//! The workers page: registered workers with their queues, claims and leases.

use askama::Template;
use wire::{Page, WorkerView};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "workers.html")]
pub struct Workers {
    pub frame: Frame,
    pub page: Page<WorkerView>,
}

pub(crate) fn list(names: &Option<Vec<String>>) -> String {
    names.as_ref().map_or_else(|| "any".into(), |names| names.join(", "))
}

pub(crate) fn state(worker: &WorkerView) -> &'static str {
    if worker.draining { "draining" } else { "active" }
}
