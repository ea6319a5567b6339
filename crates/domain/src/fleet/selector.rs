//! Selectors: predicates over facts and their ages that determine which subjects a process works on.
//!
//! A verdict includes the time at which it changes by age alone. Until then no new evaluation is needed.

use std::collections::BTreeMap;

use crate::limits::FACT_GRACE_S;
use crate::name::Name;
use crate::time::Time;

/// A subject is eligible if it is of this kind, and all conditions of `all`, at least one of `any` (unless empty) and
/// none of `not` hold. An empty selector selects every subject.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector {
    pub kind: Option<Name>,
    pub all: Vec<Condition>,
    pub any: Vec<Condition>,
    pub not: Vec<Condition>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub fact: Name,
    pub test: Test,
}

/// The test of a fact. For a missing fact only `Exists(false)` holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    Exists(bool),
    Equals(FactValue),
    /// True if the fact was set at least this long ago.
    OlderThan {
        seconds: i64,
    },
}

/// A fact's value as canonical JSON: equal values are equal text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactValue(pub String);

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    pub value: FactValue,
    pub at: Time,
}

pub type SubjectFacts = BTreeMap<Name, Fact>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub eligible: bool,
    /// When eligibility changes if no fact changes. `None`: never.
    pub changes_at: Option<Time>,
}

/// The start of service when outages are not taken into account.
const EVER: Time = Time::from_micros(i64::MIN);

impl Selector {
    pub fn evaluate(&self, kind: Option<&str>, facts: &SubjectFacts, now: Time) -> Verdict {
        self.evaluate_since(EVER, kind, facts, now)
    }

    /// Same as `evaluate`, when the service has been up only since `since`: a fact counts as old only after there was
    /// time to renew it.
    pub fn evaluate_since(&self, since: Time, kind: Option<&str>, facts: &SubjectFacts, now: Time) -> Verdict {
        if self.kind.as_ref().is_some_and(|wanted| Some(wanted.as_str()) != kind) {
            return Verdict { eligible: false, changes_at: None };
        }
        let eligible = self.holds(since, facts, now);
        let times = self.change_times(since, facts, now);
        let changes_at = times.into_iter().find(|time| self.holds(since, facts, *time) != eligible);
        Verdict { eligible, changes_at }
    }

    fn holds(&self, since: Time, facts: &SubjectFacts, now: Time) -> bool {
        let holds = |condition: &Condition| condition.holds(since, facts, now);
        self.all.iter().all(holds) && (self.any.is_empty() || self.any.iter().any(holds)) && !self.not.iter().any(holds)
    }

    /// Times after `now` at which a condition becomes true by age, earliest first.
    fn change_times(&self, since: Time, facts: &SubjectFacts, now: Time) -> Vec<Time> {
        let conditions = self.all.iter().chain(&self.any).chain(&self.not);
        let ripe_at = conditions.filter_map(|condition| condition.ripens_at(since, facts));
        let mut times: Vec<Time> = ripe_at.filter(|time| *time > now).collect();
        times.sort_unstable();
        times.dedup();
        times
    }

    /// True if a condition uses this fact.
    pub fn names(&self, fact: &Name) -> bool {
        self.all.iter().chain(&self.any).chain(&self.not).any(|condition| condition.fact == *fact)
    }

    pub fn conditions(&self) -> usize {
        self.all.len() + self.any.len() + self.not.len()
    }
}

impl Condition {
    fn holds(&self, since: Time, facts: &SubjectFacts, now: Time) -> bool {
        let fact = facts.get(&self.fact);
        match &self.test {
            Test::Exists(wanted) => fact.is_some() == *wanted,
            Test::Equals(value) => fact.is_some_and(|fact| fact.value == *value),
            Test::OlderThan { .. } => self.ripens_at(since, facts).is_some_and(|moment| moment <= now),
        }
    }

    fn ripens_at(&self, since: Time, facts: &SubjectFacts) -> Option<Time> {
        let Test::OlderThan { seconds } = self.test else { return None };
        let allowed = since.plus_s(seconds.min(FACT_GRACE_S));
        facts.get(&self.fact).map(|fact| fact.at.plus_s(seconds).max(allowed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn at(seconds: i64) -> Time {
        Time::from_seconds(seconds)
    }

    fn fact(value: &str, set_at: i64) -> Fact {
        Fact { value: FactValue(value.into()), at: at(set_at) }
    }

    fn facts(facts: &[(&str, Fact)]) -> SubjectFacts {
        facts.iter().map(|(name, fact)| (Name::stored(name), fact.clone())).collect()
    }

    fn is(name: &str, test: Test) -> Condition {
        Condition { fact: Name::stored(name), test }
    }

    fn older(name: &str, seconds: i64) -> Condition {
        is(name, Test::OlderThan { seconds })
    }

    fn check(selector: &Selector, facts: &SubjectFacts, now: i64, eligible: bool, changes_at: Option<i64>) {
        let verdict = selector.evaluate(None, facts, at(now));
        assert_eq!(verdict, Verdict { eligible, changes_at: changes_at.map(at) });
    }

    /// Requirement W1.
    #[test]
    fn a_selector_combines_all_any_and_not() {
        let provided = is("state", Test::Equals(FactValue("\"provided\"".into())));
        let selector = Selector {
            all: vec![provided],
            any: vec![is("ip", Test::Exists(true)), is("mac", Test::Exists(true))],
            not: vec![is("broken", Test::Exists(true))],
            ..Selector::default()
        };
        let state = ("state", fact("\"provided\"", 0));
        check(&selector, &facts(std::slice::from_ref(&state)), 1, false, None);
        check(&selector, &facts(&[state.clone(), ("mac", fact("1", 0))]), 1, true, None);
        check(&selector, &facts(&[state, ("mac", fact("1", 0)), ("broken", fact("true", 0))]), 1, false, None);
        check(&selector, &facts(&[("state", fact("\"ready\"", 0)), ("ip", fact("1", 0))]), 1, false, None);
        check(&Selector::default(), &facts(&[]), 1, true, None);
    }

    /// Requirement W1.
    #[test]
    fn an_age_condition_changes_exactly_at_its_due_time() {
        let silent = Selector { all: vec![older("heartbeat", 600)], ..Selector::default() };
        let beat = facts(&[("heartbeat", fact("true", 1_000))]);
        check(&silent, &beat, 1_599, false, Some(1_600));
        check(&silent, &beat, 1_600, true, None);
        check(&silent, &facts(&[]), 5_000, false, None);
        let fresh = Selector { not: vec![older("heartbeat", 600)], ..Selector::default() };
        check(&fresh, &beat, 1_599, true, Some(1_600));
        check(&fresh, &beat, 1_600, false, None);
    }

    /// Requirement W1.
    #[test]
    fn after_an_outage_a_fact_ages_only_after_a_grace_period() {
        let silent = |seconds| Selector { all: vec![older("heartbeat", seconds)], ..Selector::default() };
        let beat = facts(&[("heartbeat", fact("true", 1_000))]);
        let check = |seconds, now, eligible, changes_at: Option<i64>| {
            let verdict = silent(seconds).evaluate_since(at(5_000), None, &beat, at(now));
            assert_eq!(verdict, Verdict { eligible, changes_at: changes_at.map(at) });
        };
        check(60, 5_059, false, Some(5_060));
        check(60, 5_060, true, None);
        check(3_000, 5_000, false, Some(5_000 + FACT_GRACE_S));
        check(3_000, 5_000 + FACT_GRACE_S, true, None);
        check(9_000, 5_000 + FACT_GRACE_S, false, Some(10_000));
    }

    #[test]
    fn an_age_that_cannot_change_the_verdict_schedules_no_evaluation() {
        let selector =
            Selector { all: vec![older("heartbeat", 600), is("ip", Test::Exists(true))], ..Selector::default() };
        check(&selector, &facts(&[("heartbeat", fact("true", 1_000))]), 1_000, false, None);
    }

    #[test]
    fn a_selector_with_a_kind_matches_only_subjects_of_that_kind() {
        let selector = Selector { kind: Some(Name::stored("machine")), ..Selector::default() };
        assert!(selector.evaluate(Some("machine"), &SubjectFacts::new(), at(0)).eligible);
        assert!(!selector.evaluate(Some("game"), &SubjectFacts::new(), at(0)).eligible);
        assert!(!selector.evaluate(None, &SubjectFacts::new(), at(0)).eligible);
    }

    fn conditions() -> impl Strategy<Value = Vec<Condition>> {
        let test = prop_oneof![
            any::<bool>().prop_map(Test::Exists),
            (0..3u8).prop_map(|value| Test::Equals(FactValue(value.to_string()))),
            (0..20i64).prop_map(|seconds| Test::OlderThan { seconds }),
        ];
        let one = (0..4u8, test).prop_map(|(name, test)| is(&format!("f{name}"), test));
        proptest::collection::vec(one, 0..4)
    }

    proptest! {
        /// The returned time is the first at which the result differs.
        /// Requirement W1.
        #[test]
        fn a_verdict_changes_first_at_the_time_it_returns(
            all in conditions(), any in conditions(), not in conditions(),
            set in proptest::collection::btree_map(0..4u8, (0..3u8, 0..20i64), 0..4), now in 0..40i64,
            since in 0..40i64
        ) {
            let selector = Selector { kind: None, all, any, not };
            let facts: SubjectFacts = set.iter()
                .map(|(name, (value, at))| (Name::stored(&format!("f{name}")), fact(&value.to_string(), *at)))
                .collect();
            let verdict = selector.evaluate(None, &facts, at(now));
            prop_assert_eq!(verdict.eligible, selector.holds(EVER, &facts, at(now)));
            let first = (now + 1..100).find(|later| selector.holds(EVER, &facts, at(*later)) != verdict.eligible);
            prop_assert_eq!(verdict.changes_at, first.map(at));
            let since = at(since);
            let verdict = selector.evaluate_since(since, None, &facts, at(now));
            prop_assert_eq!(verdict.eligible, selector.holds(since, &facts, at(now)));
            let first = (now + 1..100).find(|later| selector.holds(since, &facts, at(*later)) != verdict.eligible);
            prop_assert_eq!(verdict.changes_at, first.map(at));
        }
    }
}
