//! Converts process settings to and from their stored JSON.

use domain::{Condition, FactValue, Group, Name, ProcessSettings, Selector, Test};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::db::codec::{from_json, retry_from_json, retry_to_json, to_json};
use crate::error::StoreError;

#[derive(Serialize, Deserialize)]
struct StoredSettings {
    selector: StoredSelector,
    #[serde(skip_serializing_if = "Option::is_none")]
    payload: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_active: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    every_s: Option<i64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    excludes: Vec<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    backoff: Option<Box<RawValue>>,
}

#[derive(Serialize, Deserialize)]
struct StoredSelector {
    #[serde(skip_serializing_if = "Option::is_none")]
    kind: Option<String>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    all: Vec<StoredCondition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    any: Vec<StoredCondition>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    not: Vec<StoredCondition>,
}

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum StoredCondition {
    Fact {
        fact: String,
        #[serde(flatten)]
        test: StoredTest,
    },
    Group {
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        all: Vec<StoredCondition>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        any: Vec<StoredCondition>,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        not: Vec<StoredCondition>,
    },
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredTest {
    Exists(bool),
    Equals(serde_json::Value),
    EqualsFact(String),
    DiffersFrom(String),
    GreaterThan(serde_json::Value),
    LessThan(serde_json::Value),
    OlderThanS(i64),
}

/// The part of the settings that an evaluation of subjects needs.
#[derive(Deserialize)]
struct SelectorOnly {
    selector: StoredSelector,
}

pub(crate) fn settings_to_json(settings: &ProcessSettings) -> Result<String, StoreError> {
    let raw = |json: &str| {
        RawValue::from_string(json.to_owned())
            .map_err(|error| StoreError::unexpected(format!("a process setting is not JSON: {error}")))
    };
    Ok(to_json(&StoredSettings {
        selector: StoredSelector::of(&settings.selector)?,
        payload: settings.payload.as_deref().map(raw).transpose()?,
        max_active: settings.max_active,
        every_s: settings.every_s,
        excludes: settings.excludes.iter().map(Name::to_string).collect(),
        backoff: settings.backoff.map(|policy| raw(&retry_to_json(policy))).transpose()?,
    }))
}

pub(crate) fn settings_from_json(queue: Name, kind: Name, text: &str) -> Result<ProcessSettings, StoreError> {
    let stored: StoredSettings = from_json(text)?;
    Ok(ProcessSettings {
        selector: stored.selector.selector(),
        queue,
        kind,
        payload: stored.payload.map(Into::into),
        max_active: stored.max_active,
        every_s: stored.every_s,
        excludes: stored.excludes.iter().map(|name| Name::stored(name)).collect(),
        backoff: stored.backoff.map(|policy| retry_from_json(policy.get())).transpose()?,
    })
}

pub(crate) fn selector_from_json(text: &str) -> Result<Selector, StoreError> {
    Ok(from_json::<SelectorOnly>(text)?.selector.selector())
}

impl StoredSelector {
    fn of(selector: &Selector) -> Result<Self, StoreError> {
        Ok(Self {
            kind: selector.kind.as_ref().map(Name::to_string),
            all: stored_conditions(&selector.all)?,
            any: stored_conditions(&selector.any)?,
            not: stored_conditions(&selector.not)?,
        })
    }

    fn selector(self) -> Selector {
        Selector {
            kind: self.kind.map(|kind| Name::stored(&kind)),
            all: conditions(self.all),
            any: conditions(self.any),
            not: conditions(self.not),
        }
    }
}

fn stored_conditions(conditions: &[Condition]) -> Result<Vec<StoredCondition>, StoreError> {
    conditions.iter().map(StoredCondition::of).collect()
}

fn conditions(stored: Vec<StoredCondition>) -> Vec<Condition> {
    stored.into_iter().map(StoredCondition::condition).collect()
}

impl StoredCondition {
    fn of(condition: &Condition) -> Result<Self, StoreError> {
        let (fact, test) = match condition {
            Condition::Fact { fact, test } => (fact, test),
            Condition::Group(Group { all, any, not }) => {
                let (all, any, not) = (stored_conditions(all)?, stored_conditions(any)?, stored_conditions(not)?);
                return Ok(Self::Group { all, any, not });
            }
        };
        let test = match test {
            Test::Exists(wanted) => StoredTest::Exists(*wanted),
            Test::Equals(FactValue(value)) => StoredTest::Equals(from_json(value)?),
            Test::EqualsFact(other) => StoredTest::EqualsFact(other.to_string()),
            Test::DiffersFrom(other) => StoredTest::DiffersFrom(other.to_string()),
            Test::GreaterThan(FactValue(value)) => StoredTest::GreaterThan(from_json(value)?),
            Test::LessThan(FactValue(value)) => StoredTest::LessThan(from_json(value)?),
            Test::OlderThan { seconds } => StoredTest::OlderThanS(*seconds),
        };
        Ok(Self::Fact { fact: fact.to_string(), test })
    }

    fn condition(self) -> Condition {
        let (fact, test) = match self {
            Self::Fact { fact, test } => (fact, test),
            Self::Group { all, any, not } => {
                return Condition::Group(Group { all: conditions(all), any: conditions(any), not: conditions(not) });
            }
        };
        let test = match test {
            StoredTest::Exists(wanted) => Test::Exists(wanted),
            StoredTest::Equals(value) => Test::Equals(FactValue(to_json(&value))),
            StoredTest::EqualsFact(other) => Test::EqualsFact(Name::stored(&other)),
            StoredTest::DiffersFrom(other) => Test::DiffersFrom(Name::stored(&other)),
            StoredTest::GreaterThan(value) => Test::GreaterThan(FactValue(to_json(&value))),
            StoredTest::LessThan(value) => Test::LessThan(FactValue(to_json(&value))),
            StoredTest::OlderThanS(seconds) => Test::OlderThan { seconds },
        };
        Condition::Fact { fact: Name::stored(&fact), test }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_settings_round_trip_as_json() {
        let condition = |test| Condition::Fact { fact: Name::stored("f"), test };
        let group = Condition::Group(Group {
            all: vec![condition(Test::DiffersFrom(Name::stored("g")))],
            any: vec![condition(Test::GreaterThan(FactValue("3".into())))],
            ..Group::default()
        });
        let settings = ProcessSettings {
            selector: Selector {
                kind: Some(Name::stored("machine")),
                all: vec![condition(Test::Exists(false)), condition(Test::OlderThan { seconds: 600 })],
                any: vec![condition(Test::Equals(FactValue("{\"a\":1}".into())))],
                not: vec![group],
            },
            queue: Name::stored("q"),
            kind: Name::stored("k"),
            payload: Some("[1, 2]".into()),
            max_active: Some(3),
            every_s: Some(5),
            excludes: vec![Name::stored("other")],
            backoff: domain::RetryPolicy::new(Some(60), Some(120), Some(1.1), None).ok(),
        };
        let text = settings_to_json(&settings).expect("stores");
        assert_eq!(
            settings_from_json(settings.queue.clone(), settings.kind.clone(), &text).ok(),
            Some(settings.clone())
        );
        assert_eq!(selector_from_json(&text).ok(), Some(settings.selector));
    }
}
