//! The line in which queued jobs stand, and a job's place in it.
//!
//! The order is that of the claim (Q6) as far as it can be known beforehand: priority, then what the workers hold
//! already, then age.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::claim::Affinity;
use crate::id::JobId;
use crate::time::Time;

/// A job that waits, with what its place depends on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Waiting {
    pub id: JobId,
    pub priority: i32,
    pub run_at: Time,
    pub affinity: Affinity,
    /// Which of the line's kinds of work it is: the caller's own number.
    pub lane: i64,
}

/// Those that a line was looked at for.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// The oldest of each lane.
    lanes: Vec<Lane>,
    /// Up to where the look reached, when some lane has more than was looked at: what is younger may be missing.
    pub complete_until: Option<Time>,
    /// All that wait in the queue, from kept counts.
    pub queued: u64,
}

/// Jobs that differ in nothing but their age, by it.
#[derive(Clone, Debug)]
struct Lane {
    lane: i64,
    priority: i32,
    affinity: Affinity,
    waiting: Vec<(Time, JobId)>,
}

impl Lane {
    /// A job does not wait for itself, though its time may have moved since the look.
    fn ahead_of(&self, (run_at, id): (Time, JobId)) -> usize {
        let ahead = self.waiting.partition_point(|age| *age < (run_at, id));
        ahead - self.waiting[..ahead].iter().filter(|(_, other)| *other == id).count()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    pub ahead: u64,
    pub is_estimate: bool,
    pub ahead_by_affinity: Vec<(String, u64)>,
    /// How many of those ahead are of which lane.
    pub ahead_by_lane: BTreeMap<i64, u64>,
}

impl Line {
    pub fn new(waiting: impl IntoIterator<Item = Waiting>) -> Self {
        let mut lanes: BTreeMap<i64, Lane> = BTreeMap::new();
        for Waiting { id, priority, run_at, affinity, lane } in waiting {
            let of = lanes.entry(lane).or_insert_with(|| Lane { lane, priority, affinity, waiting: Vec::new() });
            of.waiting.push((run_at, id));
        }
        for lane in lanes.values_mut() {
            lane.waiting.sort_unstable();
        }
        Self { lanes: lanes.into_values().collect(), ..Self::default() }
    }

    /// How many of them were looked at.
    pub fn seen(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.waiting.len() as u64).sum()
    }

    /// Where a job stands among those that some worker which has `loaded` these could take before it.
    pub fn place(&self, job: &Waiting, loaded: &[&str], now: Time) -> Place {
        let holds = |affinity: &Affinity| affinity.as_ref().is_some_and(|one| loaded.contains(&one.as_str()));
        let turn = |priority: i32, affinity: &Affinity| (Reverse(priority), !holds(affinity));
        let (mine, my_age) = (turn(job.priority, &job.affinity), (job.run_at, job.id));
        let mut place = Place::default();
        let mut by_affinity: BTreeMap<&str, u64> = BTreeMap::new();
        for lane in &self.lanes {
            let ahead = match turn(lane.priority, &lane.affinity).cmp(&mine) {
                Ordering::Less => lane.waiting.len(),
                Ordering::Equal => lane.ahead_of(my_age),
                Ordering::Greater => 0,
            } as u64;
            if ahead == 0 {
                continue;
            }
            place.ahead += ahead;
            place.ahead_by_lane.insert(lane.lane, ahead);
            if let Some(affinity) = &lane.affinity {
                *by_affinity.entry(affinity.as_str()).or_default() += ahead;
            }
        }
        let mut by_affinity: Vec<(String, u64)> = by_affinity.into_iter().map(|(a, n)| (a.to_owned(), n)).collect();
        by_affinity.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        place.ahead_by_affinity = by_affinity;
        // Of jobs that came in one moment the look may have seen only some.
        let unseen = |until: &Time| job.run_at == *until && !self.has_seen(job);
        if let Some(until) = self.complete_until.filter(|until| job.run_at > *until || unseen(until)) {
            self.estimate(job, until, now, &mut place);
        }
        place
    }

    fn has_seen(&self, job: &Waiting) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.lane == job.lane);
        lane.is_some_and(|lane| lane.waiting.binary_search(&(job.run_at, job.id)).is_ok())
    }

    /// Past the look, jobs are taken to have come evenly: the share of time says the share of the line. One of many that
    /// came at the very moment where the look ended is taken to stand in their middle.
    fn estimate(&self, job: &Waiting, until: Time, now: Time, place: &mut Place) {
        let looked_at = place.ahead;
        let unseen = self.queued.saturating_sub(self.seen());
        let span = now.ms_since(until).max(1) as f64;
        let share = match job.run_at == until {
            true => 0.5,
            false => (job.run_at.ms_since(until).max(0) as f64 / span).min(1.0),
        };
        place.ahead = looked_at + (unseen as f64 * share).round() as u64;
        place.is_estimate = true;
        // Those not seen are taken to be like those that were.
        if looked_at > 0 {
            let scale = place.ahead as f64 / looked_at as f64;
            for count in place.ahead_by_lane.values_mut() {
                *count = (*count as f64 * scale).round() as u64;
            }
        } else if place.ahead > 0 {
            place.ahead_by_lane.insert(job.lane, place.ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::name::Label;

    fn waiting(number: u128, priority: i32, affinity: Option<&str>) -> Waiting {
        Waiting {
            id: JobId::new(Uuid::from_u128(number)),
            priority,
            run_at: Time::from_seconds(number as i64),
            affinity: affinity.map(Label::stored),
            lane: i64::from(priority) * 10 + affinity.map_or(0, |affinity| affinity.len() as i64),
        }
    }

    #[test]
    fn s1_priority_counts_first_then_what_is_loaded_then_age() {
        let line = Line::new([
            waiting(1, 0, Some("llama3")),
            waiting(2, 0, Some("mistral")),
            waiting(3, 5, None),
            waiting(9, 0, Some("mistral")),
        ]);
        let now = Time::from_seconds(20);
        let me = waiting(4, 0, Some("llama3"));
        let place = line.place(&me, &["mistral"], now);
        assert_eq!((place.ahead, place.is_estimate), (4, false), "the younger mistral job goes first too");
        assert_eq!(place.ahead_by_affinity, [("mistral".to_owned(), 2), ("llama3".to_owned(), 1)]);
        assert_eq!(line.place(&me, &["llama3"], now).ahead, 2, "one more urgent, one older with the same model");
        assert_eq!(line.place(&waiting(10, 9, None), &[], now).ahead, 0);
        assert_eq!(line.place(&waiting(2, 0, Some("mistral")), &[], now).ahead, 2, "a job does not wait for itself");
        let later = Waiting { run_at: Time::from_seconds(5), ..waiting(2, 0, Some("mistral")) };
        assert_eq!(line.place(&later, &[], now).ahead, 2, "nor when its time has moved");
    }

    #[test]
    fn s1_past_the_look_the_place_is_worked_out_and_says_so() {
        let first = Line::new((0..100).map(|n| waiting(n, 0, None)));
        let line = Line { complete_until: Some(Time::from_seconds(99)), queued: 1_100, ..first };
        let place = line.place(&waiting(599, 0, None), &[], Time::from_seconds(1_099));
        assert!(place.is_estimate);
        assert_eq!((place.ahead, place.ahead_by_lane[&0]), (600, 600));
    }

    #[test]
    fn s1_one_of_a_large_batch_past_the_look_does_not_pretend_to_know_its_place() {
        let at_once = |number: u128| Waiting { run_at: Time::from_seconds(5), ..waiting(number, 0, None) };
        let first = Line::new((0..100).map(at_once));
        let line = Line { complete_until: Some(Time::from_seconds(5)), queued: 1_100, ..first };
        let place = |number| line.place(&at_once(number), &[], Time::from_seconds(5));
        assert_eq!((place(700).ahead, place(700).is_estimate), (600, true));
        assert_eq!((place(40).ahead, place(40).is_estimate), (40, false), "what was seen is known");
    }
}
