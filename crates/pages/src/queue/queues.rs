//! The queues page: counts, waiting times, limits and pausing.

use askama::Template;
use wire::QueueView;

use crate::chart;
use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "queues.html")]
pub struct Queues {
    pub frame: Frame,
    pub queues: Vec<QueueRow>,
    pub next_cursor: Option<String>,
}

/// A queue with its statistics.
#[derive(Clone, Debug)]
pub struct QueueRow {
    pub view: QueueView,
    /// Time from ready to start over the queue's kinds.
    pub wait_p50_s: Option<f64>,
    pub wait_p95_s: Option<f64>,
    /// Ended jobs in each of the last 60 minutes.
    pub ended: Vec<i64>,
}

impl QueueRow {
    fn is_system(&self) -> bool {
        super::is_system(&self.view.name)
    }

    fn settings(&self) -> String {
        settings(&self.view)
    }

    fn limits(&self) -> String {
        let settings = &self.view.settings;
        let mut limits = Vec::new();
        limits.extend(settings.concurrency.map(|limit| format!("{limit} concurrent")));
        limits.extend(settings.per_key.map(|limit| format!("{limit} per key")));
        limits.extend(settings.rate_per_s.map(|rate| format!("{rate}/s")));
        limits.join(", ")
    }

    fn ended_label(&self) -> String {
        let ended: i64 = self.ended.iter().sum();
        format!("{} ended in the last hour", html::count(&ended))
    }
}

/// All settings as JSON, so that saving some of them does not reset the others. A webhook's URL is included; a URL
/// without a secret retains the stored secrets.
pub(crate) fn settings(queue: &QueueView) -> String {
    serde_json::to_string(&queue.settings).expect("plain data has a JSON form")
}

fn wait(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".into(), html::seconds)
}

pub(crate) fn number<T: ToString>(number: &Option<T>) -> String {
    number.as_ref().map(T::to_string).unwrap_or_default()
}
