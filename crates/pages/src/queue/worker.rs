//! The page of one worker: what it serves, its lease, and the jobs that it holds.

use askama::Template;
use jiff::Timestamp;
use uuid::Uuid;
use wire::WorkerView;

use super::workers::{list, state};
use crate::chart;
use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "worker.html")]
pub struct WorkerPage {
    pub frame: Frame,
    pub worker: WorkerView,
    /// The server's node on which an embedded worker runs.
    pub node: Option<String>,
    /// Oldest first. There may be more.
    pub jobs: Vec<HeldJobRow>,
}

/// A job that the worker holds.
#[derive(Clone, Debug)]
pub struct HeldJobRow {
    pub id: Uuid,
    pub queue: String,
    pub kind: String,
    pub state: String,
    pub attempt: i64,
    pub phase: Option<String>,
    pub progress: Option<f64>,
    pub started_at: Option<Timestamp>,
}

impl HeldJobRow {
    fn running_for(&self) -> Markup {
        html::took(&self.started_at, &None)
    }
}
