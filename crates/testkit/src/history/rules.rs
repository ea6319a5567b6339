//! The rules for the events of one job.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use super::{Event, Fault, Millis, Outcome, Response, State};

/// When each worker certainly had its lease.
#[derive(Default)]
pub(super) struct Leases {
    /// Per worker: the time of each heartbeat request, and the time until which the lease lasted at least.
    heartbeats: HashMap<Uuid, Vec<(Millis, Millis)>>,
    removed: HashMap<Uuid, Millis>,
}

impl Leases {
    pub(super) fn renewed(&mut self, worker: Uuid, asked: Millis, lease_ms: Millis) {
        self.heartbeats.entry(worker).or_default().push((asked, asked + lease_ms));
    }

    pub(super) fn removed(&mut self, worker: Uuid, asked: Millis) {
        let removed = self.removed.entry(worker).or_insert(asked);
        *removed = asked.min(*removed);
    }

    pub(super) fn sort(&mut self) {
        self.heartbeats.values_mut().for_each(|heartbeats| heartbeats.sort());
    }

    /// True if the worker certainly had its lease at this time.
    fn holds(&self, worker: Uuid, at: Millis) -> bool {
        if self.removed.get(&worker).is_some_and(|removed| *removed <= at) {
            return false;
        }
        let Some(heartbeats) = self.heartbeats.get(&worker) else { return false };
        let before = heartbeats.partition_point(|(asked, _)| *asked <= at);
        // All leases have the same term, so the last request has the latest expiry.
        before.checked_sub(1).is_some_and(|last| heartbeats[last].1 > at)
    }
}

#[derive(Default)]
pub(super) struct JobLog<'a> {
    /// The maximum number of attempts, if the job was acknowledged.
    acknowledged: Option<i64>,
    claims: Vec<&'a Event>,
    settled: Vec<&'a Event>,
    canceled: Vec<&'a Event>,
    observed: Vec<&'a Event>,
}

struct ClaimRecord {
    epoch: i64,
    attempt: i64,
    worker: Uuid,
    asked: Millis,
    at: Millis,
}

struct SettleRecord {
    epoch: i64,
    worker: Uuid,
    outcome: Outcome,
    answer: Response,
    asked: Millis,
    at: Millis,
}

type Violation = (Fault, String);

impl<'a> JobLog<'a> {
    pub(super) fn push(&mut self, event: &'a Event) {
        match event {
            Event::Enqueued { max_attempts, .. } => self.acknowledged = Some(*max_attempts),
            Event::Claimed { .. } => self.claims.push(event),
            Event::Settled { .. } => self.settled.push(event),
            Event::Canceled { .. } => self.canceled.push(event),
            Event::Observed { .. } => self.observed.push(event),
            _ => unreachable!("only events of jobs are pushed"),
        }
    }

    /// Reports each kind of violation at most once.
    pub(super) fn check(&self, leases: &Leases) -> Vec<Violation> {
        let mut claims: Vec<ClaimRecord> = self.claims.iter().map(|event| claim(event)).collect();
        claims.sort_by_key(|claim| (claim.epoch, claim.at));
        let settled: Vec<SettleRecord> = self.settled.iter().map(|event| settle(event)).collect();
        let mut found = Vec::new();
        found.extend(self.lost());
        found.extend(self.held_by_two(&claims, &settled, leases));
        found.extend(stale_accepted(&claims, &settled));
        found.extend(self.terminal_changed(&claims, &settled));
        found.extend(self.attempts_over_maximum(&claims));
        found.extend(backoff_early(&claims, &settled));
        found
    }

    fn lost(&self) -> Option<Violation> {
        let lost = self.acknowledged.is_some() && self.observed.is_empty();
        lost.then(|| (Fault::Lost, "acknowledged and not found at the end".into()))
    }

    fn held_by_two(&self, claims: &[ClaimRecord], settled: &[SettleRecord], leases: &Leases) -> Option<Violation> {
        for pair in claims.windows(2) {
            let [first, second] = pair else { unreachable!("windows of two") };
            if first.epoch == second.epoch {
                return Some((Fault::HeldByTwo, format!("epoch {} was claimed twice", first.epoch)));
            }
            // If the first worker requested its end before the second claim, the request may have been applied.
            let may_have_ended =
                settled.iter().any(|settlement| settlement.epoch == first.epoch && settlement.asked <= second.at)
                    || self.cancel_times().any(|asked| asked <= second.at);
            if !may_have_ended && leases.holds(first.worker, second.at) {
                let (epoch, at) = (second.epoch, second.at);
                return Some((
                    Fault::HeldByTwo,
                    format!("epoch {epoch} was claimed at {at} during the lease of another worker"),
                ));
            }
        }
        None
    }

    fn cancel_times(&self) -> impl Iterator<Item = Millis> {
        self.canceled.iter().filter_map(|event| match event {
            Event::Canceled { answer, asked, .. } => (*answer != Response::Refused).then_some(*asked),
            _ => None,
        })
    }

    /// The times from which the job is known to have ended, with its state.
    fn ends(&self, claims: &[ClaimRecord], settled: &[SettleRecord]) -> Vec<(Millis, State)> {
        let last_attempt = |epoch| {
            let attempt = claims.iter().find(|claim| claim.epoch == epoch).map(|claim| claim.attempt);
            attempt.zip(self.acknowledged).is_some_and(|(attempt, maximum)| attempt >= maximum)
        };
        let mut ends = Vec::new();
        for settlement in settled.iter().filter(|settlement| settlement.answer == Response::Applied) {
            let state = match settlement.outcome {
                Outcome::Finish => State::Succeeded,
                Outcome::Cancel => State::Canceled,
                Outcome::Fail { wait_ms: None } => State::Failed,
                Outcome::Fail { wait_ms: Some(_) } if last_attempt(settlement.epoch) => State::Failed,
                Outcome::Fail { .. } | Outcome::Snooze { .. } | Outcome::Release => continue,
            };
            ends.push((settlement.at, state));
        }
        for event in &self.canceled {
            if let Event::Canceled { answer: Response::Applied, at, .. } = event {
                ends.push((*at, State::Canceled));
            }
        }
        ends
    }

    fn terminal_changed(&self, claims: &[ClaimRecord], settled: &[SettleRecord]) -> Option<Violation> {
        let changed = |detail: String| Some((Fault::TerminalChanged, detail));
        let ends = self.ends(claims, settled);
        // Several ends with the same state are not a violation: a worker confirms a cancel.
        let states: BTreeSet<State> = ends.iter().map(|(_, state)| *state).collect();
        if states.len() > 1 {
            return changed(format!("ended in more than one state: {ends:?}"));
        }
        for (at, state) in &ends {
            if let Some(claim) = claims.iter().find(|claim| claim.asked > *at) {
                return changed(format!("claimed at {} after it had ended at {at}", claim.at));
            }
            for event in &self.observed {
                if let Event::Observed { state: observed, asked, .. } = event
                    && asked > at
                    && observed != state
                {
                    return changed(format!("{state:?} at {at}, read as {observed:?} at {asked}"));
                }
            }
        }
        self.observed_change()
    }

    /// A terminal state that one reader observed and a later one did not.
    fn observed_change(&self) -> Option<Violation> {
        let mut reads: Vec<(Millis, Millis, State)> = self.observed.iter().filter_map(|event| read(event)).collect();
        reads.sort_by_key(|(asked, ..)| *asked);
        for (number, (_, at, state)) in reads.iter().enumerate().filter(|(_, read)| read.2 != State::Live) {
            if let Some((_, _, later)) = reads[number..].iter().find(|(asked, _, later)| asked > at && later != state) {
                return Some((Fault::TerminalChanged, format!("read as {state:?}, then as {later:?}")));
            }
        }
        None
    }

    fn attempts_over_maximum(&self, claims: &[ClaimRecord]) -> Option<Violation> {
        let maximum = self.acknowledged?;
        let observed = self.observed.iter().filter_map(|event| match event {
            Event::Observed { attempt, .. } => Some(*attempt),
            _ => None,
        });
        let most = claims.iter().map(|claim| claim.attempt).chain(observed).max()?;
        (most > maximum).then(|| (Fault::AttemptsOverMaximum, format!("attempt {most} of {maximum}")))
    }
}

/// An outcome was applied after another worker had claimed the job, or for a worker that never had the claim.
fn stale_accepted(claims: &[ClaimRecord], settled: &[SettleRecord]) -> Option<Violation> {
    for settlement in settled.iter().filter(|settlement| settlement.answer == Response::Applied) {
        let newer = claims.iter().find(|claim| claim.epoch > settlement.epoch && claim.at < settlement.asked);
        if let Some(newer) = newer {
            let detail = format!(
                "epoch {} applied at {}, epoch {} claimed at {}",
                settlement.epoch, settlement.at, newer.epoch, newer.at
            );
            return Some((Fault::StaleAccepted, detail));
        }
        let owner = claims.iter().find(|claim| claim.epoch == settlement.epoch);
        if owner.is_some_and(|owner| owner.worker != settlement.worker) {
            return Some((Fault::StaleAccepted, format!("epoch {} applied for another worker", settlement.epoch)));
        }
    }
    None
}

fn backoff_early(claims: &[ClaimRecord], settled: &[SettleRecord]) -> Option<Violation> {
    for settlement in settled.iter().filter(|settlement| settlement.answer == Response::Applied) {
        let wait_ms = match settlement.outcome {
            Outcome::Fail { wait_ms: Some(wait_ms) } | Outcome::Snooze { wait_ms } => wait_ms,
            _ => continue,
        };
        // The wait began no earlier than the call, and the next claim was made no later than its answer was read.
        let early = claims.iter().find(|claim| claim.epoch > settlement.epoch && claim.at < settlement.asked + wait_ms);
        if let Some(early) = early {
            let detail = format!("waits {wait_ms} ms from {}, claimed at {}", settlement.asked, early.at);
            return Some((Fault::BackoffEarly, detail));
        }
    }
    None
}

fn claim(event: &Event) -> ClaimRecord {
    match event {
        Event::Claimed { epoch, attempt, worker, asked, at, .. } => {
            ClaimRecord { epoch: *epoch, attempt: *attempt, worker: *worker, asked: *asked, at: *at }
        }
        other => unreachable!("{other:?} is not a claim"),
    }
}

fn settle(event: &Event) -> SettleRecord {
    match event {
        Event::Settled { epoch, worker, outcome, answer, asked, at, .. } => {
            SettleRecord { epoch: *epoch, worker: *worker, outcome: *outcome, answer: *answer, asked: *asked, at: *at }
        }
        other => unreachable!("{other:?} is not an outcome"),
    }
}

fn read(event: &Event) -> Option<(Millis, Millis, State)> {
    match event {
        Event::Observed { state, asked, at, .. } => Some((*asked, *at, *state)),
        _ => None,
    }
}
