//! The overview: how it goes, and what wants somebody's attention, with the action beside it.

use std::cmp::Reverse;

use askama::Template;
use wire::{FailureView, QueueCounts, QueueView};

use crate::chart::{self, Point};
use crate::frame::Frame;
use crate::html;

/// Queues that the table shows.
const QUEUES: usize = 12;

#[derive(Debug, Template)]
#[template(path = "overview.html")]
pub struct Overview {
    pub frame: Frame,
    pub totals: QueueCounts,
    pub queues: Vec<QueueView>,
    pub workers: usize,
    /// More than were looked at.
    pub more_workers: bool,
    pub points: Vec<Point>,
    pub failures: Vec<FailureView>,
    pub concerns: Vec<Concern>,
    /// Share of signals in time over the last day, if any were reported.
    pub slo: Option<Slo>,
}

#[derive(Clone, Debug)]
pub struct Slo {
    pub p50_pct: f64,
    pub p95_pct: f64,
    /// How much of what may be late was: 1 is all of it. Over the day, and in the hour that runs.
    pub burn: f64,
    pub burn_now: f64,
    /// The same by the hour, oldest first, in hundredths.
    pub burn_hours: Vec<i64>,
}

impl Slo {
    fn burn_label(&self) -> String {
        format!("{:.1} times what may be late in the last 24 hours, {:.1} times in this one", self.burn, self.burn_now)
    }
}

/// Something that wants attention.
#[derive(Clone, Debug, Default)]
pub struct Concern {
    /// The same for as long as it is about the same, so that what a reader is about to press stays where it is.
    pub id: String,
    pub grave: bool,
    pub what: String,
    pub more: Option<String>,
    /// A page of ours, from the root.
    pub link: Option<(String, &'static str)>,
    pub action: Option<Action>,
    /// What to type.
    pub command: Option<String>,
}

/// A route to call and the word on its button.
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

    /// Those that want looking at first: paused ones, then those with most to do.
    fn busiest(&self) -> Vec<&QueueView> {
        let mut queues: Vec<&QueueView> = self.queues.iter().collect();
        queues.sort_by_key(|queue| (!queue.paused, Reverse(queue.counts.queued + queue.counts.running)));
        queues.truncate(QUEUES);
        queues
    }

    fn is_empty(&self) -> bool {
        self.queues.is_empty()
    }

    /// Ends per minute over the last five minutes, the present one among them.
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
