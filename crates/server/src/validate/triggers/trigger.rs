//! Validation of triggers, with the same parsers that read them when an event arrives.

use axum::http::{HeaderName, HeaderValue};
use domain::limits::{DELIVERY_TIMEOUT_MAX_S, MAX_ATTEMPTS};
use domain::triggers::trigger::Source;
use domain::{RetryPolicy, TriggerId};
use engine::triggers::plan::missing_right;
use engine::triggers::scripting;
use serde_json::Value;
use store::access::secrets::is_sealed;
use store::access::secrets::secret_fields;
use store::access::secrets::secret_fields::SecretField;
use store::triggers::fault::{self, Fault};
use store::triggers::filter::{self, Filter};
use store::triggers::schedule::Slots;
use store::triggers::target::{self, HttpTarget, Target};
use store::triggers::{Mode, NewTrigger, Trigger};
use wire::{JobRequest, TriggerRequest, TriggerRetry};

use super::webhook;
use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::state::{AppState, TriggerDefaults};
use crate::triggers::hook_signature;
use crate::validate::FieldPath;
use crate::validate::queue::job::JobBuilder;

/// Attributes that filters can match, for dry runs.
pub(crate) const ATTRIBUTES: &[&str] =
    &["collection", "key", "topic", "queue", "kind", "to", "name", "health", "source_of_letter", "trigger", "slot"];
/// Placeholder for a secret. A request that contains it keeps the stored secret.
pub(crate) const REDACTED_SECRET: &str = "(kept)";
/// A well-formed secret for validation.
const EXAMPLE_SECRET: &str = "whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw";

/// Validates a new trigger, or the replacement of `before`.
pub(crate) fn new_trigger(
    state: &AppState,
    principal: &Principal,
    id: TriggerId,
    request: TriggerRequest,
    before: Option<&Trigger>,
) -> Result<NewTrigger, ApiError> {
    let path = FieldPath::Body;
    let name = path.label("name", &request.name)?.to_string();
    let source = Source::parse(&request.source).ok_or_else(|| {
        let all: Vec<&str> = Source::ALL.iter().map(|source| source.as_str()).collect();
        path.refuse("source", format_args!("must be one of {}", all.join(", ")))
    })?;
    let filter_text = request.filter.as_ref().map_or("{}", |filter| filter.get());
    let filter_text = RequestedJson { member: "filter", text: filter_text, secret_fields: secret_fields::in_filter };
    let filter =
        filter::read(source, id, &filter_text.with_example_secrets()?).map_err(|fault| within("filter", fault))?;
    if let Some(secret) = &filter.secret
        && hook_signature::key(secret).is_none()
    {
        return Err(path.refuse("filter.secret", "must be whsec_ followed by the base64 of 16 to 128 bytes"));
    }
    if let Some(before) = before.filter(|_| source == Source::Email) {
        check_address_unchanged(before, &filter)?;
    }
    let filter_text = filter_text.with_stored_secrets(before.map(|before| before.filter.as_str()))?;
    let requested_target =
        RequestedJson { member: "target", text: request.target.get(), secret_fields: secret_fields::in_target };
    let target = requested_target.with_stored_secrets(before.map(|before| before.target.as_str()))?;
    let mode = match request.mode.as_deref() {
        // The job waits for the result of its run.
        None if filter.works.is_some() => Mode::Sync,
        None => Mode::Async,
        Some(text) => Mode::parse(text).ok_or_else(|| path.refuse("mode", "must be async or sync"))?,
    };
    if mode == Mode::Async && filter.works.is_some() {
        return Err(path.refuse("mode", "cannot be async, because the job waits for its run; use sync"));
    }
    if mode == Mode::Sync && !matches!(source, Source::Kv | Source::Pubsub | Source::Http) && filter.works.is_none() {
        return Err(path.refuse(
            "mode",
            format_args!("cannot be sync, because no caller waits for events of {source}; use async"),
        ));
    }
    let enabled = request.enabled.unwrap_or(true);
    let handles = request.handles.unwrap_or(false);
    if handles && source != Source::DeadLetter {
        return Err(path.refuse("handles", "is only for triggers with the source dead_letter; remove it"));
    }
    let (retry, max_attempts) = retry(&state.options.trigger_defaults, request.retry, before)?;
    let next_at = next_at(state, &filter)?.filter(|_| enabled);
    let new =
        NewTrigger { name, source, filter: filter_text, target, mode, retry, max_attempts, enabled, handles, next_at };
    // A caller that only enables or disables the trigger does not become its principal, so its rights are not checked.
    if !before.is_some_and(|before| only_toggles(before, &new)) {
        check_target(state, principal, source, &filter, &requested_target.with_example_secrets()?)?;
    }
    Ok(new)
}

/// True if `new` differs from `before` only in `enabled`.
pub(crate) fn only_toggles(before: &Trigger, new: &NewTrigger) -> bool {
    new.enabled != before.enabled
        && new.name == before.name
        && new.source == before.source
        && new.mode == before.mode
        && new.handles == before.handles
        && (new.retry, new.max_attempts) == (before.retry, before.max_attempts)
        && is_same(&new.filter, &before.filter)
        && is_same(&new.target, &before.target)
}

fn is_same(one: &str, other: &str) -> bool {
    let read = |text| serde_json::from_str::<Value>(text).ok();
    read(one).is_some_and(|one| read(other) == Some(one))
}

/// Refuses a change of an email trigger's address. An address belongs to the tenant of the oldest trigger that names
/// it, so an old trigger must not take over another address.
fn check_address_unchanged(before: &Trigger, filter: &Filter) -> Result<(), ApiError> {
    // Only email triggers have a `to` filter.
    let named = filter::read(before.source, before.id, &before.filter);
    if named.is_ok_and(|named| named.pattern.attributes == filter.pattern.attributes) {
        return Ok(());
    }
    let detail =
        "cannot be changed, because the oldest trigger of an address owns it; create a new trigger for this address";
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

/// A filter or target of a request, which may contain `REDACTED_SECRET` placeholders.
struct RequestedJson<'a> {
    member: &'static str,
    text: &'a str,
    secret_fields: fn(&Value) -> Vec<SecretField>,
}

impl RequestedJson<'_> {
    fn parse(&self) -> Result<Value, ApiError> {
        serde_json::from_str(self.text)
            .map_err(|error| ApiError::invalid_field(self.member, format_args!("is invalid: {error}")))
    }

    /// Returns the text with a well-formed secret in place of each placeholder, for validation.
    fn with_example_secrets(&self) -> Result<String, ApiError> {
        let mut value = self.parse()?;
        let placeholders = self.placeholders(&value);
        for secret_field in &placeholders {
            put(&mut value, &secret_field.pointer, EXAMPLE_SECRET.into());
        }
        Ok(if placeholders.is_empty() { self.text.to_owned() } else { value.to_string() })
    }

    /// Returns the text with the stored secret of `before` in place of each placeholder. A secret is bound to its
    /// destination: a changed URL needs a new secret.
    fn with_stored_secrets(&self, before: Option<&str>) -> Result<String, ApiError> {
        let mut value = self.parse()?;
        let placeholders = self.placeholders(&value);
        let before: Value = before.and_then(|before| serde_json::from_str(before).ok()).unwrap_or_default();
        let stored_fields = (self.secret_fields)(&before);
        for secret_field in &placeholders {
            let secret =
                stored_fields.contains(secret_field).then(|| before.pointer(&secret_field.pointer).cloned()).flatten();
            let field = format!("{}{}", self.member, secret_field.pointer.replace('/', "."));
            let secret = secret.ok_or_else(|| {
                ApiError::invalid_field(field, "must be a secret, because none is stored for this destination")
            })?;
            put(&mut value, &secret_field.pointer, secret);
        }
        Ok(if placeholders.is_empty() { self.text.to_owned() } else { value.to_string() })
    }

    fn placeholders(&self, value: &Value) -> Vec<SecretField> {
        let is_placeholder = |secret_field: &SecretField| {
            value.pointer(&secret_field.pointer).is_some_and(|secret| secret == REDACTED_SECRET)
        };
        (self.secret_fields)(value).into_iter().filter(is_placeholder).collect()
    }
}

fn put(value: &mut Value, pointer: &str, secret: Value) {
    if let Some(slot) = value.pointer_mut(pointer) {
        *slot = secret;
    }
}

/// Returns the text with placeholders in place of its secrets.
pub(crate) fn without_secrets(text: String, secret_fields: fn(&Value) -> Vec<SecretField>) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(&text) else { return text };
    let found = secret_fields(&value);
    for secret_field in &found {
        put(&mut value, &secret_field.pointer, REDACTED_SECRET.into());
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
    if let Some(right) = missing_right(source, filter, &target, &principal.current_rights()) {
        let detail = format_args!("the trigger would act with your rights, and you lack the right {right}");
        return Err(ApiError::forbidden(detail));
    }
    match target {
        Target::Job(_) => {
            // The rules of any job apply. Expressions are validated as plain text.
            let mut value: Value = serde_json::from_str(text).unwrap_or_default();
            let request: JobRequest = fault::read(value["job"].take()).map_err(|fault| within("target.job", fault))?;
            let builder = JobBuilder {
                principal: principal.name.clone(),
                payload_bytes: state.options.payload_bytes,
                now: state.store.clock().now(),
                depth: 0,
                traceparent: None,
            };
            builder.template("target.job", request).map(|_| ())
        }
        Target::Http(http) => check_http(&http),
        // The parser has validated it completely.
        Target::Runtime(_) => Ok(()),
        Target::Script(source) => {
            scripting::check(&source).map_err(|error| ApiError::invalid_field("target.script", error))
        }
    }
}

const METHODS: &[&str] = &["POST", "PUT", "PATCH", "DELETE", "GET"];
/// Maximum number of additional headers of a call.
const HEADERS: usize = 32;

pub(crate) fn check_http(http: &HttpTarget) -> Result<(), ApiError> {
    let path = FieldPath::Member { of: "target.http" };
    webhook::url(path, "url", &http.url)?;
    let method = http.method.as_deref().unwrap_or("POST");
    if !METHODS.contains(&method) {
        return Err(path.refuse("method", format_args!("must be one of {}", METHODS.join(", "))));
    }
    path.at_most("headers", http.headers.len(), HEADERS, "headers")?;
    for (name, value) in &http.headers {
        let own = ["host", "content-length", "connection", "transfer-encoding", "windlass-depth"];
        let name = name.to_ascii_lowercase();
        let known = HeaderName::from_bytes(name.as_bytes()).is_ok();
        if !known || own.contains(&name.as_str()) || name.starts_with("webhook-") {
            return Err(path.refuse(format_args!("headers.{name}"), "is invalid or reserved; remove it"));
        }
        if HeaderValue::from_str(value).is_err() {
            return Err(path.refuse(format_args!("headers.{name}"), "must contain visible ASCII only"));
        }
        if is_sealed(value) {
            return Err(path.refuse(format_args!("headers.{name}"), "looks like a sealed secret; send the plain value"));
        }
    }
    if let Some(seconds) = http.timeout_s {
        path.between("timeout_s", seconds, 1, DELIVERY_TIMEOUT_MAX_S)?;
    }
    if let Some(secret) = &http.secret
        && hook_signature::key(secret).is_none()
    {
        return Err(path.refuse("secret", "must be whsec_ followed by the base64 of 16 to 128 bytes"));
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
        Some(attempts) => FieldPath::Body.between("retry.max_attempts", attempts, 1, MAX_ATTEMPTS)? as i32,
        None => defaults.max_attempts,
    };
    Ok((FieldPath::Body.retry("retry", settings)?, max_attempts))
}
