//! Facts as they are stored: one JSON document per subject, each fact with its time.

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::{FACT_AHEAD_MS, SUBJECT_FACTS, TIMELINE_FACT_BYTES};
use domain::{Fact, FactValue, Facts, Name, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::codec::{from_json, to_json};
use crate::error::StoreError;

/// Facts to set, with their values as JSON; `None` takes a fact away.
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

/// What setting facts did.
#[derive(Debug, Default)]
pub(crate) struct Changed {
    /// Facts whose value is another now, with that value; a heartbeat that says the same again is none.
    pub(crate) values: Vec<(Name, Option<Box<str>>)>,
    /// New facts for which the subject has no room.
    pub(crate) left_out: usize,
}

impl FactDocument {
    pub(crate) fn read(text: &str) -> Result<Self, StoreError> {
        from_json(text)
    }

    pub(crate) fn text(&self) -> String {
        to_json(&self.0)
    }

    /// Sets and takes away. A fact that is said again has its time renewed.
    pub(crate) fn change(&mut self, changes: &FactChanges, now: Time) -> Result<Changed, StoreError> {
        let mut changed = Changed::default();
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
                changed.left_out += 1;
                continue;
            }
            // The clock of another transaction may have been ahead; one that was far ahead has come back since.
            let told_at = before.map(|before| Time::from_micros(before.at));
            let told_at = told_at.filter(|told_at| *told_at <= now.plus_ms(FACT_AHEAD_MS));
            let at = told_at.map_or(now, |told_at| told_at.max(now));
            if before.is_none_or(|before| canonical(before.value.get()) != canonical(value)) {
                changed.values.push((name.clone(), Some(value.clone())));
            }
            let raw = RawValue::from_string(value.to_string())
                .map_err(|error| StoreError::unexpected(format!("a fact that is no JSON: {error}")))?;
            self.0.insert(name.to_string(), StoredFact { value: raw, at: at.micros() });
        }
        Ok(changed)
    }

    /// The facts a selector asks for.
    pub(crate) fn facts(&self, wanted: &BTreeSet<&str>) -> Facts {
        let fact = |(name, fact): (&String, &StoredFact)| {
            let value = FactValue(canonical(fact.value.get()).unwrap_or_default());
            (Name::stored(name), Fact { value, at: Time::from_micros(fact.at) })
        };
        self.0.iter().filter(|(name, _)| wanted.contains(name.as_str())).map(fact).collect()
    }

    /// Name, value and time of each, by name.
    pub(crate) fn told(self) -> Vec<ToldFact> {
        let told = |(name, fact): (String, StoredFact)| ToldFact {
            name,
            value: Box::<str>::from(fact.value).into(),
            at: Time::from_micros(fact.at),
        };
        self.0.into_iter().map(told).collect()
    }

    /// `{name: value, …}`, for the payload of a job.
    pub(crate) fn values(&self) -> String {
        let values: BTreeMap<&str, &RawValue> =
            self.0.iter().map(|(name, fact)| (name.as_str(), &*fact.value)).collect();
        to_json(&values)
    }
}

impl Changed {
    /// For the timeline: the new values, where they are short enough to be read there.
    pub(crate) fn detail(&self) -> String {
        let shown = |value: &Option<Box<str>>| match value {
            Some(value) if value.len() <= TIMELINE_FACT_BYTES => serde_json::from_str(value).unwrap_or(Value::Null),
            Some(_) => Value::String("…".into()),
            None => Value::Null,
        };
        let facts: BTreeMap<&str, Value> = self.values.iter().map(|(name, v)| (name.as_str(), shown(v))).collect();
        match self.left_out {
            0 => to_json(&BTreeMap::from([("facts", facts)])),
            n => to_json(&serde_json::json!({"facts": facts, "left_out": n})),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToldFact {
    pub name: String,
    /// JSON, as it came.
    pub value: String,
    pub at: Time,
}

/// A form in which equal JSON values are equal text: members in order, one way to write a whole number. `None` for what
/// is no JSON or has numbers that nobody can compute with.
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
        // Into a map that sorts, whatever the parser's own does.
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
    fn equal_values_have_one_form() {
        assert_eq!(canonical("{\"b\": 1.0, \"a\": [ 2e0 ]}"), canonical("{\"a\":[2],\"b\":1}"));
        assert_ne!(canonical("\"1\""), canonical("1"));
        assert_eq!([canonical("1e999"), canonical("x")], [None, None]);
    }

    fn set(name: &str, value: &str) -> (Name, Option<Box<str>>) {
        (Name::stored(name), Some(value.into()))
    }

    #[test]
    fn saying_the_same_again_renews_the_time_and_changes_nothing() {
        let mut facts = FactDocument::default();
        let changed = |facts: &mut FactDocument, value, at| {
            facts.change(&vec![set("beat", value)], Time::from_seconds(at)).expect("changes").values.len()
        };
        assert_eq!([changed(&mut facts, "1", 1), changed(&mut facts, "1.0", 2)], [1, 0]);
        assert_eq!(facts.clone().told()[0].at, Time::from_seconds(2));
        assert_eq!(changed(&mut facts, "1", 1), 0);
        assert_eq!(facts.clone().told()[0].at, Time::from_seconds(2), "a clock that lags makes no fact older");
        changed(&mut facts, "1", 1_000);
        changed(&mut facts, "1", 3);
        assert_eq!(facts.told()[0].at, Time::from_seconds(3), "a clock that was far ahead is not believed");
    }

    #[test]
    fn a_subject_has_room_for_so_many_facts() {
        let many: FactChanges = (0..SUBJECT_FACTS + 3).map(|n| set(&format!("f{n}"), "1")).collect();
        let mut facts = FactDocument::default();
        assert_eq!(facts.change(&many, Time::from_seconds(1)).expect("changes").left_out, 3);
        assert_eq!(facts.0.len(), SUBJECT_FACTS);
    }
}
