//! Decides from what clients saw whether the promises were kept. The program under test is not asked.
//!
//! A log is written outside of everything that is killed: producers, workers and readers say what they asked, when, and
//! what they were told. `check` reads it and names every job for which the answers cannot all be true together. It errs on the
//! side of the program only where a client cannot know: an answer that never came may stand for either outcome.
//!
//! All times are milliseconds of one clock of the witness, which no fault touches.

mod generate;
mod rules;

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

pub use generate::{Generated, generate};

/// Milliseconds since the log began.
pub type At = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finish,
    /// The promise is that the next attempt does not begin within `wait_ms`. Without a wait it is the job's end.
    Fail {
        wait_ms: Option<At>,
    },
    Cancel,
    Snooze {
        wait_ms: At,
    },
    Release,
}

/// What a worker was told of an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Applied,
    Refused,
    /// It may have been applied or not. Whoever may die before the answer comes says this as it asks.
    None,
}

/// What somebody asked and was told. `asked` is before the call began, `at` after its answer was read.
#[derive(Clone, Debug)]
pub enum Event {
    /// A producer was told that its job is safe.
    Enqueued {
        job: Uuid,
        max_attempts: i64,
    },
    /// A worker was told that it lives: nobody else may have its jobs for a lease from here.
    Beat {
        worker: Uuid,
        asked: At,
        lease_ms: At,
    },
    /// A worker says that it has gone, and gives back what it holds.
    Left {
        worker: Uuid,
        asked: At,
    },
    Claimed {
        job: Uuid,
        epoch: i64,
        attempt: i64,
        worker: Uuid,
        asked: At,
        at: At,
    },
    Settled {
        job: Uuid,
        epoch: i64,
        worker: Uuid,
        outcome: Outcome,
        answer: Answer,
        asked: At,
        at: At,
    },
    /// Somebody called the job off, and was perhaps told that it is.
    Canceled {
        job: Uuid,
        answer: Answer,
        asked: At,
        at: At,
    },
    /// A reader looked at the job.
    Seen {
        job: Uuid,
        state: State,
        attempt: i64,
        asked: At,
        at: At,
    },
    /// A producer was told that an event is safe that one trigger waits for.
    Published {
        event: Uuid,
    },
    /// A reader found a job that this event made.
    Made {
        event: Uuid,
        job: Uuid,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum State {
    Live,
    Succeeded,
    Failed,
    Canceled,
}

impl State {
    /// By the word that the API uses.
    pub fn named(word: &str) -> Self {
        match word {
            "succeeded" => Self::Succeeded,
            "failed" => Self::Failed,
            "canceled" => Self::Canceled,
            _ => Self::Live,
        }
    }
}

/// The ways in which a promise can be broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Acknowledged, and nobody can find it.
    Lost,
    HeldByTwo,
    StaleAccepted,
    TerminalChanged,
    AttemptsOverMaximum,
    BackoffEarly,
    /// An acknowledged event made no job.
    OutboxLost,
    /// An event made more than one job.
    OutboxTwice,
}

impl Fault {
    pub const ALL: [Self; 8] = [
        Self::Lost,
        Self::HeldByTwo,
        Self::StaleAccepted,
        Self::TerminalChanged,
        Self::AttemptsOverMaximum,
        Self::BackoffEarly,
        Self::OutboxLost,
        Self::OutboxTwice,
    ];
}

#[derive(Clone, Debug)]
pub struct Finding {
    pub fault: Fault,
    /// The job, or for the outbox the event.
    pub of: Uuid,
    pub told: String,
}

/// What the log says.
#[derive(Debug, Default)]
pub struct Verdict {
    pub events: usize,
    pub jobs: usize,
    pub findings: Vec<Finding>,
}

impl Verdict {
    pub fn count(&self, fault: Fault) -> usize {
        self.findings.iter().filter(|finding| finding.fault == fault).count()
    }

    /// Panics with the findings, if there are any.
    pub fn assert_kept(&self) {
        assert!(self.findings.is_empty(), "{self}\n{:#?}", self.findings.iter().take(10).collect::<Vec<_>>());
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "operations={} jobs={}", self.events, self.jobs)?;
        for fault in Fault::ALL {
            write!(f, " {}={}", name(fault), self.count(fault))?;
        }
        Ok(())
    }
}

fn name(fault: Fault) -> &'static str {
    match fault {
        Fault::Lost => "lost",
        Fault::HeldByTwo => "held_by_two",
        Fault::StaleAccepted => "stale_accepted",
        Fault::TerminalChanged => "terminal_changed",
        Fault::AttemptsOverMaximum => "attempts_over_maximum",
        Fault::BackoffEarly => "backoff_early",
        Fault::OutboxLost => "outbox_lost",
        Fault::OutboxTwice => "outbox_twice",
    }
}

/// Judges a whole log. Its end is a look at every job that is still known: a job without one is lost.
pub fn check(log: &[Event]) -> Verdict {
    let mut jobs: BTreeMap<Uuid, rules::JobLog<'_>> = BTreeMap::new();
    let mut leases = rules::Leases::default();
    let mut outbox: BTreeMap<Uuid, (bool, Vec<Uuid>)> = BTreeMap::new();
    for event in log {
        match event {
            Event::Beat { worker, asked, lease_ms } => leases.renewed(*worker, *asked, *lease_ms),
            Event::Left { worker, asked } => leases.left(*worker, *asked),
            Event::Published { event } => outbox.entry(*event).or_default().0 = true,
            Event::Made { event, job } => outbox.entry(*event).or_default().1.push(*job),
            Event::Enqueued { job, .. }
            | Event::Claimed { job, .. }
            | Event::Settled { job, .. }
            | Event::Canceled { job, .. }
            | Event::Seen { job, .. } => jobs.entry(*job).or_default().push(event),
        }
    }
    leases.sort();
    // What is asked is told once more with its answer.
    let asked = |event: &&Event| matches!(event, Event::Settled { answer: Answer::None, .. });
    let events = log.len() - log.iter().filter(asked).count();
    let mut verdict = Verdict { events, jobs: jobs.len(), findings: Vec::new() };
    for (job, log) in jobs {
        let found = log.check(&leases).into_iter();
        verdict.findings.extend(found.map(|(fault, told)| Finding { fault, of: job, told }));
    }
    for (event, (published, mut made)) in outbox {
        made.sort();
        made.dedup();
        let fault = match made.len() {
            0 => Fault::OutboxLost,
            1 => continue,
            _ => Fault::OutboxTwice,
        };
        verdict.findings.push(Finding { fault, of: event, told: format!("acknowledged: {published}, jobs: {made:?}") });
    }
    verdict
}
