//! Triggers: every member is read the way it will be read when an event comes.

use axum::http::{HeaderName, HeaderValue};
use domain::limits::{DELIVERY_TIMEOUT_S_MAX, MAX_ATTEMPTS};
use domain::trigger::Source;
use domain::{RetryPolicy, TriggerId};
use engine::scripting;
use engine::trigger::lacked;
use serde_json::Value;
use store::schedule::Slots;
use store::secrets::is_sealed;
use store::secrets::spots::{self, Spot};
use store::triggers::fault::{self, Fault};
use store::triggers::filter::{self, Filter};
use store::triggers::target::{self, HttpTarget, Target};
use store::triggers::{Mode, NewTrigger, Trigger};
use wire::{JobRequest, TriggerRequest, TriggerRetry};

use super::Place;
use super::job::Maker;
use super::webhook;
use crate::auth::Principal;
use crate::error::ApiError;
use crate::signature;
use crate::state::{AppState, TriggerDefaults};

/// What filters look at, for dry runs.
pub(crate) const ATTRIBUTES: &[&str] =
    &["collection", "key", "topic", "queue", "kind", "to", "name", "health", "source_of_letter", "trigger", "slot"];
/// Shown in place of a secret; given back, it means the one that is kept.
pub(crate) const KEPT: &str = "(kept)";
/// Of the form that secrets have.
const SOME_SECRET: &str = "whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw";

/// A trigger to be made, or to take the place of `before`.
pub(crate) fn new_trigger(
    state: &AppState,
    principal: &Principal,
    id: TriggerId,
    request: TriggerRequest,
    before: Option<&Trigger>,
) -> Result<NewTrigger, ApiError> {
    let place = Place::Body;
    let name = place.label("name", &request.name)?.to_string();
    let source = Source::parse(&request.source).ok_or_else(|| {
        let all: Vec<&str> = Source::ALL.iter().map(|source| source.as_str()).collect();
        place.refuse("source", format_args!("must be one of {}", all.join(", ")))
    })?;
    let filter_text = request.filter.as_ref().map_or("{}", |filter| filter.get());
    let filter_text = Given { member: "filter", text: filter_text, spots: spots::in_filter };
    let filter = filter::read(source, id, &filter_text.checked()?).map_err(|fault| within("filter", fault))?;
    if let Some(secret) = &filter.secret
        && signature::key(secret).is_none()
    {
        return Err(place.refuse("filter.secret", "must be whsec_ followed by the base64 of 16 to 128 bytes"));
    }
    if let Some(before) = before.filter(|_| source == Source::Email) {
        keeps_its_address(before, &filter)?;
    }
    let filter_text = filter_text.with_kept(before.map(|before| before.filter.as_str()))?;
    let given = Given { member: "target", text: request.target.get(), spots: spots::in_target };
    let target = given.with_kept(before.map(|before| before.target.as_str()))?;
    let mode = match request.mode.as_deref() {
        // The job waits for what becomes of its run.
        None if filter.works.is_some() => Mode::Sync,
        None => Mode::Async,
        Some(text) => Mode::parse(text).ok_or_else(|| place.refuse("mode", "must be async or sync"))?,
    };
    if mode == Mode::Async && filter.works.is_some() {
        return Err(place.refuse("mode", "cannot be async: the job waits for its run"));
    }
    if mode == Mode::Sync && !matches!(source, Source::Kv | Source::Pubsub | Source::Http) && filter.works.is_none() {
        return Err(place.refuse("mode", format_args!("cannot be sync: nobody waits for an event of {source}")));
    }
    let enabled = request.enabled.unwrap_or(true);
    let (retry, max_attempts) = retry(&state.options.trigger_defaults, request.retry, before)?;
    let next_at = next_at(state, &filter)?.filter(|_| enabled);
    let new = NewTrigger { name, source, filter: filter_text, target, mode, retry, max_attempts, enabled, next_at };
    // Who turns another's trigger on or off does not answer for what it starts.
    if !before.is_some_and(|before| only_turns(before, &new)) {
        check_target(state, principal, source, &filter, &given.checked()?)?;
    }
    Ok(new)
}

/// Whether the new one is the old one, turned on or off.
pub(crate) fn only_turns(before: &Trigger, new: &NewTrigger) -> bool {
    new.enabled != before.enabled
        && new.name == before.name
        && new.source == before.source
        && new.mode == before.mode
        && (new.retry, new.max_attempts) == (before.retry, before.max_attempts)
        && is_same(&new.filter, &before.filter)
        && is_same(&new.target, &before.target)
}

fn is_same(one: &str, other: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).ok();
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// Whose an address is goes by the age of the triggers that name it: one that is there already may not take up another.
fn keeps_its_address(before: &Trigger, filter: &Filter) -> Result<(), ApiError> {
    // No other source has a `to`.
    let named = filter::read(before.source, before.id, &before.filter);
    if named.is_ok_and(|named| named.pattern.attributes == filter.pattern.attributes) {
        return Ok(());
    }
    let detail = "cannot be changed: an address belongs to whoever named it first; make another trigger for this one";
    Err(ApiError::invalid_field("filter.to", detail))
}

fn next_at(state: &AppState, filter: &Filter) -> Result<Option<domain::Time>, ApiError> {
    let Some(schedule) = &filter.schedule else { return Ok(None) };
    let slots = Slots::read(schedule).map_err(|fault| within("filter", fault))?;
    Ok(slots.after(state.store.clock().now()))
}

fn within(member: &str, fault: Fault) -> ApiError {
    let Fault { field, detail } = fault.within(member);
    ApiError::invalid_field(field, detail)
}

/// A filter or a target as it was sent, perhaps with `KEPT` where it was shown that in place of a secret.
struct Given<'a> {
    member: &'static str,
    text: &'a str,
    spots: fn(&Value) -> Vec<Spot>,
}

impl Given<'_> {
    fn parse(&self) -> Result<Value, ApiError> {
        serde_json::from_str(self.text)
            .map_err(|error| ApiError::invalid_field(self.member, format_args!("cannot be taken: {error}")))
    }

    /// The same with a secret of the right form where one is kept, to be held against the rules.
    fn checked(&self) -> Result<String, ApiError> {
        let mut value = self.parse()?;
        let kept = self.kept(&value);
        for spot in &kept {
            put(&mut value, &spot.pointer, SOME_SECRET.into());
        }
        Ok(if kept.is_empty() { self.text.to_owned() } else { value.to_string() })
    }

    /// The same with what is kept, taken from `before` as it lies there. A secret is kept for where it goes: another URL
    /// takes another secret.
    fn with_kept(&self, before: Option<&str>) -> Result<String, ApiError> {
        let mut value = self.parse()?;
        let kept = self.kept(&value);
        let before: Value = before.and_then(|before| serde_json::from_str(before).ok()).unwrap_or_default();
        let there = (self.spots)(&before);
        for spot in &kept {
            let secret = there.contains(spot).then(|| before.pointer(&spot.pointer).cloned()).flatten();
            let field = format!("{}{}", self.member, spot.pointer.replace('/', "."));
            let secret =
                secret.ok_or_else(|| ApiError::invalid_field(field, "must be a secret: none is kept for this"))?;
            put(&mut value, &spot.pointer, secret);
        }
        Ok(if kept.is_empty() { self.text.to_owned() } else { value.to_string() })
    }

    fn kept(&self, value: &Value) -> Vec<Spot> {
        let is_kept = |spot: &Spot| value.pointer(&spot.pointer).is_some_and(|secret| secret == KEPT);
        (self.spots)(value).into_iter().filter(is_kept).collect()
    }
}

fn put(value: &mut Value, pointer: &str, secret: Value) {
    if let Some(place) = value.pointer_mut(pointer) {
        *place = secret;
    }
}

/// The text with `KEPT` in place of its secrets, which are shown to nobody.
pub(crate) fn without_secrets(text: String, spots: fn(&Value) -> Vec<Spot>) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(&text) else { return text };
    let found = spots(&value);
    for spot in &found {
        put(&mut value, &spot.pointer, KEPT.into());
    }
    if found.is_empty() { text } else { value.to_string() }
}

fn check_target(
    state: &AppState,
    principal: &Principal,
    source: Source,
    filter: &Filter,
    text: &str,
) -> Result<(), ApiError> {
    let target = target::read(text).map_err(|fault| within("target", fault))?;
    if let Some(right) = lacked(source, filter, &target, &principal.standing()) {
        let detail = format_args!("what a trigger starts has your rights and no more: you lack the right {right}");
        return Err(ApiError::forbidden(detail));
    }
    match target {
        Target::Job(_) => {
            // The same rules as for any job. Expressions pass them as the texts they are.
            let mut value: Value = serde_json::from_str(text).unwrap_or_default();
            let request: JobRequest = fault::read(value["job"].take()).map_err(|fault| within("target.job", fault))?;
            let maker = Maker {
                principal: principal.name.clone(),
                payload_bytes: state.options.payload_bytes,
                now: state.store.clock().now(),
                depth: 0,
            };
            maker.template("target.job", request).map(|_| ())
        }
        Target::Http(http) => check_http(&http),
        // The reader has looked at all of it.
        Target::Runtime(_) => Ok(()),
        Target::Script(source) => {
            scripting::check(&source).map_err(|error| ApiError::invalid_field("target.script", error))
        }
    }
}

const METHODS: &[&str] = &["POST", "PUT", "PATCH", "DELETE", "GET"];
/// Headers that a call may carry beside its own.
const HEADERS: usize = 32;

pub(crate) fn check_http(http: &HttpTarget) -> Result<(), ApiError> {
    let place = Place::Member { of: "target.http" };
    webhook::url(place, "url", &http.url)?;
    let method = http.method.as_deref().unwrap_or("POST");
    if !METHODS.contains(&method) {
        return Err(place.refuse("method", format_args!("must be one of {}", METHODS.join(", "))));
    }
    place.at_most("headers", http.headers.len(), HEADERS, "headers")?;
    for (name, value) in &http.headers {
        let own = ["host", "content-length", "connection", "transfer-encoding", "windlass-depth"];
        let name = name.to_ascii_lowercase();
        let known = HeaderName::from_bytes(name.as_bytes()).is_ok();
        if !known || own.contains(&name.as_str()) || name.starts_with("webhook-") {
            return Err(place.refuse(format_args!("headers.{name}"), "is not a header that a call may set"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(place.refuse(format_args!("headers.{name}"), "must be visible ASCII"));
        }
        if is_sealed(value) {
            return Err(
                place.refuse(format_args!("headers.{name}"), "looks like a sealed secret: give what it stands for")
            );
        }
    }
    if let Some(seconds) = http.timeout_s {
        place.between("timeout_s", seconds, 1, DELIVERY_TIMEOUT_S_MAX)?;
    }
    if let Some(secret) = &http.secret
        && signature::key(secret).is_none()
    {
        return Err(place.refuse("secret", "must be whsec_ followed by the base64 of 16 to 128 bytes"));
    }
    Ok(())
}

fn retry(
    defaults: &TriggerDefaults,
    retry: Option<TriggerRetry>,
    before: Option<&Trigger>,
) -> Result<(RetryPolicy, i32), ApiError> {
    let Some(retry) = retry else {
        return Ok(match before {
            Some(before) => (before.retry, before.max_attempts),
            None => (defaults.retry, defaults.max_attempts),
        });
    };
    let TriggerRetry { max_attempts, initial_s, maximum_s, exponent, jitter } = retry;
    let settings = wire::RetrySettings {
        initial_s: initial_s.or(Some(defaults.retry.initial_s())),
        maximum_s: maximum_s.or(Some(defaults.retry.maximum_s())),
        exponent: exponent.or(Some(defaults.retry.exponent())),
        jitter: jitter.or(Some(defaults.retry.jitter())),
    };
    let max_attempts = match max_attempts {
        Some(attempts) => Place::Body.between("retry.max_attempts", attempts, 1, MAX_ATTEMPTS)? as i32,
        None => defaults.max_attempts,
    };
    Ok((Place::Body.retry("retry", settings)?, max_attempts))
}
