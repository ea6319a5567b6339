//! What is happening to a job, as a person would say it (S1).
//!
//! A signal is derived: the job's own row says what a transition implies, and what surrounds the job (the line it stands
//! in, the workers that serve it, what happened to its like before) is laid over when somebody asks.

use std::fmt::Write;

use crate::job::{JobError, JobState};
use crate::time::Time;

/// What a signal is about, in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignalKind {
    Queued,
    Started,
    Phase,
    Blocked,
    Failed,
    Succeeded,
    Canceled,
    Unavailable,
}

impl SignalKind {
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Started,
        Self::Phase,
        Self::Blocked,
        Self::Failed,
        Self::Succeeded,
        Self::Canceled,
        Self::Unavailable,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Started => "started",
            Self::Phase => "phase",
            Self::Blocked => "blocked",
            Self::Failed => "failed",
            Self::Succeeded => "succeeded",
            Self::Canceled => "canceled",
            Self::Unavailable => "unavailable",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Failed | Self::Succeeded | Self::Canceled)
    }

    /// The states in which a job can have a signal of this kind.
    pub const fn states(self) -> &'static [JobState] {
        match self {
            Self::Queued => &[JobState::Scheduled, JobState::Queued],
            Self::Blocked => &[JobState::Queued, JobState::Scheduled, JobState::Loading, JobState::Working],
            Self::Started | Self::Phase => &[JobState::Loading, JobState::Working],
            Self::Failed => &[JobState::Failed],
            Self::Succeeded => &[JobState::Succeeded],
            Self::Canceled => &[JobState::Canceled],
            Self::Unavailable => &[JobState::Scheduled, JobState::Queued, JobState::Loading, JobState::Working],
        }
    }
}

/// A span of time in which something is expected, in seconds: half of the cases are done by `p50_s`, nine in ten by
/// `p90_s`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    pub p50_s: f64,
    pub p90_s: f64,
}

/// What holds a queued job back although a worker might take it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Paused {
        reason: String,
    },
    SubjectBusy {
        subject: String,
    },
    /// What it needs is left alone for a while.
    Backoff {
        cause: String,
        until: Option<Time>,
    },
    Limit {
        detail: String,
    },
    /// What would serve it is on a node that is lost.
    Lost {
        detail: String,
    },
}

/// Where a queued job stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Standing {
    /// Jobs that will be taken before it.
    pub ahead: u64,
    /// The line is longer than was looked at: `ahead` is worked out from kept counts.
    pub is_estimate: bool,
    /// How many of those ahead need which affinity, most first; those without one are left out.
    pub ahead_by_affinity: Vec<(String, u64)>,
    /// What the workers that serve it have loaded now.
    pub loaded: Vec<String>,
    /// Live workers that serve its queue, kind and affinity.
    pub workers: u64,
}

/// What a signature foretells of a job that has not begun (S8).
#[derive(Clone, Debug, PartialEq)]
pub struct Foretold {
    pub error_code: Option<String>,
    pub phase: Option<String>,
    pub likely_cause: Option<String>,
    pub mttr_p50_s: Option<f64>,
    /// Of the last jobs with the same key, how many failed this way, and what the key is called.
    pub evidence: Option<Evidence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub failed: u64,
    pub of: u64,
    /// `subject`, `key` or `image`.
    pub by: &'static str,
}

/// All that is known of a job when somebody asks for its signal.
#[derive(Clone, Debug)]
pub struct Facts<'a> {
    pub now: Time,
    pub state: JobState,
    pub queue: &'a str,
    pub affinity: Option<&'a str>,
    pub attempt: i32,
    pub max_attempts: i32,
    pub run_at: Time,
    pub started_at: Option<Time>,
    pub finished_at: Option<Time>,
    pub phase: Option<&'a str>,
    pub error: Option<&'a JobError>,
    pub actor: Option<&'a str>,
    /// What somebody said of it, beside its own state.
    pub said_kind: Option<SignalKind>,
    pub said_summary: Option<&'a str>,
    pub obstacle: Option<Obstacle>,
    pub standing: Option<Standing>,
    pub eta: Option<Eta>,
    pub foretold: Option<Foretold>,
}

impl Facts<'_> {
    /// A job's end is told by its state alone; before it, what somebody said counts, and an end that was said is never
    /// taken back (S2).
    pub fn kind(&self) -> SignalKind {
        match self.state {
            JobState::Succeeded => return SignalKind::Succeeded,
            JobState::Failed => return SignalKind::Failed,
            JobState::Canceled => return SignalKind::Canceled,
            _ => {}
        }
        if let Some(said) = self.said_kind {
            return said;
        }
        match self.state {
            JobState::Queued if matches!(self.obstacle, Some(Obstacle::Lost { .. })) => SignalKind::Unavailable,
            JobState::Queued if self.obstacle.is_some() => SignalKind::Blocked,
            JobState::Loading | JobState::Working if self.phase.is_some() => SignalKind::Phase,
            JobState::Loading | JobState::Working => SignalKind::Started,
            _ => SignalKind::Queued,
        }
    }

    /// One or more sentences that a person can act on.
    pub fn summary(&self) -> String {
        if let (Some(said), false) = (self.said_summary, self.state.is_terminal()) {
            return said.to_owned();
        }
        let parts = match self.state {
            JobState::Scheduled => self.scheduled(),
            JobState::Queued => self.queued(),
            JobState::Loading | JobState::Working => self.running(),
            JobState::Succeeded | JobState::Failed | JobState::Canceled => self.ended(),
        };
        sentence(&parts)
    }

    fn scheduled(&self) -> Vec<String> {
        let wait = format!("in {}", about_ms(self.run_at.ms_since(self.now)));
        let mut parts = match self.error {
            Some(error) => {
                let next = self.attempt + 1;
                vec![
                    format!("attempt {} of {} failed with {}", self.attempt, self.max_attempts, error.code),
                    format!("attempt {next} {wait}"),
                ]
            }
            None => vec![format!("due {wait}")],
        };
        parts.extend(self.foretold.as_ref().map(Foretold::sentence));
        parts
    }

    fn queued(&self) -> Vec<String> {
        let mut parts = Vec::new();
        match (&self.obstacle, &self.standing) {
            (Some(obstacle), _) => parts.push(obstacle.sentence(self.now)),
            (None, Some(standing)) => parts.extend(standing.sentences(self.affinity)),
            (None, None) => parts.push(format!("waiting in {}", self.queue)),
        }
        if self.obstacle.is_none() {
            match self.eta {
                Some(eta) => parts.push(format!("done in {}", about_s(eta.p50_s))),
                None if self.standing.as_ref().is_some_and(|standing| standing.workers > 0) => {
                    parts.push("too little is known of its kind to say when it is done".into());
                }
                None => {}
            }
        }
        if self.attempt > 0
            && let Some(error) = self.error
        {
            parts.push(format!("attempt {} failed with {}", self.attempt, error.code));
        }
        parts.extend(self.foretold.as_ref().map(Foretold::sentence));
        parts
    }

    fn running(&self) -> Vec<String> {
        let for_ms = self.started_at.map_or(0, |at| self.now.ms_since(at));
        let mut parts = match (self.state, self.affinity) {
            (JobState::Loading, Some(affinity)) => vec![format!("a worker is loading {affinity}")],
            (JobState::Loading, None) => vec!["a worker is loading what it needs".to_owned()],
            _ => {
                vec![format!("attempt {} of {} has been running for {}", self.attempt, self.max_attempts, span(for_ms))]
            }
        };
        parts.extend(self.phase.map(|phase| format!("phase {phase}")));
        parts.extend(self.eta.map(|eta| format!("{} left", about_s(eta.p50_s))));
        parts
    }

    fn ended(&self) -> Vec<String> {
        let took = match (self.started_at, self.finished_at) {
            (Some(start), Some(end)) => format!(" after {}", span(end.ms_since(start))),
            _ => String::new(),
        };
        match (self.state, self.error) {
            (JobState::Succeeded, _) => vec![format!("succeeded on attempt {}{took}", self.attempt)],
            (JobState::Failed, Some(error)) => {
                let mut first = format!("failed with {} on attempt {}", error.code, self.attempt);
                if let Some(phase) = self.phase {
                    let _ = write!(first, " in {phase}");
                }
                vec![format!("{first}{took}"), first_line(&error.message)]
                    .into_iter()
                    .filter(|s| !s.is_empty())
                    .collect()
            }
            (JobState::Failed, None) => vec![format!("failed on attempt {}{took}", self.attempt)],
            _ => match self.actor {
                Some(actor) => vec![format!("canceled by {actor}")],
                None => vec!["canceled".into()],
            },
        }
    }
}

impl Obstacle {
    pub fn sentence(&self, now: Time) -> String {
        match self {
            Self::Paused { reason } => format!("the queue is paused: {reason}"),
            Self::SubjectBusy { subject } => format!("other work on {subject} is under way"),
            Self::Backoff { cause, until: Some(until) } => {
                format!("{cause}; it is tried again in {}", about_ms(until.ms_since(now)))
            }
            Self::Backoff { cause, until: None } => cause.clone(),
            Self::Limit { detail } | Self::Lost { detail } => detail.clone(),
        }
    }
}

impl Standing {
    /// "3rd in line behind 2 llama3 jobs", "model mistral is loaded".
    fn sentences(&self, affinity: Option<&str>) -> Vec<String> {
        if self.workers == 0 {
            let place = if self.ahead == 0 { "next in line".to_owned() } else { self.place() };
            return vec![place, "no live worker serves it".into()];
        }
        let mut parts = vec![self.place()];
        if affinity.is_some() || !self.ahead_by_affinity.is_empty() {
            match self.loaded.as_slice() {
                [] => {}
                [one] => parts.push(format!("model {one} is loaded")),
                many => parts.push(format!("models {} are loaded", many.join(", "))),
            }
        }
        parts
    }

    fn place(&self) -> String {
        if self.ahead == 0 {
            return "next in line".into();
        }
        let about = if self.is_estimate { "about " } else { "" };
        let mut text = format!("{about}{} in line", ordinal(self.ahead + 1));
        let named: u64 = self.ahead_by_affinity.iter().map(|(_, count)| count).sum();
        match self.ahead_by_affinity.as_slice() {
            [(affinity, count)] if *count == self.ahead && !self.is_estimate => {
                let _ = write!(text, " behind {count} {affinity} {}", jobs(*count));
            }
            [first, rest @ ..] if !rest.is_empty() && named == self.ahead && rest.len() < 3 => {
                let all: Vec<String> = [first].into_iter().chain(rest).map(|(a, n)| format!("{n} {a}")).collect();
                let _ = write!(text, " behind {} jobs", all.join(" and "));
            }
            _ => {
                let _ = write!(text, " behind {} {}", self.ahead, jobs(self.ahead));
            }
        }
        text
    }
}

impl Foretold {
    /// "3 of the last 5 with this image failed in analyze: LAYER_EXTRACT_FAILED; usually registry rate limiting; clears in
    /// about 5 min".
    pub fn sentence(&self) -> String {
        let code = self.error_code.as_deref();
        let phase = self.phase.as_deref().map(|phase| format!(" in {phase}")).unwrap_or_default();
        let mut text = match (&self.evidence, code) {
            (Some(Evidence { failed, of, by }), _) if of > failed => {
                format!("{failed} of the last {of} with this {by} failed{phase}")
            }
            (Some(Evidence { failed: 1, by, .. }), _) => format!("the last with this {by} failed{phase}"),
            (Some(Evidence { failed, by, .. }), _) => format!("the last {failed} with this {by} failed{phase}"),
            (None, _) => format!("jobs like this one have failed{phase}"),
        };
        if let Some(code) = code {
            let _ = write!(text, ": {code}");
        }
        if let Some(cause) = &self.likely_cause {
            let _ = write!(text, "; usually {cause}");
        }
        if let Some(seconds) = self.mttr_p50_s {
            let _ = write!(text, "; clears in {}", about_s(seconds));
        }
        text
    }
}

fn sentence(parts: &[String]) -> String {
    let text = parts.join("; ");
    let mut chars = text.chars();
    let Some(first) = chars.next() else { return String::new() };
    let stop = if text.ends_with(['.', '!', '?']) { "" } else { "." };
    format!("{}{}{stop}", first.to_uppercase(), chars.as_str())
}

fn first_line(message: &str) -> String {
    const SHOWN: usize = 200;
    let line = message.lines().next().unwrap_or_default().trim();
    match line.char_indices().nth(SHOWN) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line.to_owned(),
    }
}

fn jobs(count: u64) -> &'static str {
    if count == 1 { "job" } else { "jobs" }
}

/// 1st, 2nd, 3rd, 4th, 11th, 21st.
pub fn ordinal(number: u64) -> String {
    let end = match (number % 10, number % 100) {
        (1, tens) if tens != 11 => "st",
        (2, tens) if tens != 12 => "nd",
        (3, tens) if tens != 13 => "rd",
        _ => "th",
    };
    format!("{number}{end}")
}

/// "about 40 s", "about 5 min": no more digits than an estimate has.
pub fn about_s(seconds: f64) -> String {
    if seconds < 1.0 {
        return "less than 1 s".into();
    }
    format!("about {}", span((seconds * 1_000.0) as i64))
}

fn about_ms(millis: i64) -> String {
    about_s(millis.max(0) as f64 / 1_000.0)
}

/// The largest unit that says it.
pub fn span(millis: i64) -> String {
    let seconds = (millis.max(0) as f64 / 1_000.0).round() as i64;
    match seconds {
        0 => "less than 1 s".into(),
        1..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", (seconds + 30) / 60),
        7_200..172_800 => format!("{} h", (seconds + 1_800) / 3_600),
        _ => format!("{} days", (seconds + 43_200) / 86_400),
    }
}

#[cfg(test)]
mod tests;
