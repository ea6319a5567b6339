//! Models that take turns: what is up in which slot, who waits for what, which swap comes next and what was saved.

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
    /// Queues without a pool whose jobs have affinities: their workers take turns by the same rule.
    pub queues: Vec<Queue>,
}

#[derive(Clone, Debug)]
pub struct Pool {
    pub view: PoolView,
    /// How long others may be passed over, the pool's own or the default.
    pub starvation_s: i64,
    pub next: Option<Next>,
}

#[derive(Clone, Debug)]
pub struct Queue {
    pub name: String,
    pub starvation_s: i64,
    pub swaps_made: i64,
    pub swaps_avoided: i64,
    /// Workers that hold nothing.
    pub idle: usize,
    /// Since when the oldest job of an affinity that nobody holds has waited.
    pub starving_since: Option<Timestamp>,
    pub next: Option<Next>,
    pub lines: Vec<Waiting>,
}

/// An affinity of a queue.
#[derive(Clone, Debug)]
pub struct Waiting {
    pub affinity: String,
    /// Workers that hold it.
    pub workers: usize,
    pub waiting: i64,
    /// More wait than were counted.
    pub has_more: bool,
    pub oldest: Option<Timestamp>,
}

/// The swap that comes next.
#[derive(Clone, Debug)]
pub struct Next {
    pub affinity: String,
    /// None while more urgent work keeps it waiting.
    pub by: Option<Timestamp>,
    /// Nothing but a free worker is waited for.
    pub is_due: bool,
}

impl Pool {
    /// What is in each slot.
    fn slots(&self) -> Vec<(usize, Option<&MemberView>)> {
        let held = |slot: usize| self.view.members.iter().find(|member| member.slot == Some(slot));
        (0..self.view.slots as usize).map(|slot| (slot, held(slot))).collect()
    }

    fn starving_s(&self) -> Option<f64> {
        self.view.starvation_clock_s
    }

    fn load(&self) -> String {
        let each = |seconds: f64| format!("{}, {} each", self.view.loads, html::seconds(seconds));
        self.view.load_s.map_or_else(|| "none yet".into(), each)
    }

    fn saved(&self) -> String {
        html::seconds(self.view.minutes_saved * 60.0)
    }
}

impl Queue {
    fn starving_s(&self, now: &Timestamp) -> Option<f64> {
        self.starving_since.map(|since| now.duration_since(since).as_secs_f64().max(0.0))
    }
}

impl Waiting {
    fn count(&self) -> String {
        format!("{}{}", html::count(&self.waiting), if self.has_more { "+" } else { "" })
    }
}

/// The pill of a member: what it is in, or that it is left alone.
fn state(member: &MemberView) -> Markup {
    if member.backoff_until.is_some() { html::state("backoff") } else { html::state(&member.state) }
}

/// The clock that runs until the rule stops sparing the swap.
fn clock(waited_s: Option<f64>, bound_s: &i64) -> Markup {
    let Some(waited) = waited_s else {
        return Markup::new("<span class=\"muted\">nothing is passed over</span>".into());
    };
    let bound = *bound_s as f64;
    let class = if waited > bound { "late" } else { "progress" };
    let meter = chart::meter(&(waited / bound.max(1.0)), class);
    let (waited, bound) = (html::seconds(waited), html::seconds(bound));
    Markup::new(format!("{meter} {waited} <span class=\"muted\">of {bound}</span>"))
}

/// Which swap comes, and when.
fn told(next: &Option<Next>) -> Markup {
    let Some(next) = next else { return Markup::new("<span class=\"muted\">none is needed</span>".into()) };
    let when = match (&next.by, next.is_due) {
        (_, true) => "as soon as a slot is free".into(),
        (Some(by), false) => format!("when what is up has drained, {} at the latest", html::ago(by)),
        (None, false) => "after more urgent work".into(),
    };
    Markup::new(format!("<strong>{}</strong> <span class=\"muted\">{when}</span>", html::escape(&next.affinity)))
}
