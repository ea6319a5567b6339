//! A history checker: decides from what clients observed whether the guarantees held. It does not query the program.
//!
//! The log is written by processes that are not killed. Producers, workers and readers record each request with its
//! time and its response. [`check`] reports every job whose responses contradict each other. It is lenient only where a
//! client cannot know: a missing response may stand for either outcome.
//!
//! All times are milliseconds of the logging process's clock, which no fault affects.

mod generate;
mod rules;

use std::collections::BTreeMap;
use std::fmt;

use uuid::Uuid;

pub use generate::{Generated, generate};

/// Milliseconds since the start of the log.
pub type Millis = u64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Finish,
    /// The next attempt must not start within `wait_ms`. `None`: the job ends.
    Fail {
        wait_ms: Option<Millis>,
    },
    Cancel,
    Snooze {
        wait_ms: Millis,
    },
    Release,
}

/// The response to an outcome or a cancel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Response {
    Applied,
    Refused,
    /// No response: it may have been applied or not. A client that may die before the response logs this with its
    /// request.
    Unknown,
}

/// A request and its response. `asked` is before the call, `at` after the response was read.
#[derive(Clone, Debug)]
pub enum Event {
    /// A producer's job was acknowledged.
    Enqueued {
        job: Uuid,
        max_attempts: i64,
    },
    /// A worker's heartbeat was acknowledged: no other worker may get its jobs for a lease from here.
    Heartbeat {
        worker: Uuid,
        asked: Millis,
        lease_ms: Millis,
    },
    /// A worker removed itself, which releases its jobs.
    WorkerRemoved {
        worker: Uuid,
        asked: Millis,
    },
    Claimed {
        job: Uuid,
        epoch: i64,
        attempt: i64,
        worker: Uuid,
        asked: Millis,
        at: Millis,
    },
    Settled {
        job: Uuid,
        epoch: i64,
        worker: Uuid,
        outcome: Outcome,
        answer: Response,
        asked: Millis,
        at: Millis,
    },
    /// A client canceled the job.
    Canceled {
        job: Uuid,
        answer: Response,
        asked: Millis,
        at: Millis,
    },
    /// A reader read the job.
    Observed {
        job: Uuid,
        state: State,
        attempt: i64,
        asked: Millis,
        at: Millis,
    },
    /// A producer's event, which one trigger waits for, was acknowledged.
    Published {
        event: Uuid,
    },
    /// A reader found a job that this event created.
    JobCreated {
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
    /// Parses the API's name of a state.
    pub fn parse(text: &str) -> Self {
        match text {
            "succeeded" => Self::Succeeded,
            "failed" => Self::Failed,
            "canceled" => Self::Canceled,
            _ => Self::Live,
        }
    }
}

/// The violations that the checker detects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// Acknowledged, and not found.
    Lost,
    HeldByTwo,
    StaleAccepted,
    TerminalChanged,
    AttemptsOverMaximum,
    BackoffEarly,
    /// An acknowledged event created no job.
    OutboxLost,
    /// An event created more than one job.
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
    pub detail: String,
}

/// The result of a check.
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

    /// Panics if there are findings.
    pub fn assert_no_violations(&self) {
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

/// Checks a whole log. It must end with a read of every job that still exists: a job without one is lost.
pub fn check(log: &[Event]) -> Verdict {
    let mut jobs: BTreeMap<Uuid, rules::JobLog<'_>> = BTreeMap::new();
    let mut leases = rules::Leases::default();
    let mut outbox: BTreeMap<Uuid, (bool, Vec<Uuid>)> = BTreeMap::new();
    for event in log {
        match event {
            Event::Heartbeat { worker, asked, lease_ms } => leases.renewed(*worker, *asked, *lease_ms),
            Event::WorkerRemoved { worker, asked } => leases.removed(*worker, *asked),
            Event::Published { event } => outbox.entry(*event).or_default().0 = true,
            Event::JobCreated { event, job } => outbox.entry(*event).or_default().1.push(*job),
            Event::Enqueued { job, .. }
            | Event::Claimed { job, .. }
            | Event::Settled { job, .. }
            | Event::Canceled { job, .. }
            | Event::Observed { job, .. } => jobs.entry(*job).or_default().push(event),
        }
    }
    leases.sort();
    // A request without a response is followed by an entry with the response, if there is one.
    let is_request = |event: &&Event| matches!(event, Event::Settled { answer: Response::Unknown, .. });
    let events = log.len() - log.iter().filter(is_request).count();
    let mut verdict = Verdict { events, jobs: jobs.len(), findings: Vec::new() };
    for (job, log) in jobs {
        let found = log.check(&leases).into_iter();
        verdict.findings.extend(found.map(|(fault, detail)| Finding { fault, of: job, detail }));
    }
    for (event, (published, mut created)) in outbox {
        created.sort();
        created.dedup();
        let fault = match created.len() {
            0 => Fault::OutboxLost,
            1 => continue,
            _ => Fault::OutboxTwice,
        };
        let detail = format!("acknowledged: {published}, jobs: {created:?}");
        verdict.findings.push(Finding { fault, of: event, detail });
    }
    verdict
}
