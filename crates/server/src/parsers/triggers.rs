//! Triggers: expressions, schedules, filters and targets.

use domain::limits::EXPRESSION_VALUE_BYTES;
use domain::trigger::{Missed, Source};
use domain::{Time, TriggerId};
use serde_json::Value;
use store::expression::{self, Scope};
use store::schedule::Slots;
use store::secrets::spots;
use store::triggers::filter::{self, Schedule};
use store::triggers::target::{self, Target};
use uuid::Uuid;

use super::first_line;
use crate::validate::trigger::{KEPT, check_http, without_secrets};

/// An expression, and the same as a mapping, over one event. What is taken neither runs on nor makes more than it may.
pub fn expression(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let event = r#"{"op": "set", "depth": 0, "key": "a"}"#;
    let scope = Scope::new(event, r#"{"n": 7, "user": {"name": "Ann"}, "list": [1, 2], "text": "a long text"}"#);
    let scope = scope.expect("JSON");
    if expression::check_condition(&text).is_ok() {
        let _ = expression::is_true(&text, &scope);
    }
    for mapping in [Value::from(&*text), Value::from(format!("{{{{ {text} }}}}"))] {
        if expression::check_mapping(&mapping).is_ok()
            && let Ok(mapped) = expression::map(&mapping, &scope)
        {
            // The event is a thousandth of the largest, and the bound is for that.
            let bytes = mapped.to_string().len() as u64;
            assert!(bytes <= EXPRESSION_VALUE_BYTES / 4, "{bytes} bytes");
        }
    }
}

/// A cron expression, a time zone and a moment, a line each. Slots go forward, end, and are the same when looked for again.
pub fn schedule(data: &[u8]) {
    let (schedule, rest) = first_line(data);
    let (timezone, moment) = first_line(rest);
    let [schedule, timezone, moment] =
        [schedule, timezone, moment].map(|text| String::from_utf8_lossy(text).into_owned());
    let after = moment.trim().parse().unwrap_or(1_800_000_000_i64).clamp(0, 250_000_000_000);
    let after = Time::from_seconds(after);
    let Ok(slots) = Slots::read(&Schedule { schedule, timezone, missed: Missed::Skip }) else { return };
    let found = slots.next(after, 8);
    assert!(found.iter().all(|slot| *slot > after));
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    if let [first, .., last] = found[..] {
        assert_eq!(slots.between(first, last, found.len()), found);
    }
}

/// A source, a filter and a target, a line each. No secret is shown, and a call has one fixed address.
pub fn trigger(data: &[u8]) {
    let (source, rest) = first_line(data);
    let (filter, target) = first_line(rest);
    let [source, filter, target] = [source, filter, target].map(|text| String::from_utf8_lossy(text).into_owned());
    if let Some(source) = Source::parse(&source)
        && let Ok(read) = filter::read(source, TriggerId::new(Uuid::nil()), &filter)
    {
        shown(&filter, spots::in_filter, "/secret");
        let _ = read.schedule.map(|schedule| Slots::read(&schedule));
        let _ = read.pattern.matches("set", |_| Some("a"));
    }
    match target::read(&target) {
        Ok(Target::Http(http)) if check_http(&http).is_ok() => {
            shown(&target, spots::in_target, "/http/secret");
            engine::outbound::parse_url(&http.url).expect("it was looked at");
        }
        Ok(Target::Script(script)) => drop(engine::scripting::check(&script)),
        Ok(Target::Runtime(runtime)) => drop(runtime.kind().expect("it was looked at")),
        _ => {}
    }
}

fn shown(text: &str, spots: fn(&Value) -> Vec<spots::Spot>, secret: &str) {
    let shown: Value = serde_json::from_str(&without_secrets(text.to_owned(), spots)).expect("still JSON");
    assert!(shown.pointer(secret).is_none_or(|secret| secret.is_null() || secret == KEPT), "{shown}");
}
