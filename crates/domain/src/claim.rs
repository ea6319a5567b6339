//! Which job a worker gets (Q6): priority, then the affinity it already holds, then the oldest, with a starvation bound.
//!
//! Waiting jobs stand in lanes, one per (queue, kind, priority, affinity), oldest first. The store brings the head of
//! each lane the worker may serve; `next_lanes` says from which lanes to take now.

use crate::name::Label;
use crate::time::Time;

/// The model or other heavy thing a job needs loaded; `None` needs nothing and fits every worker.
pub type Affinity = Option<Label>;

/// The oldest job of a lane that can run now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LaneHead {
    pub lane: i64,
    pub priority: i32,
    pub affinity: Affinity,
    pub waiting_since: Time,
    /// Which of those that came in one moment came first: jobs of one batch do.
    pub order: u128,
    /// How long this lane's queue lets other affinities pass it over.
    pub starvation_ms: i64,
}

impl LaneHead {
    fn place(&self) -> (Time, u128) {
        (self.waiting_since, self.order)
    }

    /// Until when others may be preferred to it.
    fn bound(&self) -> Time {
        self.waiting_since.plus_ms(self.starvation_ms)
    }

    fn is_starved(&self, now: Time) -> bool {
        now.ms_since(self.waiting_since) > self.starvation_ms
    }
}

/// Lanes to take from together, oldest first across all of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub lanes: Vec<i64>,
    /// What the worker holds once it works on these.
    pub affinity: Affinity,
    /// The worker must bring up another affinity for these.
    pub swap: bool,
    /// An older job of another affinity was passed over to save a swap.
    pub passed_over: bool,
}

/// The lanes a worker that holds `held` takes from next; `None` when nothing waits.
pub fn next_lanes(heads: &[LaneHead], held: &Affinity, now: Time) -> Option<Choice> {
    let priority = heads.iter().map(|head| head.priority).max()?;
    let urgent = || heads.iter().filter(move |head| head.priority == priority);
    let fits = |head: &LaneHead, affinity: &Affinity| head.affinity.is_none() || head.affinity == *affinity;

    let oldest_fitting = urgent().filter(|head| fits(head, held)).min_by_key(|head| head.place());
    let oldest_other = urgent().filter(|head| !fits(head, held)).min_by_key(|head| head.place());
    let (affinity, swap) = match (oldest_fitting, oldest_other) {
        (None, None) => return None,
        (Some(_), None) => (held.clone(), false),
        (None, Some(other)) => (other.affinity.clone(), true),
        // A worker that holds nothing has no swap to save: plain age decides.
        (Some(fitting), Some(other)) if held.is_none() && other.place() < fitting.place() => {
            (other.affinity.clone(), true)
        }
        (Some(fitting), Some(_)) => {
            let starved = urgent().filter(|head| !fits(head, held) && head.is_starved(now));
            // A starving lane wins only over younger work: older work that fits is not the one starving it.
            let starved = starved.filter(|head| head.waiting_since < fitting.waiting_since);
            match starved.min_by_key(|head| head.place()) {
                Some(other) => (other.affinity.clone(), true),
                None => (held.clone(), false),
            }
        }
    };
    let chosen: Vec<&LaneHead> = urgent().filter(|head| fits(head, &affinity)).collect();
    let oldest_chosen = chosen.iter().map(|head| head.place()).min()?;
    let passed_over = !swap && oldest_other.is_some_and(|other| other.place() < oldest_chosen);
    Some(Choice { lanes: chosen.iter().map(|head| head.lane).collect(), affinity, swap, passed_over })
}

/// The affinity that is brought up next, where several workers hold `held` between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NextSwap {
    pub affinity: Label,
    /// When at the latest, if a worker is free then; `None` while more urgent work keeps it waiting without a bound.
    pub by: Option<Time>,
}

/// What whoever looks on is told of the rule above: which affinity that nobody holds has its turn next, and by when.
pub fn next_swap(heads: &[LaneHead], held: &[Label], now: Time) -> Option<NextSwap> {
    let fits = |head: &LaneHead| head.affinity.as_ref().is_none_or(|own| held.contains(own));
    let turn = heads.iter().filter(|head| !fits(head)).map(|head| head.priority).max()?;
    let others = heads.iter().filter(|head| !fits(head) && head.priority == turn);
    let is_contested = heads.iter().any(|head| fits(head) && head.priority == turn);
    let next = if is_contested {
        // The first to be starved, each by its own queue's bound; of those that are, the oldest.
        others.min_by_key(|head| (!head.is_starved(now), head.bound().max(now), head.place()))?
    } else {
        others.min_by_key(|head| head.place())?
    };
    let by = if heads.iter().any(|head| fits(head) && head.priority > turn) {
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

    /// Of a queue with a bound of its own.
    fn within(bound_s: i64, head: LaneHead) -> LaneHead {
        LaneHead { starvation_ms: bound_s * 1_000, ..head }
    }

    fn check(heads: &[LaneHead], held: &str, now_s: i64, lanes: &[i64], swap: bool) {
        let held = if held.is_empty() { None } else { label(held) };
        let choice = next_lanes(heads, &held, Time::from_seconds(now_s)).expect("something waits");
        assert_eq!((choice.lanes.as_slice(), choice.swap), (lanes, swap));
    }

    #[test]
    fn q6_priority_comes_before_affinity() {
        check(&[head(1, 0, "llama", 1), head(2, 5, "mistral", 9)], "llama", 10, &[2], true);
    }

    #[test]
    fn q6_the_held_affinity_comes_before_age() {
        check(&[head(1, 0, "llama", 9), head(2, 0, "mistral", 1)], "llama", 10, &[1], false);
    }

    #[test]
    fn q6_past_the_starvation_bound_the_oldest_other_affinity_wins() {
        let heads = [head(1, 0, "llama", 150), head(2, 0, "mistral", 50), head(3, 0, "phi", 40)];
        check(&heads, "llama", 140, &[1], false);
        check(&heads, "llama", 141, &[3], true);
    }

    #[test]
    fn q6_each_lane_is_held_against_its_own_bound() {
        let heads =
            [head(1, 0, "llama", 150), within(600, head(2, 0, "mistral", 50)), within(10, head(3, 0, "phi", 60))];
        check(&heads, "llama", 70, &[1], false);
        check(&heads, "llama", 71, &[3], true);
        check(&heads, "llama", 651, &[2], true);
        let held = [label("llama").expect("one")];
        let told = |now_s| next_swap(&heads, &held, Time::from_seconds(now_s)).map(|next| next.affinity.to_string());
        assert_eq!((told(65), told(651)), (Some("phi".into()), Some("mistral".into())));
    }

    #[test]
    fn without_anything_held_the_oldest_wins() {
        check(&[head(1, 0, "llama", 9), head(2, 0, "mistral", 1)], "", 10, &[2], true);
        check(&[head(1, 0, "", 9), head(2, 0, "mistral", 1)], "", 10, &[1, 2], true);
        check(&[head(1, 0, "", 1), head(2, 0, "mistral", 9)], "", 10, &[1], false);
    }

    #[test]
    fn work_that_needs_no_affinity_fits_every_worker() {
        check(&[head(1, 0, "", 9), head(2, 0, "llama", 8)], "llama", 10, &[1, 2], false);
    }

    #[test]
    fn a_saved_swap_is_told() {
        let heads = [head(1, 0, "llama", 9), head(2, 0, "mistral", 1)];
        let choice = next_lanes(&heads, &label("llama"), Time::from_seconds(10)).expect("something waits");
        assert!(choice.passed_over);
    }

    #[test]
    fn of_those_that_came_in_one_batch_the_first_is_the_oldest() {
        let heads = [head(2, 0, "llama", 1), head(1, 0, "mistral", 1)];
        let choice = |held: &str| next_lanes(&heads, &label(held), Time::from_seconds(10)).expect("something waits");
        assert_eq!(choice("phi").lanes, [1]);
        assert!(choice("llama").passed_over, "mistral came before");
        assert!(!choice("mistral").passed_over);
    }

    #[test]
    fn q6_the_next_swap_is_told_with_its_bound() {
        let now = Time::from_seconds(60);
        let held = [label("llama").expect("one")];
        let told = |heads: &[LaneHead]| next_swap(heads, &held, now).map(|next| (next.affinity.to_string(), next.by));
        assert_eq!(told(&[head(1, 0, "llama", 9), head(2, 0, "", 1)]), None, "nothing else waits");
        let (younger, older) = (head(2, 0, "phi", 30), head(3, 0, "mistral", 20));
        let both = [head(1, 0, "llama", 50), younger.clone(), older.clone()];
        assert_eq!(told(&both), Some(("mistral".into(), Some(Time::from_seconds(120)))), "past its bound of 100 s");
        assert_eq!(told(&[younger, older.clone()]), Some(("mistral".into(), Some(now))), "nothing that is held waits");
        assert_eq!(told(&[head(1, 5, "llama", 50), older]), Some(("mistral".into(), None)), "urgent work has no end");
    }

    proptest! {
        /// What is foretold for one worker is what the rule then does.
        #[test]
        fn q6_the_foretold_swap_happens_when_it_was_foretold(
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
            let foretold = next_swap(&heads, std::slice::from_ref(held.as_ref().expect("one")), now);
            let choice = next_lanes(&heads, &held, now).expect("something waits");
            if choice.swap {
                let next = foretold.expect("a swap was due");
                prop_assert_eq!((Some(next.affinity), next.by), (choice.affinity, Some(now)));
            } else if let Some(NextSwap { affinity, by: Some(by) }) = foretold {
                // Work that fits and is older goes first, bound or not; it is out of the way before long.
                let top = heads.iter().map(|head| head.priority).max().expect("one");
                let is_next = |head: &&LaneHead| head.priority == top && head.affinity.as_ref() == Some(&affinity);
                let due = |head: &&LaneHead| head.bound().max(now) == by;
                let next = heads.iter().filter(is_next).filter(due);
                let next = next.min_by_key(|head| (!head.is_starved(now), head.place())).expect("it waits");
                let fits = |head: &LaneHead| head.affinity.is_none() || head.affinity == held;
                let is_left = |head: &&LaneHead| !fits(head) || head.waiting_since > next.waiting_since;
                let left: Vec<_> = heads.iter().filter(is_left).cloned().collect();
                let at = if next.is_starved(now) { now } else { by.plus_ms(1) };
                let then = next_lanes(&left, &held, at).expect("it waits still");
                // Where nothing that fits is left, plain age decides.
                if left.iter().any(|head| head.priority == top && fits(head)) {
                    prop_assert_eq!(then.affinity, Some(affinity));
                }
            }
        }

        /// The rules of Q6, said the other way round, for any set of lanes.
        #[test]
        fn the_choice_obeys_q6(
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
                let oldest = others.iter().filter(is_due).map(|o| o.place()).min().expect("a swap has a cause");
                let taken = others.iter().filter(is_due).filter(|o| o.affinity == choice.affinity).map(|o| o.place()).min();
                prop_assert_eq!(taken, Some(oldest));
            }
        }
    }
}
