//! Queue positions: how many jobs will be claimed before a given queued job.
//!
//! The order follows the claim order as far as it can be predicted: priority, then affinities that workers have loaded,
//! then age.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeMap;

use crate::id::JobId;
use crate::queue::claim::Affinity;
use crate::time::Time;

/// A queued job and the properties that determine its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueuedJob {
    pub id: JobId,
    pub priority: i32,
    pub run_at: Time,
    pub affinity: Affinity,
    /// The caller's number for the job's lane. Jobs of one lane differ only in age.
    pub lane: i64,
}

/// The jobs of a queue, grouped by lane, as of one scan.
#[derive(Clone, Debug, Default)]
pub struct QueueOrder {
    /// Sorted by lane number; within a lane oldest first.
    lanes: Vec<Lane>,
    /// Set if the scan did not read all jobs of some lane. The order is complete only for jobs up to this time.
    pub complete_until: Option<Time>,
    /// All queued jobs, from the maintained counters.
    pub queued: u64,
}

/// Jobs that differ only in age, oldest first.
#[derive(Clone, Debug)]
struct Lane {
    lane: i64,
    priority: i32,
    affinity: Affinity,
    waiting: Vec<(Time, JobId)>,
}

impl Lane {
    /// Excludes the job itself, whose time may have changed since the scan.
    fn ahead_of(&self, (run_at, id): (Time, JobId)) -> usize {
        let ahead = self.waiting.partition_point(|age| *age < (run_at, id));
        ahead - self.waiting[..ahead].iter().filter(|(_, other)| *other == id).count()
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct JobPosition {
    pub ahead: u64,
    pub is_estimate: bool,
    pub ahead_by_affinity: Vec<(String, u64)>,
    /// Jobs ahead per lane.
    pub ahead_by_lane: BTreeMap<i64, u64>,
}

impl QueueOrder {
    pub fn new(waiting: impl IntoIterator<Item = QueuedJob>) -> Self {
        let mut lanes: BTreeMap<i64, Lane> = BTreeMap::new();
        for QueuedJob { id, priority, run_at, affinity, lane } in waiting {
            let of = lanes.entry(lane).or_insert_with(|| Lane { lane, priority, affinity, waiting: Vec::new() });
            of.waiting.push((run_at, id));
        }
        for lane in lanes.values_mut() {
            lane.waiting.sort_unstable();
        }
        Self { lanes: lanes.into_values().collect(), ..Self::default() }
    }

    /// The waiting jobs of a lane that the scan read, oldest first.
    pub fn waiting(&self, lane: i64) -> &[(Time, JobId)] {
        self.lanes.binary_search_by_key(&lane, |one| one.lane).map_or(&[], |place| &self.lanes[place].waiting)
    }

    /// Number of jobs that the scan read.
    pub fn scanned(&self) -> u64 {
        self.lanes.iter().map(|lane| lane.waiting.len() as u64).sum()
    }

    /// The position of a job among the jobs that a worker with these affinities `loaded` could claim before it.
    pub fn position(&self, job: &QueuedJob, loaded: &[&str], now: Time) -> JobPosition {
        let holds = |affinity: &Affinity| affinity.as_ref().is_some_and(|one| loaded.contains(&one.as_str()));
        let rank = |priority: i32, affinity: &Affinity| (Reverse(priority), !holds(affinity));
        let (own_rank, own_age) = (rank(job.priority, &job.affinity), (job.run_at, job.id));
        let mut position = JobPosition::default();
        let mut by_affinity: BTreeMap<&str, u64> = BTreeMap::new();
        for lane in &self.lanes {
            let ahead = match rank(lane.priority, &lane.affinity).cmp(&own_rank) {
                Ordering::Less => lane.waiting.len(),
                Ordering::Equal => lane.ahead_of(own_age),
                Ordering::Greater => 0,
            } as u64;
            if ahead == 0 {
                continue;
            }
            position.ahead += ahead;
            position.ahead_by_lane.insert(lane.lane, ahead);
            if let Some(affinity) = &lane.affinity {
                *by_affinity.entry(affinity.as_str()).or_default() += ahead;
            }
        }
        let mut by_affinity: Vec<(String, u64)> = by_affinity.into_iter().map(|(a, n)| (a.to_owned(), n)).collect();
        by_affinity.sort_by(|one, other| other.1.cmp(&one.1).then_with(|| one.0.cmp(&other.0)));
        position.ahead_by_affinity = by_affinity;
        // The scan may have read only some of the jobs with the same timestamp.
        let unscanned = |until: &Time| job.run_at == *until && !self.contains(job);
        if let Some(until) = self.complete_until.filter(|until| job.run_at > *until || unscanned(until)) {
            self.estimate(job, until, now, &mut position);
        }
        position
    }

    fn contains(&self, job: &QueuedJob) -> bool {
        let lane = self.lanes.iter().find(|lane| lane.lane == job.lane);
        lane.is_some_and(|lane| lane.waiting.binary_search(&(job.run_at, job.id)).is_ok())
    }

    /// Beyond the scan, arrivals are assumed to be uniform: the share of time is the share of the unscanned jobs. For a
    /// job with the same timestamp as the end of the scan, the middle is assumed.
    fn estimate(&self, job: &QueuedJob, until: Time, now: Time, position: &mut JobPosition) {
        let scanned_ahead = position.ahead;
        let unscanned = self.queued.saturating_sub(self.scanned());
        let span = now.ms_since(until).max(1) as f64;
        let share = match job.run_at == until {
            true => 0.5,
            false => (job.run_at.ms_since(until).max(0) as f64 / span).min(1.0),
        };
        position.ahead = scanned_ahead + (unscanned as f64 * share).round() as u64;
        position.is_estimate = true;
        // The unscanned jobs are assumed to be distributed like the scanned ones.
        if scanned_ahead > 0 {
            let scale = position.ahead as f64 / scanned_ahead as f64;
            for count in position.ahead_by_lane.values_mut() {
                *count = (*count as f64 * scale).round() as u64;
            }
        } else if position.ahead > 0 {
            position.ahead_by_lane.insert(job.lane, position.ahead);
        }
    }
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::name::Label;

    fn waiting(number: u128, priority: i32, affinity: Option<&str>) -> QueuedJob {
        QueuedJob {
            id: JobId::new(Uuid::from_u128(number)),
            priority,
            run_at: Time::from_seconds(number as i64),
            affinity: affinity.map(Label::stored),
            lane: i64::from(priority) * 10 + affinity.map_or(0, |affinity| affinity.len() as i64),
        }
    }

    /// Requirement S1.
    #[test]
    fn queue_position_orders_by_priority_then_loaded_affinity_then_age() {
        let order = QueueOrder::new([
            waiting(1, 0, Some("llama3")),
            waiting(2, 0, Some("mistral")),
            waiting(3, 5, None),
            waiting(9, 0, Some("mistral")),
        ]);
        let now = Time::from_seconds(20);
        let me = waiting(4, 0, Some("llama3"));
        let position = order.position(&me, &["mistral"], now);
        assert_eq!((position.ahead, position.is_estimate), (4, false), "the younger mistral job goes first too");
        assert_eq!(position.ahead_by_affinity, [("mistral".to_owned(), 2), ("llama3".to_owned(), 1)]);
        assert_eq!(order.position(&me, &["llama3"], now).ahead, 2, "one more urgent, one older with the same model");
        assert_eq!(order.position(&waiting(10, 9, None), &[], now).ahead, 0);
        assert_eq!(
            order.position(&waiting(2, 0, Some("mistral")), &[], now).ahead,
            2,
            "a job does not wait for itself"
        );
        let later = QueuedJob { run_at: Time::from_seconds(5), ..waiting(2, 0, Some("mistral")) };
        assert_eq!(order.position(&later, &[], now).ahead, 2, "also when its time has changed");
    }

    /// Requirement S1.
    #[test]
    fn beyond_the_scanned_jobs_the_position_is_marked_as_an_estimate() {
        let first = QueueOrder::new((0..100).map(|n| waiting(n, 0, None)));
        let order = QueueOrder { complete_until: Some(Time::from_seconds(99)), queued: 1_100, ..first };
        let position = order.position(&waiting(599, 0, None), &[], Time::from_seconds(1_099));
        assert!(position.is_estimate);
        assert_eq!((position.ahead, position.ahead_by_lane[&0]), (600, 600));
    }

    /// Requirement S1.
    #[test]
    fn a_position_beyond_the_scan_within_a_large_batch_is_an_estimate() {
        let at_once = |number: u128| QueuedJob { run_at: Time::from_seconds(5), ..waiting(number, 0, None) };
        let first = QueueOrder::new((0..100).map(at_once));
        let order = QueueOrder { complete_until: Some(Time::from_seconds(5)), queued: 1_100, ..first };
        let position = |number| order.position(&at_once(number), &[], Time::from_seconds(5));
        assert_eq!((position(700).ahead, position(700).is_estimate), (600, true));
        assert_eq!((position(40).ahead, position(40).is_estimate), (40, false), "scanned jobs have exact positions");
    }
}
