//! Fuzz targets for trigger expressions, schedules, filters and targets.

use domain::limits::EXPRESSION_VALUE_BYTES;
use domain::triggers::trigger::{Missed, Source};
use domain::{Time, TriggerId};
use serde_json::Value;
use store::access::secrets::secret_fields;
use store::triggers::expression;
use store::triggers::expression::Scope;
use store::triggers::filter::{self, Schedule};
use store::triggers::schedule::Slots;
use store::triggers::target::{self, Target};
use uuid::Uuid;

use super::first_line;
use crate::validate::triggers::trigger::{REDACTED_SECRET, check_http, without_secrets};

/// Evaluates the input as a condition and as a mapping. An accepted expression must stay within its time and size
/// limits.
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
            // The event is a thousandth of the largest allowed one, and the limit is meant for that.
            let bytes = mapped.to_string().len() as u64;
            assert!(bytes <= EXPRESSION_VALUE_BYTES / 4, "{bytes} bytes");
        }
    }
}

/// Input: a cron expression, a time zone and a time, each on a line. Slots must ascend, end, and be reproducible.
pub fn schedule(data: &[u8]) {
    let (schedule, rest) = first_line(data);
    let (timezone, time) = first_line(rest);
    let [schedule, timezone, time] = [schedule, timezone, time].map(|text| String::from_utf8_lossy(text).into_owned());
    let after = time.trim().parse().unwrap_or(1_800_000_000_i64).clamp(0, 250_000_000_000);
    let after = Time::from_seconds(after);
    let Ok(slots) = Slots::read(&Schedule { schedule, timezone, missed: Missed::Skip }) else { return };
    let found = slots.next(after, 8);
    assert!(found.iter().all(|slot| *slot > after));
    assert!(found.windows(2).all(|pair| pair[0] < pair[1]), "{found:?}");
    if let [first, .., last] = found[..] {
        assert_eq!(slots.between(first, last, found.len()), found);
    }
}

/// Input: a source, a filter and a target, each on a line. Secrets must not be shown, and an HTTP target must have a
/// fixed address.
pub fn trigger(data: &[u8]) {
    let (source, rest) = first_line(data);
    let (filter, target) = first_line(rest);
    let [source, filter, target] = [source, filter, target].map(|text| String::from_utf8_lossy(text).into_owned());
    if let Some(source) = Source::parse(&source)
        && let Ok(read) = filter::read(source, TriggerId::new(Uuid::nil()), &filter)
    {
        assert_secret_hidden(&filter, secret_fields::in_filter, "/secret");
        let _ = read.schedule.map(|schedule| Slots::read(&schedule));
        let _ = read.pattern.matches("set", |_| Some("a"));
    }
    match target::read(&target) {
        Ok(Target::Http(http)) if check_http(&http).is_ok() => {
            assert_secret_hidden(&target, secret_fields::in_target, "/http/secret");
            engine::outbound::parse_url(&http.url).expect("it was validated");
        }
        Ok(Target::Script(script)) => drop(engine::triggers::scripting::check(&script)),
        Ok(Target::Runtime(runtime)) => drop(runtime.kind().expect("it was validated")),
        _ => {}
    }
}

fn assert_secret_hidden(text: &str, secret_fields: fn(&Value) -> Vec<secret_fields::SecretField>, secret: &str) {
    let assert_secret_hidden: Value =
        serde_json::from_str(&without_secrets(text.to_owned(), secret_fields)).expect("still JSON");
    assert!(
        assert_secret_hidden.pointer(secret).is_none_or(|secret| secret.is_null() || secret == REDACTED_SECRET),
        "{assert_secret_hidden}"
    );
}
