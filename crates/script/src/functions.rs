//! The functions that scripts can call in addition to those of the language.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::limits::JSON_DEPTH;
use rhai::serde::{from_dynamic, to_dynamic};
use rhai::{Dynamic, Engine, EvalAltResult, Map, Position};
use serde_json::Value;

use crate::{Host, HostError, HttpRequest, HttpResponse, Limits};

pub(crate) type CallResult<T> = Result<T, Box<EvalAltResult>>;

/// One run of a script: its host, and its usage so far.
pub(crate) struct Run {
    host: Arc<dyn Host>,
    limits: Limits,
    deadline: Instant,
    used: Mutex<Usage>,
}

#[derive(Default)]
struct Usage {
    calls: usize,
    log: Vec<String>,
    log_bytes: usize,
    is_log_truncated: bool,
}

/// A limit that a function exceeded. A script cannot create this value.
#[derive(Clone)]
struct Ceiling(String);

pub(crate) fn ceiling_of(value: &Dynamic) -> Option<String> {
    value.clone().try_cast::<Ceiling>().map(|Ceiling(detail)| detail)
}

impl Run {
    pub(crate) fn new(host: Arc<dyn Host>, limits: &Limits) -> Self {
        let deadline = Instant::now() + limits.time;
        Self { host, limits: limits.clone(), deadline, used: Mutex::default() }
    }

    pub(crate) fn is_stopped(&self) -> bool {
        self.host.is_stopped()
    }

    pub(crate) fn take_log(&self) -> Vec<String> {
        std::mem::take(&mut self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).log)
    }

    /// Appends to the log. A log beyond its limits is truncated, and says so; the script continues.
    fn log(&self, text: &str) {
        let mut used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if used.is_log_truncated {
            return;
        }
        if used.log.len() >= self.limits.log_lines || used.log_bytes + text.len() > self.limits.log_bytes {
            used.is_log_truncated = true;
            used.log.push("… log truncated".into());
            return;
        }
        used.log_bytes += text.len();
        used.log.push(
            text.chars().map(|c| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c }).collect(),
        );
    }

    /// Counts a host call and returns the remaining time.
    fn call(&self) -> CallResult<Duration> {
        let remaining = self.deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() {
            return Err(ceiling("out of time"));
        }
        let mut used = self.used.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        used.calls += 1;
        if used.calls > self.limits.calls {
            return Err(ceiling(&format!("more than {} calls", self.limits.calls)));
        }
        Ok(remaining)
    }
}

/// Terminates the script. An ordinary error could be caught by the script.
fn ceiling(detail: &str) -> Box<EvalAltResult> {
    EvalAltResult::ErrorTerminated(Dynamic::from(Ceiling(detail.into())), Position::NONE).into()
}

fn failed(error: HostError) -> Box<EvalAltResult> {
    error.0.into()
}

/// Converts a value that leaves the script. Its nesting is limited like that of input, because later readers recurse
/// into it.
pub(crate) fn value(dynamic: &Dynamic) -> CallResult<Value> {
    if dynamic.is_unit() {
        return Ok(Value::Null);
    }
    if nests_deeper(dynamic, JSON_DEPTH) {
        return Err(ceiling(&format!("a value nests deeper than {JSON_DEPTH} levels")));
    }
    from_dynamic(dynamic)
}

/// Recurses at most `levels` deep.
fn nests_deeper(value: &Dynamic, levels: usize) -> bool {
    if let Ok(items) = value.as_array_ref() {
        return levels == 0 || items.iter().any(|item| nests_deeper(item, levels - 1));
    }
    if let Ok(members) = value.as_map_ref() {
        return levels == 0 || members.values().any(|member| nests_deeper(member, levels - 1));
    }
    false
}

pub(crate) fn register(engine: &mut Engine, run: &Arc<Run>) {
    let log = run.clone();
    engine.on_print(move |text| log.log(text));
    let log = run.clone();
    engine.on_debug(move |text, _, _| log.log(text));
    let log = run.clone();
    engine.register_fn("log", move |text: Dynamic| log.log(&text.to_string()));
    // The language's own `sleep` would block a thread without limit.
    engine.register_fn("sleep", |_: i64| -> CallResult<()> { Err("a script cannot sleep".into()) });
    engine.register_fn("sleep", |_: f64| -> CallResult<()> { Err("a script cannot sleep".into()) });

    let of = run.clone();
    engine.register_fn("enqueue", move |job: Map| -> CallResult<Dynamic> {
        of.call()?;
        let id = of.host.enqueue(value(&Dynamic::from_map(job))?).map_err(failed)?;
        Ok(id.map_or(Dynamic::UNIT, Dynamic::from))
    });
    let of = run.clone();
    engine.register_fn("kv_get", move |collection: &str, key: &str| -> CallResult<Dynamic> {
        of.call()?;
        match of.host.kv_get(collection, key).map_err(failed)? {
            Some(found) => to_dynamic(found),
            None => Ok(Dynamic::UNIT),
        }
    });
    let of = run.clone();
    engine.register_fn("kv_set", move |collection: &str, key: &str, new: Dynamic| -> CallResult<()> {
        of.call()?;
        of.host.kv_set(collection, key, value(&new)?).map_err(failed)
    });
    let of = run.clone();
    engine.register_fn("kv_delete", move |collection: &str, key: &str| -> CallResult<bool> {
        of.call()?;
        of.host.kv_delete(collection, key).map_err(failed)
    });
    let of = run.clone();
    engine.register_fn("publish", move |topic: &str, data: Dynamic| -> CallResult<String> {
        of.call()?;
        of.host.publish(topic, value(&data)?).map_err(failed)
    });
    let of = run.clone();
    engine.register_fn("http", move |request: Map| -> CallResult<Map> {
        let remaining = of.call()?;
        let request = http_request(&value(&Dynamic::from_map(request))?)?;
        let HttpResponse { status, body } = of.host.http(request, remaining).map_err(failed)?;
        Ok(Map::from([("status".into(), i64::from(status).into()), ("body".into(), body.into())]))
    });
    let of = run.clone();
    engine.register_fn("resolve", move |dead_letter: &str| -> CallResult<()> {
        of.call()?;
        of.host.resolve(dead_letter, None).map_err(failed)
    });
    let of = run.clone();
    engine.register_fn("resolve", move |dead_letter: &str, note: &str| -> CallResult<()> {
        of.call()?;
        of.host.resolve(dead_letter, Some(note)).map_err(failed)
    });
}

/// Parses `#{url, method, headers, body}`. A body other than text is sent as JSON.
fn http_request(request: &Value) -> CallResult<HttpRequest> {
    let allowed = ["url", "method", "headers", "body"];
    let members = request.as_object().ok_or("http requires a map")?;
    if let Some(unknown) = members.keys().find(|name| !allowed.contains(&name.as_str())) {
        return Err(format!("http does not support `{unknown}`; allowed are url, method, headers and body").into());
    }
    let text = |name: &str| members.get(name).and_then(Value::as_str);
    let header = |(name, value): (&String, &Value)| {
        value
            .as_str()
            .map(|value| (name.clone(), value.to_owned()))
            .ok_or_else(|| format!("the header {name} is not a string"))
    };
    let headers = match members.get("headers") {
        None => Vec::new(),
        Some(Value::Object(headers)) => headers.iter().map(header).collect::<Result<_, _>>()?,
        Some(_) => return Err("headers must be a map of strings".into()),
    };
    let body = match members.get("body") {
        None => String::new(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
    };
    let method = text("method").unwrap_or(if members.contains_key("body") { "POST" } else { "GET" }).to_owned();
    Ok(HttpRequest { method, url: text("url").ok_or("http requires a url")?.to_owned(), headers, body })
}
