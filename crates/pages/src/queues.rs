//! The queues: how full, how quick, how limited; paused by whom and why.

use askama::Template;
use wire::QueueView;

use crate::chart;
use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "queues.html")]
pub struct Queues {
    pub frame: Frame,
    pub queues: Vec<Queue>,
    pub next_cursor: Option<String>,
}

/// A queue, and what is kept of how it goes.
#[derive(Clone, Debug)]
pub struct Queue {
    pub view: QueueView,
    /// How long its kinds of work waited before they began.
    pub wait_p50_s: Option<f64>,
    pub wait_p95_s: Option<f64>,
    /// Ended in each of the last minutes.
    pub ended: Vec<i64>,
}

impl Queue {
    /// The settings as JSON, so that saving some of them keeps the others. A webhook's URL is among them; without a secret
    /// it keeps those it has.
    fn settings(&self) -> String {
        serde_json::to_string(&self.view.settings).expect("plain data has a JSON form")
    }

    fn limits(&self) -> String {
        let settings = &self.view.settings;
        let mut limits = Vec::new();
        limits.extend(settings.concurrency.map(|places| format!("{places} at once")));
        limits.extend(settings.per_key.map(|places| format!("{places} per key")));
        limits.extend(settings.rate_per_s.map(|rate| format!("{rate}/s")));
        limits.join(", ")
    }

    fn ended_label(&self) -> String {
        let ended: i64 = self.ended.iter().sum();
        format!("{} ended in the last hour", html::count(&ended))
    }
}

fn wait(seconds: &Option<f64>) -> String {
    seconds.map_or_else(|| "–".into(), html::seconds)
}

fn number<T: ToString>(number: &Option<T>) -> String {
    number.as_ref().map(T::to_string).unwrap_or_default()
}
