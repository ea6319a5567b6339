//! The event as values of an expression. Each access charges the running evaluation.

use std::collections::BTreeMap;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};
use serde_json::Value as Json;

use super::cost::{ITEM, charge};

/// A list of the event.
#[derive(Debug)]
struct List(Vec<Value>);

/// An object of the event.
#[derive(Debug)]
struct ObjectMembers(BTreeMap<String, Value>);

/// Converts JSON. Numbers are exact up to 64 bits.
pub(super) fn value(json: Json) -> Value {
    match json {
        Json::Null => Value::from(()),
        Json::Bool(bool) => Value::from(bool),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64()),
        },
        Json::String(text) => Value::from(text),
        Json::Array(items) => Value::from_object(List(items.into_iter().map(value).collect())),
        Json::Object(members) => members_of(members),
    }
}

pub(super) fn members_of(members: impl IntoIterator<Item = (String, Json)>) -> Value {
    Value::from_object(ObjectMembers(members.into_iter().map(|(name, json)| (name, value(json))).collect()))
}

/// Returns the value, or a value that aborts the evaluation if its budget is spent.
fn charged(value: &Value) -> Value {
    let text = value.as_str().map_or(0, str::len) as u64;
    charge(ITEM + text).map_or_else(Value::from, |()| value.clone())
}

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).map(charged)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        match charge(ITEM) {
            Ok(()) => Enumerator::Seq(self.0.len()),
            Err(_) => Enumerator::NonEnumerable,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}

impl Object for ObjectMembers {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_str()?).map(charged)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        self.0.get(key).map(charged)
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        let names = self.0.keys().map(String::len).sum::<usize>() as u64;
        match charge(ITEM * self.0.len() as u64 + names) {
            Ok(()) => Enumerator::Values(self.0.keys().map(|name| Value::from(name.as_str())).collect()),
            Err(_) => Enumerator::NonEnumerable,
        }
    }

    fn enumerator_len(self: &Arc<Self>) -> Option<usize> {
        Some(self.0.len())
    }
}
