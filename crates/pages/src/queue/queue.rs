//! The page of one queue: throughput, latencies, depth, failures, settings, workers and kinds.

use askama::Template;
use wire::{QueueView, WorkerView};

use super::activity::{self, Activity};
use super::push::PushForm;
use super::queues::{number, settings};
use super::workers;
use crate::frame::{DashboardPage, Frame};
use crate::html::{self, Markup};
use crate::{chart, latency};

#[derive(Debug, Template)]
#[template(path = "queue.html")]
pub struct QueuePage {
    pub frame: Frame,
    pub queue: QueueView,
    pub activity: Activity,
    /// Live workers that serve the queue. `None` if the reader may not see workers.
    pub workers: Option<Vec<WorkerView>>,
    pub push: PushForm,
}

impl QueuePage {
    fn path(&self) -> String {
        html::segment(&self.queue.name)
    }

    fn settings_json(&self) -> String {
        settings(&self.queue)
    }

    /// A setting as JSON for a field of the form.
    fn json_setting(&self, name: &str) -> String {
        let settings = serde_json::to_value(&self.queue.settings).unwrap_or_default();
        settings.get(name).map(|value| format!("{value:#}")).unwrap_or_default()
    }

    fn phases(&self) -> String {
        self.queue.settings.phases.as_ref().map(|phases| phases.join(", ")).unwrap_or_default()
    }

    /// The settings that differ from their defaults.
    fn changed(&self) -> Vec<(&'static str, String)> {
        let set = &self.queue.settings;
        let mut changed = Vec::new();
        changed.extend(set.concurrency.map(|limit| ("Running jobs", format!("at most {limit}"))));
        changed.extend(set.per_key.map(|limit| ("Running jobs per concurrency key", format!("at most {limit}"))));
        changed.extend(set.rate_per_s.map(|rate| ("Starts", format!("at most {rate} per second"))));
        changed.extend(set.starvation_s.map(|s| ("Starvation limit", html::seconds(s as f64))));
        changed.extend(set.timeout_s.map(|s| ("Attempt timeout", html::seconds(s as f64))));
        changed.extend(set.retention_s.map(|s| ("Retention of ended jobs", html::seconds(s as f64))));
        changed.extend(set.phases.as_ref().map(|phases| ("Phases", phases.join(", "))));
        changed.extend(set.webhook.as_ref().map(|webhook| ("Webhook", webhook.url.clone())));
        changed.extend(set.retry.as_ref().map(|_| ("Retries", self.json_setting("retry"))));
        changed.extend(set.kinds.as_ref().map(|_| ("Kinds", self.json_setting("kinds"))));
        changed
    }

    fn worker(&self, worker: &WorkerView) -> Markup {
        self.frame.link(DashboardPage::Workers, &format!("workers/{}", worker.id), &worker.name)
    }
}
