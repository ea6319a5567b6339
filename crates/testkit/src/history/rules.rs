//! The rules for one job: each looks at all that was said of it.

use std::collections::{BTreeSet, HashMap};

use uuid::Uuid;

use super::{Answer, At, Event, Fault, Outcome, State};

/// When each worker was sure to be alive.
#[derive(Default)]
pub(super) struct Leases {
    /// Per worker: from a moment it asked, until when its lease held at least.
    beats: HashMap<Uuid, Vec<(At, At)>>,
    left: HashMap<Uuid, At>,
}

impl Leases {
    pub(super) fn renewed(&mut self, worker: Uuid, asked: At, lease_ms: At) {
        self.beats.entry(worker).or_default().push((asked, asked + lease_ms));
    }

    pub(super) fn left(&mut self, worker: Uuid, asked: At) {
        let left = self.left.entry(worker).or_insert(asked);
        *left = asked.min(*left);
    }

    pub(super) fn sort(&mut self) {
        self.beats.values_mut().for_each(|beats| beats.sort());
    }

    /// Whether the worker certainly had its lease at this moment.
    fn holds(&self, worker: Uuid, at: At) -> bool {
        if self.left.get(&worker).is_some_and(|left| *left <= at) {
            return false;
        }
        let Some(beats) = self.beats.get(&worker) else { return false };
        let before = beats.partition_point(|(asked, _)| *asked <= at);
        // Leases have one length, so the last that was asked for lasts longest.
        before.checked_sub(1).is_some_and(|last| beats[last].1 > at)
    }
}

#[derive(Default)]
pub(super) struct JobLog<'a> {
    acknowledged: Option<i64>,
    claims: Vec<&'a Event>,
    settled: Vec<&'a Event>,
    canceled: Vec<&'a Event>,
    seen: Vec<&'a Event>,
}

struct Claim {
    epoch: i64,
    attempt: i64,
    worker: Uuid,
    asked: At,
    at: At,
}

struct Settle {
    epoch: i64,
    worker: Uuid,
    outcome: Outcome,
    answer: Answer,
    asked: At,
    at: At,
}

type Found = (Fault, String);

impl<'a> JobLog<'a> {
    pub(super) fn push(&mut self, event: &'a Event) {
        match event {
            Event::Enqueued { max_attempts, .. } => self.acknowledged = Some(*max_attempts),
            Event::Claimed { .. } => self.claims.push(event),
            Event::Settled { .. } => self.settled.push(event),
            Event::Canceled { .. } => self.canceled.push(event),
            Event::Seen { .. } => self.seen.push(event),
            _ => unreachable!("only events of jobs come here"),
        }
    }

    /// Each fault is told once for a job, however often it shows.
    pub(super) fn check(&self, leases: &Leases) -> Vec<Found> {
        let mut claims: Vec<Claim> = self.claims.iter().map(|event| claim(event)).collect();
        claims.sort_by_key(|claim| (claim.epoch, claim.at));
        let settled: Vec<Settle> = self.settled.iter().map(|event| settle(event)).collect();
        let mut found = Vec::new();
        found.extend(self.lost());
        found.extend(self.held_by_two(&claims, &settled, leases));
        found.extend(stale_accepted(&claims, &settled));
        found.extend(self.terminal_changed(&claims, &settled));
        found.extend(self.attempts_over_maximum(&claims));
        found.extend(backoff_early(&claims, &settled));
        found
    }

    fn lost(&self) -> Option<Found> {
        let lost = self.acknowledged.is_some() && self.seen.is_empty();
        lost.then(|| (Fault::Lost, "acknowledged and not found at the end".into()))
    }

    fn held_by_two(&self, claims: &[Claim], settled: &[Settle], leases: &Leases) -> Option<Found> {
        for pair in claims.windows(2) {
            let [first, second] = pair else { unreachable!("windows of two") };
            if first.epoch == second.epoch {
                return Some((Fault::HeldByTwo, format!("epoch {} was handed out twice", first.epoch)));
            }
            // Whoever spoke of its end before the next one had it may have been heard.
            let let_go = settled.iter().any(|said| said.epoch == first.epoch && said.asked <= second.at)
                || self.called_off().any(|asked| asked <= second.at);
            if !let_go && leases.holds(first.worker, second.at) {
                let (epoch, at) = (second.epoch, second.at);
                return Some((Fault::HeldByTwo, format!("epoch {epoch} was given at {at} under a live lease")));
            }
        }
        None
    }

    fn called_off(&self) -> impl Iterator<Item = At> {
        self.canceled.iter().filter_map(|event| match event {
            Event::Canceled { answer, asked, .. } => (*answer != Answer::Refused).then_some(*asked),
            _ => None,
        })
    }

    /// The moments from which the job is known to have ended, with the state that it then has.
    fn ends(&self, claims: &[Claim], settled: &[Settle]) -> Vec<(At, State)> {
        let last_attempt = |epoch| {
            let attempt = claims.iter().find(|claim| claim.epoch == epoch).map(|claim| claim.attempt);
            attempt.zip(self.acknowledged).is_some_and(|(attempt, maximum)| attempt >= maximum)
        };
        let mut ends = Vec::new();
        for said in settled.iter().filter(|said| said.answer == Answer::Applied) {
            let state = match said.outcome {
                Outcome::Finish => State::Succeeded,
                Outcome::Cancel => State::Canceled,
                Outcome::Fail { wait_ms: None } => State::Failed,
                Outcome::Fail { wait_ms: Some(_) } if last_attempt(said.epoch) => State::Failed,
                Outcome::Fail { .. } | Outcome::Snooze { .. } | Outcome::Release => continue,
            };
            ends.push((said.at, state));
        }
        for event in &self.canceled {
            if let Event::Canceled { answer: Answer::Applied, at, .. } = event {
                ends.push((*at, State::Canceled));
            }
        }
        ends
    }

    fn terminal_changed(&self, claims: &[Claim], settled: &[Settle]) -> Option<Found> {
        let changed = |told: String| Some((Fault::TerminalChanged, told));
        let ends = self.ends(claims, settled);
        // A worker that confirms a cancel ends nothing anew: the job is canceled either way.
        let words: BTreeSet<State> = ends.iter().map(|(_, state)| *state).collect();
        if words.len() > 1 {
            return changed(format!("it was told to have ended in more than one way: {ends:?}"));
        }
        for (at, state) in &ends {
            if let Some(claim) = claims.iter().find(|claim| claim.asked > *at) {
                return changed(format!("claimed at {} after it had ended at {at}", claim.at));
            }
            for event in &self.seen {
                if let Event::Seen { state: seen, asked, .. } = event
                    && asked > at
                    && seen != state
                {
                    return changed(format!("{state:?} at {at}, seen as {seen:?} at {asked}"));
                }
            }
        }
        self.seen_to_change()
    }

    /// An end that one reader saw, and a later one did not.
    fn seen_to_change(&self) -> Option<Found> {
        let mut looks: Vec<(At, At, State)> = self.seen.iter().filter_map(|event| look(event)).collect();
        looks.sort_by_key(|(asked, ..)| *asked);
        for (number, (_, at, state)) in looks.iter().enumerate().filter(|(_, look)| look.2 != State::Live) {
            if let Some((_, _, later)) = looks[number..].iter().find(|(asked, _, later)| asked > at && later != state) {
                return Some((Fault::TerminalChanged, format!("seen as {state:?}, then as {later:?}")));
            }
        }
        None
    }

    fn attempts_over_maximum(&self, claims: &[Claim]) -> Option<Found> {
        let maximum = self.acknowledged?;
        let seen = self.seen.iter().filter_map(|event| match event {
            Event::Seen { attempt, .. } => Some(*attempt),
            _ => None,
        });
        let most = claims.iter().map(|claim| claim.attempt).chain(seen).max()?;
        (most > maximum).then(|| (Fault::AttemptsOverMaximum, format!("attempt {most} of {maximum}")))
    }
}

/// Applied although somebody else had the job by then, or by somebody who never had it.
fn stale_accepted(claims: &[Claim], settled: &[Settle]) -> Option<Found> {
    for said in settled.iter().filter(|said| said.answer == Answer::Applied) {
        let newer = claims.iter().find(|claim| claim.epoch > said.epoch && claim.at < said.asked);
        if let Some(newer) = newer {
            let told =
                format!("epoch {} applied at {}, epoch {} given at {}", said.epoch, said.at, newer.epoch, newer.at);
            return Some((Fault::StaleAccepted, told));
        }
        let owner = claims.iter().find(|claim| claim.epoch == said.epoch);
        if owner.is_some_and(|owner| owner.worker != said.worker) {
            return Some((Fault::StaleAccepted, format!("epoch {} applied for another worker", said.epoch)));
        }
    }
    None
}

fn backoff_early(claims: &[Claim], settled: &[Settle]) -> Option<Found> {
    for said in settled.iter().filter(|said| said.answer == Answer::Applied) {
        let wait_ms = match said.outcome {
            Outcome::Fail { wait_ms: Some(wait_ms) } | Outcome::Snooze { wait_ms } => wait_ms,
            _ => continue,
        };
        // The wait began no earlier than the call, and the next claim was made no later than its answer was read.
        let early = claims.iter().find(|claim| claim.epoch > said.epoch && claim.at < said.asked + wait_ms);
        if let Some(early) = early {
            let told = format!("waits {wait_ms} ms from {}, given at {}", said.asked, early.at);
            return Some((Fault::BackoffEarly, told));
        }
    }
    None
}

fn claim(event: &Event) -> Claim {
    match event {
        Event::Claimed { epoch, attempt, worker, asked, at, .. } => {
            Claim { epoch: *epoch, attempt: *attempt, worker: *worker, asked: *asked, at: *at }
        }
        other => unreachable!("{other:?} is no claim"),
    }
}

fn settle(event: &Event) -> Settle {
    match event {
        Event::Settled { epoch, worker, outcome, answer, asked, at, .. } => {
            Settle { epoch: *epoch, worker: *worker, outcome: *outcome, answer: *answer, asked: *asked, at: *at }
        }
        other => unreachable!("{other:?} is no outcome"),
    }
}

fn look(event: &Event) -> Option<(At, At, State)> {
    match event {
        Event::Seen { state, asked, at, .. } => Some((*asked, *at, *state)),
        _ => None,
    }
}
