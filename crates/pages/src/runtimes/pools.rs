//! The pools page: loaded runtimes per slot, waiting jobs per affinity, the next swap, and swap statistics.

use askama::Template;
use jiff::Timestamp;
use wire::{MemberView, PoolView};

use crate::chart;
use crate::frame::Frame;
use crate::html::{self, Markup};

#[derive(Debug, Template)]
#[template(path = "pools.html")]
pub struct Pools {
    pub frame: Frame,
    pub pools: Vec<Pool>,
    pub next_cursor: Option<String>,
    /// Queues without a pool and with jobs that have affinities. Their workers follow the same swap rule.
    pub queues: Vec<AffinityQueue>,
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub view: PoolView,
    /// The starvation limit of the pool's queue, or the default.
    pub starvation_s: i64,
    pub next: Option<NextSwap>,
}

#[derive(Clone, Debug)]
pub struct AffinityQueue {
    pub name: String,
    pub starvation_s: i64,
    pub swaps_made: i64,
    pub swaps_avoided: i64,
    /// Workers without a loaded affinity.
    pub idle: usize,
    /// When the oldest waiting job of an affinity that no worker has loaded became ready.
    pub starving_since: Option<Timestamp>,
    pub next: Option<NextSwap>,
    pub affinities: Vec<AffinityBacklog>,
}

/// Waiting jobs of one affinity in a queue.
#[derive(Clone, Debug)]
pub struct AffinityBacklog {
    pub affinity: String,
    /// Workers that have the affinity loaded.
    pub workers: usize,
    pub waiting: i64,
    /// True if there are more waiting jobs than were counted.
    pub has_more: bool,
    pub oldest: Option<Timestamp>,
}

/// The next swap of affinities.
#[derive(Clone, Debug)]
pub struct NextSwap {
    pub affinity: String,
    /// The latest time of the swap; `None` while jobs with a higher priority delay it without a bound.
    pub by: Option<Timestamp>,
    /// True if the swap waits only for a free worker or slot.
    pub is_due: bool,
}

impl Pool {
    /// The member in each slot.
    fn slots(&self) -> Vec<(usize, Option<&MemberView>)> {
        let loaded = |slot: usize| self.view.members.iter().find(|member| member.slot == Some(slot));
        (0..self.view.slots as usize).map(|slot| (slot, loaded(slot))).collect()
    }

    fn starving_s(&self) -> Option<f64> {
        self.view.starvation_clock_s
    }

    fn load(&self) -> String {
        let mean = |seconds: f64| format!("{}, {} on average", self.view.loads, html::seconds(seconds));
        self.view.load_s.map_or_else(|| "none yet".into(), mean)
    }

    /// The mean duration of a swap and its parts.
    fn swap(&self) -> String {
        let parts =
            |stop_s: f64, load_s: f64| format!("stop {}, start {}", html::seconds(stop_s), html::seconds(load_s));
        match (self.view.swap_s, self.view.stop_s, self.view.load_s) {
            (Some(swap_s), Some(stop_s), Some(load_s)) => {
                format!("{} ({})", html::seconds(swap_s), parts(stop_s, load_s))
            }
            (Some(swap_s), _, _) => html::seconds(swap_s),
            (None, _, _) => "none yet".into(),
        }
    }

    /// How the time saved is computed.
    fn saved(&self) -> String {
        let saved = html::seconds(self.view.minutes_saved * 60.0);
        match self.view.swap_s {
            Some(swap_s) => {
                format!("{saved} ({} avoided × {} each)", html::count(&self.view.swaps_avoided), html::seconds(swap_s))
            }
            None => saved,
        }
    }
}

impl AffinityQueue {
    fn starving_s(&self, now: &Timestamp) -> Option<f64> {
        self.starving_since.map(|since| now.duration_since(since).as_secs_f64().max(0.0))
    }
}

impl AffinityBacklog {
    fn count(&self) -> String {
        format!("{}{}", html::count(&self.waiting), if self.has_more { "+" } else { "" })
    }
}

/// The state of a member, or `backoff` after a failure.
fn state(member: &MemberView) -> Markup {
    if member.backoff_until.is_some() { html::state("backoff") } else { html::state(&member.state) }
}

/// The starvation clock: how long the oldest passed-over job has waited, relative to the limit.
fn clock(waited_s: Option<f64>, limit_s: &i64) -> Markup {
    let Some(waited) = waited_s else {
        return Markup::new("<span class=\"muted\">no job is passed over</span>".into());
    };
    let limit = *limit_s as f64;
    let class = if waited > limit { "late" } else { "progress" };
    let meter = chart::meter(&(waited / limit.max(1.0)), class);
    let (waited, limit) = (html::seconds(waited), html::seconds(limit));
    Markup::new(format!("{meter} {waited} <span class=\"muted\">of {limit}</span>"))
}

/// The next swap and when it happens.
fn next_swap(next: &Option<NextSwap>) -> Markup {
    let Some(next) = next else { return Markup::new("<span class=\"muted\">none</span>".into()) };
    let when = match (&next.by, next.is_due) {
        (_, true) => "as soon as a slot is free".into(),
        (Some(by), false) => format!("when the loaded affinities have drained, {} at the latest", html::ago(by)),
        (None, false) => "after jobs with a higher priority".into(),
    };
    Markup::new(format!("<strong>{}</strong> <span class=\"muted\">{when}</span>", html::escape(&next.affinity)))
}
