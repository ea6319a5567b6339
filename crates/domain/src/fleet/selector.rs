//! Selectors: predicates over facts and their ages that determine which subjects a process works on.
//!
//! A verdict includes the time at which it changes by age alone. Until then no new evaluation is needed.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use crate::limits::{FACT_GRACE_S, SELECTOR_DEPTH};
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
pub enum Condition {
    Fact { fact: Name, test: Test },
    Group(Group),
}

/// Conditions combined like those of a selector.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Group {
    pub all: Vec<Condition>,
    pub any: Vec<Condition>,
    pub not: Vec<Condition>,
}

/// The test of a fact. For a missing fact only `Exists(false)` holds, and `DiffersFrom` a fact that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    Exists(bool),
    Equals(FactValue),
    /// Equals another fact.
    EqualsFact(Name),
    /// Has another value than the other fact, or exactly one of the two is missing.
    DiffersFrom(Name),
    /// Greater than this number or time. `LessThan` is the opposite. Values of different types compare as false.
    GreaterThan(FactValue),
    LessThan(FactValue),
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
        combine([&self.all, &self.any, &self.not], |condition| condition.holds(since, facts, now))
    }

    /// Times after `now` at which a condition becomes true by age, earliest first.
    fn change_times(&self, since: Time, facts: &SubjectFacts, now: Time) -> Vec<Time> {
        let mut times: Vec<Time> = Vec::new();
        self.each(&mut |fact, test| times.extend(ripens_at(fact, test, since, facts)));
        times.retain(|time| *time > now);
        times.sort_unstable();
        times.dedup();
        times
    }

    /// The facts that the conditions read.
    pub fn facts(&self) -> BTreeSet<&Name> {
        let mut facts = BTreeSet::new();
        self.each(&mut |fact, test| {
            facts.insert(fact);
            facts.extend(test.other_fact());
        });
        facts
    }

    /// True if a condition uses this fact.
    pub fn names(&self, fact: &Name) -> bool {
        self.facts().contains(fact)
    }

    /// Number of tests, in groups too.
    pub fn conditions(&self) -> usize {
        let mut count = 0;
        self.each(&mut |_, _| count += 1);
        count
    }

    /// True if groups nest at most `SELECTOR_DEPTH` levels deep.
    pub fn is_within_depth(&self) -> bool {
        [&self.all, &self.any, &self.not].into_iter().flatten().all(|condition| condition.depth() <= SELECTOR_DEPTH)
    }

    fn each<'s>(&'s self, visit: &mut impl FnMut(&'s Name, &'s Test)) {
        [&self.all, &self.any, &self.not].into_iter().flatten().for_each(|condition| condition.each(visit));
    }
}

/// True if all of the first, one of the second (unless empty) and none of the third hold.
fn combine([all, any, not]: [&Vec<Condition>; 3], holds: impl Fn(&Condition) -> bool) -> bool {
    all.iter().all(&holds) && (any.is_empty() || any.iter().any(&holds)) && !not.iter().any(&holds)
}

impl Condition {
    fn holds(&self, since: Time, facts: &SubjectFacts, now: Time) -> bool {
        let (fact, test) = match self {
            Self::Group(Group { all, any, not }) => {
                return combine([all, any, not], |condition| condition.holds(since, facts, now));
            }
            Self::Fact { fact, test } => (fact, test),
        };
        let value = |name: &Name| facts.get(name).map(|fact| &fact.value);
        match test {
            Test::Exists(wanted) => value(fact).is_some() == *wanted,
            Test::Equals(wanted) => value(fact) == Some(wanted),
            Test::EqualsFact(other) => value(fact).is_some() && value(fact) == value(other),
            Test::DiffersFrom(other) => value(fact) != value(other),
            Test::GreaterThan(bound) => value(fact).and_then(|value| value.compare(bound)) == Some(Ordering::Greater),
            Test::LessThan(bound) => value(fact).and_then(|value| value.compare(bound)) == Some(Ordering::Less),
            Test::OlderThan { .. } => ripens_at(fact, test, since, facts).is_some_and(|moment| moment <= now),
        }
    }

    fn depth(&self) -> usize {
        match self {
            Self::Fact { .. } => 0,
            Self::Group(Group { all, any, not }) => {
                1 + [all, any, not].into_iter().flatten().map(Self::depth).max().unwrap_or_default()
            }
        }
    }

    fn each<'s>(&'s self, visit: &mut impl FnMut(&'s Name, &'s Test)) {
        match self {
            Self::Fact { fact, test } => visit(fact, test),
            Self::Group(Group { all, any, not }) => {
                [all, any, not].into_iter().flatten().for_each(|condition| condition.each(visit));
            }
        }
    }
}

fn ripens_at(fact: &Name, test: &Test, since: Time, facts: &SubjectFacts) -> Option<Time> {
    let Test::OlderThan { seconds } = *test else { return None };
    let allowed = since.plus_s(seconds.min(FACT_GRACE_S));
    facts.get(fact).map(|fact| fact.at.plus_s(seconds).max(allowed))
}

impl Test {
    /// The other fact that the test reads.
    fn other_fact(&self) -> Option<&Name> {
        match self {
            Self::EqualsFact(other) | Self::DiffersFrom(other) => Some(other),
            _ => None,
        }
    }
}

impl FactValue {
    /// True if other values can be greater or less: a number, or a time in RFC 3339.
    pub fn has_order(&self) -> bool {
        self.number().is_some() || self.time().is_some()
    }

    /// Compares two numbers or two times.
    fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self.number(), other.number()) {
            (Some(one), Some(other)) => one.partial_cmp(&other),
            _ => Some(self.time()?.cmp(&other.time()?)),
        }
    }

    fn number(&self) -> Option<f64> {
        let starts = self.0.starts_with(|first: char| first.is_ascii_digit() || first == '-');
        starts.then(|| self.0.parse().ok()).flatten()
    }

    fn time(&self) -> Option<Time> {
        Time::from_rfc3339(self.0.strip_prefix('"')?.strip_suffix('"')?)
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
        Condition::Fact { fact: Name::stored(name), test }
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
    fn a_condition_compares_two_facts() {
        let differs = is("generation", Test::DiffersFrom(Name::stored("report.generation")));
        let differs = Selector { all: vec![differs], ..Selector::default() };
        let both =
            |one: &str, other: &str| facts(&[("generation", fact(one, 0)), ("report.generation", fact(other, 0))]);
        check(&differs, &both("2", "1"), 1, true, None);
        check(&differs, &both("2", "2"), 1, false, None);
        check(&differs, &facts(&[("generation", fact("2", 0))]), 1, true, None);
        check(&differs, &facts(&[]), 1, false, None);
        let equals = is("generation", Test::EqualsFact(Name::stored("report.generation")));
        let equals = Selector { all: vec![equals], ..Selector::default() };
        check(&equals, &both("2", "2"), 1, true, None);
        check(&equals, &facts(&[]), 1, false, None);
        assert!(differs.names(&Name::stored("report.generation")), "a change of either fact is evaluated");
    }

    /// Requirement W1.
    #[test]
    fn numbers_and_times_have_an_order_and_other_values_have_none() {
        let holds = |value: &str, test: Test| {
            let selector = Selector { all: vec![is("f", test)], ..Selector::default() };
            selector.evaluate(None, &facts(&[("f", fact(value, 0))]), at(1)).eligible
        };
        let more = |bound: &str| Test::GreaterThan(FactValue(bound.into()));
        let less = |bound: &str| Test::LessThan(FactValue(bound.into()));
        assert!(holds("10", more("9.5")) && !holds("9.5", more("9.5")) && holds("-3", less("2e1")));
        let noon = "\"2026-11-19T12:00:00Z\"";
        assert!(holds("\"2026-11-19T14:00:00.5+01:00\"", more(noon)));
        assert!(holds("\"2026-11-19T12:30:00+01:00\"", less(noon)));
        for value in ["true", "\"10\"", "[10]", "\"soon\"", "null"] {
            assert!(!holds(value, more("1")) && !holds(value, less("1")) && !holds(value, more(noon)), "{value}");
        }
    }

    /// Requirement W1.
    #[test]
    fn groups_nest_and_keep_the_time_at_which_the_verdict_changes() {
        // (A and B) or C.
        let group = Group { all: vec![is("a", Test::Exists(true)), older("b", 600)], ..Group::default() };
        let selector =
            Selector { any: vec![Condition::Group(group), is("c", Test::Exists(true))], ..Selector::default() };
        check(&selector, &facts(&[("a", fact("1", 0)), ("b", fact("1", 1_000))]), 1_000, false, Some(1_600));
        check(&selector, &facts(&[("b", fact("1", 0))]), 1_000, false, None);
        check(&selector, &facts(&[("c", fact("1", 0))]), 1_000, true, None);
        assert_eq!((selector.conditions(), selector.is_within_depth()), (3, true));
        assert!(selector.names(&Name::stored("b")));
        let deeper = |inner: Condition| Condition::Group(Group { not: vec![inner], ..Group::default() });
        let deep = (0..=SELECTOR_DEPTH).fold(is("a", Test::Exists(true)), |inner, _| deeper(inner));
        assert!(!Selector { all: vec![deep], ..Selector::default() }.is_within_depth());
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
            (0..4u8).prop_map(|name| Test::DiffersFrom(Name::stored(&format!("f{name}")))),
            (0..3u8).prop_map(|value| Test::GreaterThan(FactValue(value.to_string()))),
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
