//! The page of one kind of work: latencies, failures, the queues that have it, and its newest jobs.

use askama::Template;
use wire::{FailureView, JobView};

use super::activity::Activity;
use crate::frame::Frame;
use crate::{chart, html, latency};

#[derive(Debug, Template)]
#[template(path = "kind.html")]
pub struct KindPage {
    pub frame: Frame,
    pub kind: String,
    pub activity: Activity,
    pub jobs: Vec<JobView>,
    /// Failure groups of this kind. `None` if the reader may not see failures.
    pub failures: Option<Vec<FailureView>>,
}

impl KindPage {
    fn path(&self) -> String {
        html::segment(&self.kind)
    }
}
