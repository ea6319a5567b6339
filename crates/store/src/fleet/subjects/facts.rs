//! Facts as stored: one JSON document per subject, in which each fact has its value and the time of its last report.

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::{FACT_AHEAD_MS, SUBJECT_FACTS, TIMELINE_FACT_BYTES};
use domain::{Fact, FactValue, Name, SubjectFacts, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::db::codec::{from_json, to_json};
use crate::error::StoreError;

/// Facts to set, with their values as JSON. `None` removes a fact.
pub type FactChanges = Vec<(Name, Option<Box<str>>)>;

#[derive(Clone, Debug, Serialize, Deserialize)]
struct StoredFact {
    value: Box<RawValue>,
    at: i64,
}

/// All facts of one subject.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub(crate) struct FactDocument(BTreeMap<String, StoredFact>);

/// The result of setting facts.
#[derive(Debug, Default)]
pub(crate) struct FactsChanged {
    /// Facts whose value changed, with the new value. A report of an unchanged value is not a change.
    pub(crate) values: Vec<(Name, Option<Box<str>>)>,
    /// Number of new facts that were rejected because the subject has the maximum number of facts.
    pub(crate) rejected: usize,
}

impl FactDocument {
    pub(crate) fn read(text: &str) -> Result<Self, StoreError> {
        from_json(text)
    }

    pub(crate) fn text(&self) -> String {
        to_json(&self.0)
    }

    /// Sets and removes facts. A fact that is reported again with the same value gets a new time.
    pub(crate) fn change(&mut self, changes: &FactChanges, now: Time) -> Result<FactsChanged, StoreError> {
        let mut changed = FactsChanged::default();
        for (name, value) in changes {
            let before = self.0.get(name.as_str());
            let Some(value) = value else {
                if before.is_some() {
                    self.0.remove(name.as_str());
                    changed.values.push((name.clone(), None));
                }
                continue;
            };
            if before.is_none() && self.0.len() >= SUBJECT_FACTS {
                changed.rejected += 1;
                continue;
            }
            // The stored time may be slightly ahead of `now`, because it comes from another transaction's clock: then
            // it is kept. A time that is far ahead comes from a clock that has been set back since, and is replaced.
            let reported_at = before.map(|before| Time::from_micros(before.at));
            let reported_at = reported_at.filter(|reported_at| *reported_at <= now.plus_ms(FACT_AHEAD_MS));
            let at = reported_at.map_or(now, |reported_at| reported_at.max(now));
            if before.is_none_or(|before| canonical(before.value.get()) != canonical(value)) {
                changed.values.push((name.clone(), Some(value.clone())));
            }
            let raw = RawValue::from_string(value.to_string())
                .map_err(|error| StoreError::unexpected(format!("the value of fact {name} is not JSON: {error}")))?;
            self.0.insert(name.to_string(), StoredFact { value: raw, at: at.micros() });
        }
        Ok(changed)
    }

    /// Returns the facts with these names, for the evaluation of selectors.
    pub(crate) fn facts(&self, wanted: &BTreeSet<&str>) -> SubjectFacts {
        let fact = |(name, fact): (&String, &StoredFact)| {
            let value = FactValue(canonical(fact.value.get()).unwrap_or_default());
            (Name::stored(name), Fact { value, at: Time::from_micros(fact.at) })
        };
        self.0.iter().filter(|(name, _)| wanted.contains(name.as_str())).map(fact).collect()
    }

    /// Returns all facts ordered by name.
    pub(crate) fn into_entries(self) -> Vec<FactEntry> {
        let entry = |(name, fact): (String, StoredFact)| FactEntry {
            name,
            value: Box::<str>::from(fact.value).into(),
            at: Time::from_micros(fact.at),
        };
        self.0.into_iter().map(entry).collect()
    }

    /// Returns `{name: value, …}`, for the payload of a job.
    pub(crate) fn values(&self) -> String {
        let values: BTreeMap<&str, &RawValue> =
            self.0.iter().map(|(name, fact)| (name.as_str(), &*fact.value)).collect();
        to_json(&values)
    }
}

impl FactsChanged {
    /// Returns the timeline detail: the changed facts, with `…` in place of values longer than `TIMELINE_FACT_BYTES`.
    pub(crate) fn detail(&self) -> String {
        let shown = |value: &Option<Box<str>>| match value {
            Some(value) if value.len() <= TIMELINE_FACT_BYTES => serde_json::from_str(value).unwrap_or(Value::Null),
            Some(_) => Value::String("…".into()),
            None => Value::Null,
        };
        let facts: BTreeMap<&str, Value> = self.values.iter().map(|(name, v)| (name.as_str(), shown(v))).collect();
        match self.rejected {
            0 => to_json(&BTreeMap::from([("facts", facts)])),
            n => to_json(&serde_json::json!({"facts": facts, "left_out": n})),
        }
    }
}

/// One fact of a subject.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FactEntry {
    pub name: String,
    /// JSON, as received.
    pub value: String,
    pub at: Time,
}

/// Returns a canonical text, equal for equal JSON values: sorted object members and one notation for whole numbers.
/// Returns
/// `None` for invalid JSON and for numbers that do not fit an `f64`.
pub fn canonical(json: &str) -> Option<String> {
    serde_json::from_str::<Value>(json).ok().map(|value| to_json(&whole_numbers(value)))
}

fn whole_numbers(value: Value) -> Value {
    match value {
        Value::Number(number) => match number.as_f64() {
            Some(real) if number.is_f64() && real.fract() == 0.0 && real.abs() < 9e15 => Value::from(real as i64),
            _ => Value::Number(number),
        },
        Value::Array(items) => items.into_iter().map(whole_numbers).collect(),
        // `serde_json::Map` may keep insertion order, so the members are sorted explicitly.
        Value::Object(members) => {
            let sorted: BTreeMap<String, Value> =
                members.into_iter().map(|(name, value)| (name, whole_numbers(value))).collect();
            sorted.into_iter().collect::<serde_json::Map<_, _>>().into()
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_fact_values_have_one_canonical_form() {
        assert_eq!(canonical("{\"b\": 1.0, \"a\": [ 2e0 ]}"), canonical("{\"a\":[2],\"b\":1}"));
        assert_ne!(canonical("\"1\""), canonical("1"));
        assert_eq!([canonical("1e999"), canonical("x")], [None, None]);
    }

    fn set(name: &str, value: &str) -> (Name, Option<Box<str>>) {
        (Name::stored(name), Some(value.into()))
    }

    #[test]
    fn an_equal_fact_value_only_renews_its_time() {
        let mut facts = FactDocument::default();
        let changed = |facts: &mut FactDocument, value, at| {
            facts.change(&vec![set("beat", value)], Time::from_seconds(at)).expect("changes").values.len()
        };
        assert_eq!([changed(&mut facts, "1", 1), changed(&mut facts, "1.0", 2)], [1, 0]);
        assert_eq!(facts.clone().into_entries()[0].at, Time::from_seconds(2));
        assert_eq!(changed(&mut facts, "1", 1), 0);
        assert_eq!(facts.clone().into_entries()[0].at, Time::from_seconds(2), "a lagging clock makes no fact older");
        changed(&mut facts, "1", 1_000);
        changed(&mut facts, "1", 3);
        assert_eq!(facts.into_entries()[0].at, Time::from_seconds(3), "a time far in the future is replaced");
    }

    #[test]
    fn the_number_of_facts_of_a_subject_is_limited() {
        let many: FactChanges = (0..SUBJECT_FACTS + 3).map(|n| set(&format!("f{n}"), "1")).collect();
        let mut facts = FactDocument::default();
        assert_eq!(facts.change(&many, Time::from_seconds(1)).expect("changes").rejected, 3);
        assert_eq!(facts.0.len(), SUBJECT_FACTS);
    }
}
