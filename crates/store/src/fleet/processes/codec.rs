//! Converts process settings to and from their stored JSON.

use domain::{Condition, FactValue, Name, ProcessSettings, Selector, Test};
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
struct StoredCondition {
    fact: String,
    #[serde(flatten)]
    test: StoredTest,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum StoredTest {
    Exists(bool),
    Equals(serde_json::Value),
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
        let all = |conditions: &[Condition]| conditions.iter().map(StoredCondition::of).collect::<Result<_, _>>();
        Ok(Self {
            kind: selector.kind.as_ref().map(Name::to_string),
            all: all(&selector.all)?,
            any: all(&selector.any)?,
            not: all(&selector.not)?,
        })
    }

    fn selector(self) -> Selector {
        let all = |conditions: Vec<StoredCondition>| conditions.into_iter().map(StoredCondition::condition).collect();
        Selector {
            kind: self.kind.map(|kind| Name::stored(&kind)),
            all: all(self.all),
            any: all(self.any),
            not: all(self.not),
        }
    }
}

impl StoredCondition {
    fn of(condition: &Condition) -> Result<Self, StoreError> {
        let test = match &condition.test {
            Test::Exists(wanted) => StoredTest::Exists(*wanted),
            Test::Equals(FactValue(value)) => StoredTest::Equals(from_json(value)?),
            Test::OlderThan { seconds } => StoredTest::OlderThanS(*seconds),
        };
        Ok(Self { fact: condition.fact.to_string(), test })
    }

    fn condition(self) -> Condition {
        let test = match self.test {
            StoredTest::Exists(wanted) => Test::Exists(wanted),
            StoredTest::Equals(value) => Test::Equals(FactValue(to_json(&value))),
            StoredTest::OlderThanS(seconds) => Test::OlderThan { seconds },
        };
        Condition { fact: Name::stored(&self.fact), test }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn process_settings_round_trip_as_json() {
        let condition = |test| Condition { fact: Name::stored("f"), test };
        let settings = ProcessSettings {
            selector: Selector {
                kind: Some(Name::stored("machine")),
                all: vec![condition(Test::Exists(false)), condition(Test::OlderThan { seconds: 600 })],
                any: vec![condition(Test::Equals(FactValue("{\"a\":1}".into())))],
                not: vec![],
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
