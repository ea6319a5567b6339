//! The overview page: totals, throughput and a list of problems that need attention, each with an action.

use std::cmp::Reverse;

use askama::Template;
use wire::{FailureView, QueueCounts, QueueView};

use crate::chart::{self, ThroughputPoint};
use crate::frame::Frame;
use crate::html;
use crate::queue::is_system;

/// Maximum number of queues in the table.
const QUEUES: usize = 12;
/// Minutes that the rate covers.
const RATE_MINUTES: usize = 5;

#[derive(Debug, Template)]
#[template(path = "overview.html")]
pub struct Overview {
    pub frame: Frame,
    pub totals: QueueCounts,
    pub queues: Vec<QueueView>,
    pub workers: usize,
    /// True if there are more workers than were counted.
    pub more_workers: bool,
    pub points: Vec<ThroughputPoint>,
    pub failures: Vec<FailureView>,
    pub concerns: Vec<Concern>,
    /// First signals within their targets over the last day, if any were reported.
    pub slo: Option<Slo>,
}

#[derive(Clone, Debug)]
pub struct Slo {
    pub p50_pct: f64,
    pub p95_pct: f64,
    /// Burn rate of the error budget (1 means that exactly the allowed share was late): over the last day, and in the
    /// current hour.
    pub burn: f64,
    pub burn_now: f64,
    /// Burn rate of each hour in hundredths, oldest first.
    pub burn_hours: Vec<i64>,
}

impl Slo {
    /// A rate that would be shown as zero says nothing.
    fn is_burning(&self) -> bool {
        self.burn >= 0.05 || self.burn_now >= 0.05
    }

    fn burn_label(&self) -> String {
        format!("Error budget burn rate: {:.1}× in the last 24 hours, {:.1}× in this hour", self.burn, self.burn_now)
    }
}

/// A problem that needs attention.
#[derive(Clone, Debug, Default)]
pub struct Concern {
    /// Stable while the problem lasts, so that a live update does not move a button that the reader is about to press.
    pub id: String,
    pub grave: bool,
    pub what: String,
    pub more: Option<String>,
    /// A link relative to the root of the pages, with its label.
    pub link: Option<(String, &'static str)>,
    pub action: Option<Action>,
    /// A command that solves the problem.
    pub command: Option<String>,
}

/// A route to call, with the label of its button.
#[derive(Clone, Debug)]
pub struct Action {
    pub label: &'static str,
    pub call: String,
    pub done: String,
}

impl Overview {
    fn oldest(&self) -> Option<&QueueView> {
        self.queues
            .iter()
            .filter(|queue| !is_system(&queue.name) && queue.oldest_waiting_at.is_some())
            .min_by_key(|queue| queue.oldest_waiting_at)
    }

    /// The queues to show: paused ones first, then those with the most queued and running jobs.
    fn busiest(&self) -> Vec<&QueueView> {
        let mut queues: Vec<&QueueView> = self.queues.iter().filter(|queue| !is_system(&queue.name)).collect();
        queues.sort_by_key(|queue| (!queue.paused, Reverse(queue.counts.queued + queue.counts.running)));
        queues.truncate(QUEUES);
        queues
    }

    fn is_empty(&self) -> bool {
        self.queues.iter().all(|queue| is_system(&queue.name))
    }

    fn ended_recently(&self) -> i64 {
        self.points.iter().rev().take(RATE_MINUTES).map(|point| point.succeeded + point.failed).sum()
    }

    /// Jobs that ended in the last five minutes, including the current one.
    fn ended(&self) -> String {
        chart::compact(self.ended_recently())
    }

    /// The rate per minute, once jobs have run for all five minutes.
    fn rate(&self) -> String {
        let is_active = |point: &ThroughputPoint| point.enqueued + point.succeeded + point.failed > 0;
        let before = self.points.iter().rev().skip(RATE_MINUTES - 1);
        match before.clone().any(is_active) {
            true => format!("{:.1} per minute", self.ended_recently() as f64 / RATE_MINUTES as f64),
            false => "less than 5 minutes of data".into(),
        }
    }

    fn failed_pct(&self) -> String {
        let (ended, failed) =
            self.points.iter().fold((0, 0), |(e, f), point| (e + point.succeeded + point.failed, f + point.failed));
        if ended == 0 { "–".into() } else { format!("{:.1} %", failed as f64 * 100.0 / ended as f64) }
    }
}
