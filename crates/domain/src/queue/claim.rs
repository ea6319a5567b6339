//! The claim order: priority, then the affinity that the worker has loaded, then age, with a starvation bound.
//!
//! Queued jobs are grouped into lanes, one per (queue, kind, priority, affinity), oldest first. The store reads the
//! head of each lane that the worker serves, and [`next_lanes`] selects the lanes to claim from.

use crate::name::Label;
use crate::time::Time;

/// The model or other expensive resource that a job needs loaded. `None` fits every worker.
pub type Affinity = Option<Label>;

/// The oldest claimable job of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneHead {
    pub lane: i64,
    pub priority: i32,
    pub affinity: Affinity,
    pub waiting_since: Time,
    /// Orders jobs with the same `waiting_since`, such as those of one batch.
    pub order: u128,
    /// How long this lane's queue allows jobs of other affinities to pass it over.
    pub starvation_ms: i64,
}

impl LaneHead {
    fn age(&self) -> (Time, u128) {
        (self.waiting_since, self.order)
    }

    /// The time until which jobs of other affinities may be preferred.
    fn bound(&self) -> Time {
        self.waiting_since.plus_ms(self.starvation_ms)
    }

    fn is_starved(&self, now: Time) -> bool {
        now.ms_since(self.waiting_since) > self.starvation_ms
    }
}

/// Lanes to claim from together, oldest job first across all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub lanes: Vec<i64>,
    /// The affinity that the worker has loaded once it runs these jobs.
    pub affinity: Affinity,
    /// True if the worker must load another affinity for these jobs.
    pub swap: bool,
    /// True if an older job of another affinity was passed over to avoid a swap.
    pub passed_over: bool,
}

/// Returns the lanes that a worker with the affinity `held` claims from next. `None` if no job is queued.
pub fn next_lanes(heads: &[LaneHead], held: &Affinity, now: Time) -> Option<Choice> {
    let priority = heads.iter().map(|head| head.priority).max()?;
    let urgent = || heads.iter().filter(move |head| head.priority == priority);
    let fits = |head: &LaneHead, affinity: &Affinity| head.affinity.is_none() || head.affinity == *affinity;

    let oldest_fitting = urgent().filter(|head| fits(head, held)).min_by_key(|head| head.age());
    let oldest_other = urgent().filter(|head| !fits(head, held)).min_by_key(|head| head.age());
    let (affinity, swap) = match (oldest_fitting, oldest_other) {
        (None, None) => return None,
        (Some(_), None) => (held.clone(), false),
        (None, Some(other)) => (other.affinity.clone(), true),
        // A worker without an affinity has no swap to avoid: age decides.
        (Some(fitting), Some(other)) if held.is_none() && other.age() < fitting.age() => (other.affinity.clone(), true),
        (Some(fitting), Some(_)) => {
            let starved = urgent().filter(|head| !fits(head, held) && head.is_starved(now));
            // A starved lane wins only over younger jobs. Older jobs that fit are not the ones that starve it.
            let starved = starved.filter(|head| head.waiting_since < fitting.waiting_since);
            match starved.min_by_key(|head| head.age()) {
                Some(other) => (other.affinity.clone(), true),
                None => (held.clone(), false),
            }
        }
    };
    let chosen: Vec<&LaneHead> = urgent().filter(|head| fits(head, &affinity)).collect();
    let oldest_chosen = chosen.iter().map(|head| head.age()).min()?;
    let passed_over = !swap && oldest_other.is_some_and(|other| other.age() < oldest_chosen);
    Some(Choice { lanes: chosen.iter().map(|head| head.lane).collect(), affinity, swap, passed_over })
}

/// The affinity that will be loaded next by one of several workers, which together have `held` loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextSwap {
    pub affinity: Label,
    /// The latest time of the swap, if a worker is free then. `None` while more urgent jobs delay it without a bound.
    pub by: Option<Time>,
}

/// Predicts the next swap of [`next_lanes`]: the affinity, not loaded by any worker, that comes next, and its latest
/// time.
pub fn next_swap(heads: &[LaneHead], held: &[Label], now: Time) -> Option<NextSwap> {
    let fits = |head: &LaneHead| head.affinity.as_ref().is_none_or(|own| held.contains(own));
    let swap_priority = heads.iter().filter(|head| !fits(head)).map(|head| head.priority).max()?;
    let others = heads.iter().filter(|head| !fits(head) && head.priority == swap_priority);
    let is_contested = heads.iter().any(|head| fits(head) && head.priority == swap_priority);
    let next = if is_contested {
        // The lane that is starved first, by the bound of its own queue. Among starved lanes, the oldest.
        others.min_by_key(|head| (!head.is_starved(now), head.bound().max(now), head.age()))?
    } else {
        others.min_by_key(|head| head.age())?
    };
    let by = if heads.iter().any(|head| fits(head) && head.priority > swap_priority) {
        None
    } else if is_contested {
        Some(next.bound().max(now))
    } else {
        Some(now)
    };
    Some(NextSwap { affinity: next.affinity.clone()?, by })
}

#[cfg(test)]
mod optimum;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn label(text: &str) -> Affinity {
        Some(Label::new(text).expect("a label"))
    }

    fn head(lane: i64, priority: i32, affinity: &str, since_s: i64) -> LaneHead {
        LaneHead {
            lane,
            priority,
            affinity: if affinity.is_empty() { None } else { label(affinity) },
            waiting_since: Time::from_seconds(since_s),
            order: lane as u128,
            starvation_ms: 100_000,
        }
    }

    /// A lane of a queue with its own starvation bound.
    fn within(bound_s: i64, head: LaneHead) -> LaneHead {
        LaneHead { starvation_ms: bound_s * 1_000, ..head }
    }

    fn check(heads: &[LaneHead], held: &str, now_s: i64, lanes: &[i64], swap: bool) {
        let held = if held.is_empty() { None } else { label(held) };
        let choice = next_lanes(heads, &held, Time::from_seconds(now_s)).expect("something waits");
        assert_eq!((choice.lanes.as_slice(), choice.swap), (lanes, swap));
    }

    /// Requirement Q6.
    #[test]
    fn priority_comes_before_affinity() {
        check(&[head(1, 0, "llama", 1), head(2, 5, "mistral", 9)], "llama", 10, &[2], true);
    }

    /// Requirement Q6.
    #[test]
    fn the_loaded_affinity_comes_before_age() {
        check(&[head(1, 0, "llama", 9), head(2, 0, "mistral", 1)], "llama", 10, &[1], false);
    }

    /// Requirement Q6.
    #[test]
    fn past_the_starvation_bound_the_oldest_other_affinity_is_chosen() {
        let heads = [head(1, 0, "llama", 150), head(2, 0, "mistral", 50), head(3, 0, "phi", 40)];
        check(&heads, "llama", 140, &[1], false);
        check(&heads, "llama", 141, &[3], true);
    }

    /// Requirement Q6.
    #[test]
    fn each_lane_has_its_own_starvation_bound() {
        let heads =
            [head(1, 0, "llama", 150), within(600, head(2, 0, "mistral", 50)), within(10, head(3, 0, "phi", 60))];
        check(&heads, "llama", 70, &[1], false);
        check(&heads, "llama", 71, &[3], true);
        check(&heads, "llama", 651, &[2], true);
        let held = [label("llama").expect("one")];
        let next = |now_s| next_swap(&heads, &held, Time::from_seconds(now_s)).map(|next| next.affinity.to_string());
        assert_eq!((next(65), next(651)), (Some("phi".into()), Some("mistral".into())));
    }

    #[test]
    fn without_a_loaded_affinity_the_oldest_job_is_chosen() {
        check(&[head(1, 0, "llama", 9), head(2, 0, "mistral", 1)], "", 10, &[2], true);
        check(&[head(1, 0, "", 9), head(2, 0, "mistral", 1)], "", 10, &[1, 2], true);
        check(&[head(1, 0, "", 1), head(2, 0, "mistral", 9)], "", 10, &[1], false);
    }

    #[test]
    fn a_job_without_an_affinity_fits_every_worker() {
        check(&[head(1, 0, "", 9), head(2, 0, "llama", 8)], "llama", 10, &[1, 2], false);
    }

    #[test]
    fn a_choice_that_saves_a_swap_reports_the_passed_over_lane() {
        let heads = [head(1, 0, "llama", 9), head(2, 0, "mistral", 1)];
        let choice = next_lanes(&heads, &label("llama"), Time::from_seconds(10)).expect("something waits");
        assert!(choice.passed_over);
    }

    #[test]
    fn within_a_batch_the_first_job_is_the_oldest() {
        let heads = [head(2, 0, "llama", 1), head(1, 0, "mistral", 1)];
        let choice = |held: &str| next_lanes(&heads, &label(held), Time::from_seconds(10)).expect("something waits");
        assert_eq!(choice("phi").lanes, [1]);
        assert!(choice("llama").passed_over, "mistral came before");
        assert!(!choice("mistral").passed_over);
    }

    /// Requirement Q6.
    #[test]
    fn the_next_swap_is_predicted_with_its_deadline() {
        let now = Time::from_seconds(60);
        let held = [label("llama").expect("one")];
        let next = |heads: &[LaneHead]| next_swap(heads, &held, now).map(|next| (next.affinity.to_string(), next.by));
        assert_eq!(next(&[head(1, 0, "llama", 9), head(2, 0, "", 1)]), None, "no other affinity is queued");
        let (younger, older) = (head(2, 0, "phi", 30), head(3, 0, "mistral", 20));
        let both = [head(1, 0, "llama", 50), younger.clone(), older.clone()];
        assert_eq!(next(&both), Some(("mistral".into(), Some(Time::from_seconds(120)))), "past its bound of 100 s");
        assert_eq!(next(&[younger, older.clone()]), Some(("mistral".into(), Some(now))), "no job of a loaded affinity");
        assert_eq!(next(&[head(1, 5, "llama", 50), older]), Some(("mistral".into(), None)), "urgent work has no bound");
    }

    proptest! {
        /// The prediction for a single worker equals what `next_lanes` then does.
        /// Requirement Q6.
        #[test]
        fn the_predicted_swap_happens_at_the_predicted_time(
            lanes in proptest::collection::vec((0i32..2, 0usize..4, 0i64..200, 0i64..250), 1..20), held in 1usize..4,
            now in 200i64..300
        ) {
            let names = ["", "llama", "mistral", "phi"];
            let lane = |(n, (p, a, s, bound)): (usize, &(i32, usize, i64, i64))| {
                within(*bound, head(n as i64, *p, names[*a], *s))
            };
            let heads: Vec<_> = lanes.iter().enumerate().map(lane).collect();
            let held = label(names[held]);
            let now = Time::from_seconds(now);
            let predicted = next_swap(&heads, std::slice::from_ref(held.as_ref().expect("one")), now);
            let choice = next_lanes(&heads, &held, now).expect("something waits");
            if choice.swap {
                let next = predicted.expect("a swap was due");
                prop_assert_eq!((Some(next.affinity), next.by), (choice.affinity, Some(now)));
            } else if let Some(NextSwap { affinity, by: Some(by) }) = predicted {
                // Older jobs that fit go first, whether or not the bound has passed. They are removed here.
                let top = heads.iter().map(|head| head.priority).max().expect("one");
                let is_next = |head: &&LaneHead| head.priority == top && head.affinity.as_ref() == Some(&affinity);
                let due = |head: &&LaneHead| head.bound().max(now) == by;
                let next = heads.iter().filter(is_next).filter(due);
                let next = next.min_by_key(|head| (!head.is_starved(now), head.age())).expect("it is queued");
                let fits = |head: &LaneHead| head.affinity.is_none() || head.affinity == held;
                let remains = |head: &&LaneHead| !fits(head) || head.waiting_since > next.waiting_since;
                let remaining: Vec<_> = heads.iter().filter(remains).cloned().collect();
                let at = if next.is_starved(now) { now } else { by.plus_ms(1) };
                let then = next_lanes(&remaining, &held, at).expect("it is still queued");
                // If no job that fits remains, age decides.
                if remaining.iter().any(|head| head.priority == top && fits(head)) {
                    prop_assert_eq!(then.affinity, Some(affinity));
                }
            }
        }

        /// The claim order, stated as properties of any set of lanes.
        #[test]
        fn any_lane_choice_obeys_the_claim_order(
            lanes in proptest::collection::vec((0i32..3, 0usize..4, 0i64..200, 0i64..250), 1..20), held in 0usize..4,
            now in 200i64..300
        ) {
            let names = ["", "llama", "mistral", "phi"];
            let lane = |(n, (p, a, s, bound)): (usize, &(i32, usize, i64, i64))| {
                within(*bound, head(n as i64, *p, names[*a], *s))
            };
            let heads: Vec<_> = lanes.iter().enumerate().map(lane).collect();
            let held = if held == 0 { None } else { label(names[held]) };
            let now = Time::from_seconds(now);
            let choice = next_lanes(&heads, &held, now).expect("something waits");
            let top = heads.iter().map(|h| h.priority).max().expect("one");
            prop_assert!(!choice.lanes.is_empty());
            for lane in &choice.lanes {
                let chosen = &heads[*lane as usize];
                prop_assert_eq!(chosen.priority, top);
                prop_assert!(chosen.affinity.is_none() || chosen.affinity == choice.affinity);
            }
            prop_assert_eq!(choice.swap, choice.affinity != held);
            let fitting: Vec<_> = heads.iter().filter(|h| h.priority == top && (h.affinity.is_none() || h.affinity == held)).collect();
            let others: Vec<_> = heads.iter().filter(|h| h.priority == top && h.affinity.is_some() && h.affinity != held).collect();
            let starving = others.iter().any(|o| now.ms_since(o.waiting_since) > o.starvation_ms
                && fitting.iter().all(|f| o.waiting_since < f.waiting_since));
            if held.is_some() && !fitting.is_empty() {
                prop_assert_eq!(choice.swap, starving);
            }
            if choice.swap {
                let is_due = |o: &&&LaneHead| held.is_none() || fitting.is_empty() || o.is_starved(now);
                let oldest = others.iter().filter(is_due).map(|o| o.age()).min().expect("a swap has a cause");
                let taken = others.iter().filter(is_due).filter(|o| o.affinity == choice.affinity).map(|o| o.age()).min();
                prop_assert_eq!(taken, Some(oldest));
            }
        }
    }
}
