//! Signals: the state of a job in one sentence.
//!
//! A signal is derived on each read. The job's row determines the kind; the queue position, the workers and the history
//! of similar jobs add detail.

use std::fmt::Write;

use crate::queue::job::{JobError, JobState};
use crate::time::Time;

/// The kind of a signal.
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

    /// The job states that a signal of this kind can belong to.
    pub const fn states(self) -> &'static [JobState] {
        match self {
            Self::Queued => &[JobState::Scheduled, JobState::Queued],
            Self::Blocked => {
                &[JobState::Waiting, JobState::Queued, JobState::Scheduled, JobState::Loading, JobState::Working]
            }
            Self::Started | Self::Phase => &[JobState::Loading, JobState::Working],
            Self::Failed => &[JobState::Failed],
            Self::Succeeded => &[JobState::Succeeded],
            Self::Canceled => &[JobState::Canceled],
            Self::Unavailable => {
                &[JobState::Waiting, JobState::Scheduled, JobState::Queued, JobState::Loading, JobState::Working]
            }
        }
    }
}

/// The expected time until an event, in seconds: the median and the 90th percentile.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Eta {
    pub p50_s: f64,
    pub p90_s: f64,
}

/// Why a queued job cannot be claimed even if a worker is free.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Obstacle {
    Paused {
        reason: String,
    },
    SubjectBusy {
        subject: String,
    },
    /// The model or process that it needs is in backoff.
    Backoff {
        cause: String,
        until: Option<Time>,
    },
    Limit {
        detail: String,
    },
    /// The node that could run it is lost.
    Lost {
        detail: String,
    },
}

/// The position of a queued job.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct QueuePosition {
    /// Jobs that will be claimed before it.
    pub ahead: u64,
    /// `ahead` is extrapolated from the maintained counters, because the queue is longer than the scan.
    pub is_estimate: bool,
    /// Jobs ahead per affinity, largest count first. Jobs without an affinity are not included.
    pub ahead_by_affinity: Vec<(String, u64)>,
    /// Affinities that the workers of this job's queue and kind have loaded.
    pub loaded: Vec<String>,
    /// Live workers that serve its queue, kind and affinity.
    pub workers: u64,
}

/// A failure that a signature predicts for a job that has not started.
#[derive(Clone, Debug, PartialEq)]
pub struct FailurePrediction {
    pub error_code: Option<String>,
    pub phase: Option<String>,
    pub likely_cause: Option<String>,
    pub mttr_p50_s: Option<f64>,
    /// How many of the last jobs with the same key failed this way.
    pub evidence: Option<Evidence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Evidence {
    pub failed: u64,
    pub of: u64,
    /// The kind of the key: `subject`, `key` or `image`.
    pub by: &'static str,
}

/// The input for the signal of a job.
#[derive(Clone, Debug)]
pub struct SignalFacts<'a> {
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
    /// Reported by the worker or a client.
    pub reported_kind: Option<SignalKind>,
    pub reported_summary: Option<&'a str>,
    pub obstacle: Option<Obstacle>,
    pub position: Option<QueuePosition>,
    pub eta: Option<Eta>,
    pub prediction: Option<FailurePrediction>,
    /// From the signature that matches the failure of the job.
    pub likely_cause: Option<&'a str>,
}

impl SignalFacts<'_> {
    /// The kind of the signal. After the job's end, the state alone determines it. Before, a reported kind takes
    /// precedence, and a reported end is never revised.
    pub fn kind(&self) -> SignalKind {
        match self.state {
            JobState::Succeeded => return SignalKind::Succeeded,
            JobState::Failed => return SignalKind::Failed,
            JobState::Canceled => return SignalKind::Canceled,
            _ => {}
        }
        if let Some(reported) = self.reported_kind {
            return reported;
        }
        match self.state {
            JobState::Queued if matches!(self.obstacle, Some(Obstacle::Lost { .. })) => SignalKind::Unavailable,
            JobState::Queued if self.obstacle.is_some() => SignalKind::Blocked,
            JobState::Waiting => SignalKind::Blocked,
            JobState::Loading | JobState::Working if self.phase.is_some() => SignalKind::Phase,
            JobState::Loading | JobState::Working => SignalKind::Started,
            _ => SignalKind::Queued,
        }
    }

    /// The signal as one or more sentences.
    pub fn summary(&self) -> String {
        if let (Some(reported), false) = (self.reported_summary, self.state.is_terminal()) {
            return reported.to_owned();
        }
        let parts = match self.state {
            JobState::Waiting => self.waiting(),
            JobState::Scheduled => self.scheduled(),
            JobState::Queued => self.queued(),
            JobState::Loading | JobState::Working => self.running(),
            JobState::Succeeded | JobState::Failed | JobState::Canceled => self.ended(),
        };
        sentence(&parts)
    }

    fn waiting(&self) -> Vec<String> {
        match &self.obstacle {
            Some(obstacle) => vec![obstacle.sentence(self.now)],
            None => vec!["waiting until something wakes it".to_owned()],
        }
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
        parts.extend(self.prediction.as_ref().map(FailurePrediction::sentence));
        parts
    }

    fn queued(&self) -> Vec<String> {
        let mut parts = Vec::new();
        match (&self.obstacle, &self.position) {
            (Some(obstacle), _) => parts.push(obstacle.sentence(self.now)),
            (None, Some(position)) => parts.extend(position.sentences(self.affinity)),
            (None, None) => parts.push(format!("waiting in {}", self.queue)),
        }
        if self.obstacle.is_none() {
            match self.eta {
                Some(eta) => parts.push(format!("done in {}", about_s(eta.p50_s))),
                None if self.position.as_ref().is_some_and(|position| position.workers > 0) => {
                    parts.push("no ETA: too few completed jobs of this kind".into());
                }
                None => {}
            }
        }
        if self.attempt > 0
            && let Some(error) = self.error
        {
            parts.push(format!("attempt {} failed with {}", self.attempt, error.code));
        }
        parts.extend(self.prediction.as_ref().map(FailurePrediction::sentence));
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
                let cause = self.likely_cause.map(|cause| format!("usually {cause}")).unwrap_or_default();
                vec![format!("{first}{took}"), first_line(&error.message), cause]
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
            Self::SubjectBusy { subject } => format!("other work on {subject} is in progress"),
            Self::Backoff { cause, until: Some(until) } => {
                format!("{cause}; retry in {}", about_ms(until.ms_since(now)))
            }
            Self::Backoff { cause, until: None } => cause.clone(),
            Self::Limit { detail } | Self::Lost { detail } => detail.clone(),
        }
    }
}

impl QueuePosition {
    /// For example "3rd in line behind 2 llama3 jobs", "model mistral is loaded".
    fn sentences(&self, affinity: Option<&str>) -> Vec<String> {
        if self.workers == 0 {
            let in_line = if self.ahead == 0 { "next in line".to_owned() } else { self.in_line() };
            return vec![in_line, "no live worker serves it".into()];
        }
        let mut parts = vec![self.in_line()];
        if affinity.is_some() || !self.ahead_by_affinity.is_empty() {
            match self.loaded.as_slice() {
                [] => {}
                [one] => parts.push(format!("model {one} is loaded")),
                many => parts.push(format!("models {} are loaded", many.join(", "))),
            }
        }
        parts
    }

    fn in_line(&self) -> String {
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

impl FailurePrediction {
    /// For example "3 of the last 5 with this image failed in analyze: LAYER_EXTRACT_FAILED; usually registry rate
    /// limiting; clears in about 5 min".
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

/// For example "from 214 jobs of this kind; 2 swaps ahead".
pub fn eta_basis(samples: u64, swaps_ahead: u32) -> String {
    with_swaps(format!("from {samples} {} of this kind", jobs(samples)), swaps_ahead)
}

/// The basis of an ETA before enough jobs with this affinity have ended.
pub fn borrowed_eta_basis(samples: u64, swaps_ahead: u32) -> String {
    with_swaps(format!("from {samples} {} of this kind with other affinities", jobs(samples)), swaps_ahead)
}

fn with_swaps(mut text: String, swaps_ahead: u32) -> String {
    if swaps_ahead > 0 {
        let _ = write!(text, "; {swaps_ahead} {} ahead", if swaps_ahead == 1 { "swap" } else { "swaps" });
    }
    text
}

/// Formats an estimate, such as "about 40 s" or "about 5 min".
pub fn about_s(seconds: f64) -> String {
    if seconds < 1.0 {
        return "less than 1 s".into();
    }
    format!("about {}", span((seconds * 1_000.0) as i64))
}

fn about_ms(millis: i64) -> String {
    about_s(millis.max(0) as f64 / 1_000.0)
}

/// Formats a duration in its largest unit.
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
