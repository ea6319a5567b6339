//! The overview page: totals, throughput and a list of problems that need attention, each with an action.

use std::cmp::Reverse;

use askama::Template;
use wire::{FailureView, QueueCounts, QueueView};

use crate::chart::{self, ThroughputPoint};
use crate::frame::Frame;
use crate::html;

/// Maximum number of queues in the table.
const QUEUES: usize = 12;

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
        self.queues.iter().filter(|queue| queue.oldest_waiting_at.is_some()).min_by_key(|queue| queue.oldest_waiting_at)
    }

    /// The queues to show: paused ones first, then those with the most queued and running jobs.
    fn busiest(&self) -> Vec<&QueueView> {
        let mut queues: Vec<&QueueView> = self.queues.iter().collect();
        queues.sort_by_key(|queue| (!queue.paused, Reverse(queue.counts.queued + queue.counts.running)));
        queues.truncate(QUEUES);
        queues
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Ended jobs per minute over the last five minutes, including the current one.
    fn rate(&self) -> String {
        let last = self.points.iter().rev().take(5);
        let (ended, minutes) = last.fold((0, 0), |(sum, n), point| (sum + point.succeeded + point.failed, n + 1));
        if minutes == 0 { "0".into() } else { format!("{:.1}", ended as f64 / f64::from(minutes)) }
    }

    fn failed_pct(&self) -> String {
        let (ended, failed) =
            self.points.iter().fold((0, 0), |(e, f), point| (e + point.succeeded + point.failed, f + point.failed));
        if ended == 0 { "–".into() } else { format!("{:.1} %", failed as f64 * 100.0 / ended as f64) }
    }
}
