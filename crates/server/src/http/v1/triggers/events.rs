//! Incoming events: topics, CloudEvents and webhooks.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use domain::triggers::trigger::Source;
use domain::{EventId, TenantId, Time, TriggerId};
use sha2::{Digest, Sha256};
use store::access::secrets::Purpose;
use store::queue::enqueue::Idempotency;
use store::triggers::events::Event;
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::events::hook::{Received, SignedMessage};
use store::triggers::events::publish::Published;
use store::triggers::filter;
use store::triggers::{Mode, Trigger};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{EventAccepted, SyncRunView};

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::{AnyJson, PathTopic, PathTrigger, RawBody, drain, read_at_most};
use crate::http::v1::queue::jobs::idempotency;
use crate::json;
use crate::state::AppState;
use crate::triggers::cloudevent;
use crate::triggers::cloudevent::CloudEvent;
use crate::triggers::depth;
use crate::triggers::hook_signature;
use crate::triggers::sync;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(publish)).routes(routes!(cloud_events)).routes(routes!(hook))
}

/// Publish JSON on a topic.
///
/// The event and the runs it triggers are durable when the response arrives. Idempotent with an `Idempotency-Key`.
/// Returns 413 if the body is too large.
#[utoipa::path(post, path = "/api/v1/topics/{topic}", tag = "events",
    params(("topic" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key and body within 24 hours publishes one event.")),
    request_body = serde_json::Value,
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "The event was already published")))]
async fn publish(
    State(state): State<AppState>,
    principal: Principal,
    PathTopic(topic): PathTopic,
    headers: HeaderMap,
    AnyJson(data): AnyJson,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    // Scope the key to the topic, apart from the keys of jobs.
    let idempotency = idempotency(&principal, &headers, data.as_bytes())?;
    let idempotency = idempotency.map(|key| Idempotency { key: format!("topic\n{topic}\n{}", key.key), ..key });
    let now = state.store.clock().now();
    let event = Event::new(now, principal.tenant, Source::Pubsub, "publish", depth::of(&headers)?, data.into());
    accept(&state, vec![event.with("topic", topic.as_str()).once(idempotency)]).await
}

/// Publish CloudEvents in binary, structured or batch mode, each on the topic of its type.
///
/// Idempotent: within 24 hours, an event with the same source and id returns the id of the first one. Returns 415 if
/// the request contains no CloudEvent.
#[utoipa::path(post, path = "/api/v1/events", tag = "events",
    request_body(content((Object = "application/cloudevents+json"),
        (Vec<Object> = "application/cloudevents-batch+json"), (serde_json::Value = "application/json"))),
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "All events were already published")))]
async fn cloud_events(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    let depth = depth::of(&headers)?;
    let events = cloudevent::read(&headers, &body)?.ok_or_else(ApiError::not_a_cloudevent)?;
    let now = state.store.clock().now();
    let event = |event| from_cloud_event(&state, now, principal.tenant, EventTarget::Topics, depth, event);
    accept(&state, events.into_iter().map(event).collect::<Result<_, _>>()?).await
}

/// Where a CloudEvent was sent. Deduplication is separate for each hook.
#[derive(Clone, Copy)]
enum EventTarget {
    Topics,
    Hook(TriggerId),
}

impl EventTarget {
    /// The source and id identify a CloudEvent: a second one with both is a duplicate, whatever its content.
    fn idempotency(self, source: &str, id: &str) -> Idempotency {
        let digest: [u8; 32] = Sha256::digest(format!("{source}\n{id}")).into();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = match self {
            Self::Topics => format!("cloudevent\n{hex}"),
            Self::Hook(trigger) => format!("cloudevent\n{trigger}\n{hex}"),
        };
        Idempotency { key, body_hash: digest }
    }
}

/// Builds an event from a CloudEvent. The topic is the type.
fn from_cloud_event(
    state: &AppState,
    now: Time,
    tenant: TenantId,
    target: EventTarget,
    depth: i32,
    event: CloudEvent,
) -> Result<Event, ApiError> {
    let CloudEvent { id, source: ce_source, kind, subject, time, data } = event;
    if data.len() > state.options.payload_bytes {
        let limit = state.options.payload_bytes;
        return Err(ApiError::invalid_field(
            "data",
            format_args!("may have at most {limit} bytes; it has {}", data.len()),
        ));
    }
    let (source, op) = match target {
        EventTarget::Topics => (Source::Pubsub, "publish"),
        EventTarget::Hook(_) => (Source::Http, "receive"),
    };
    let event = Event::new(now, tenant, source, op, depth, data)
        .once(Some(target.idempotency(&ce_source, &id)))
        .with("topic", kind.as_str())
        .with("ce_id", id)
        .with("ce_source", ce_source);
    let event = subject.into_iter().fold(event, |event, subject| event.with("ce_subject", subject));
    Ok(time.into_iter().fold(event, |event, time| event.with("ce_time", time)))
}

async fn accept(state: &AppState, events: Vec<Event>) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    metrics::counter!("windlass_events_total").increment(events.len() as u64);
    let tenant = events.first().map(|event| event.tenant);
    let (ids, waited, is_duplicate) = match state.store.publish(events).await? {
        Published::Done { ids, waited, is_duplicate } => (ids, waited, is_duplicate),
        Published::KeyReused => return Err(ApiError::idempotency_key_reused()),
    };
    let runs = sync::runs(state, tenant.unwrap_or(TenantId::DEFAULT), waited).await;
    Ok((if is_duplicate { StatusCode::OK } else { StatusCode::ACCEPTED }, Json(accepted(&ids, runs))))
}

fn accepted(ids: &[EventId], runs: Vec<SyncRunView>) -> EventAccepted {
    let all: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    EventAccepted { event_id: all[0], event_ids: if all.len() > 1 { all } else { Vec::new() }, runs }
}

/// Receive a webhook: JSON or CloudEvents for an `http` trigger.
///
/// Needs no token: the id is unguessable, and the hook may require a Standard Webhooks signature. Idempotent for signed
/// messages: a message that is sent again gets the same response, and a different one with its id returns 409.
/// CloudEvents are deduplicated for 24 hours.
///
/// The hook of a `sync` trigger waits for the run and returns 200 with its result, or an error with the same status as a
/// call: 422 the handler refused the input, 502 the run failed, 503 nothing could run it, 504 timeout, 507 out of
/// resources, 500 the script or the handler is broken.
#[utoipa::path(post, path = "/api/v1/hooks/{id}", tag = "events", params(("id" = Uuid, Path)),
    request_body = serde_json::Value,
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "The run of a `sync` trigger succeeded, or the message was already accepted"),
        (status = 409, description = "A different message was accepted with this webhook-id")))]
async fn hook(
    State(state): State<AppState>,
    PathTrigger(id): PathTrigger,
    request: Request,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    // Nothing is buffered for callers that guess ids.
    let Some(trigger) = hook_trigger(&state, id).await? else {
        drain(&headers, body).await;
        return Err(hook_not_found());
    };
    let limit = cloudevent::body_bytes(&headers, state.options.payload_bytes);
    let body = read_at_most(limit, &headers, body).await?;
    let message = verify(&state, &trigger, &headers, &body).await?;
    let events = events(&state, &trigger, &headers, &body)?;
    metrics::counter!("windlass_events_total").increment(events.len() as u64);
    let (status, ids) = match state.store.receive_hook(id, events, message).await? {
        Received::Accepted(ids) => (StatusCode::ACCEPTED, ids),
        Received::Duplicate(ids) => (StatusCode::OK, ids),
        Received::Replay => return Err(ApiError::replay_refused()),
        Received::NotFound => return Err(hook_not_found()),
    };
    let sync = trigger.mode == Mode::Sync;
    let waited = ids.iter().filter(|_| sync).map(|event| AwaitedRun { trigger: id, event: *event }).collect();
    let runs = sync::hook_runs(&state, trigger.tenant, waited).await?;
    // The caller of a `sync` trigger gets the outcome of the run, not that it was accepted.
    let status = if runs.is_empty() { status } else { StatusCode::OK };
    Ok((status, Json(accepted(&ids, runs))))
}

fn hook_not_found() -> ApiError {
    ApiError::not_found("hook")
}

/// Returns the enabled `http` trigger of a hook.
async fn hook_trigger(state: &AppState, id: TriggerId) -> Result<Option<Trigger>, ApiError> {
    let trigger = state.store.trigger_of_any_tenant(id).await?;
    Ok(trigger.filter(|trigger| trigger.source == Source::Http && trigger.enabled))
}

/// Verifies the signature, if the hook requires one, and returns the identity of the message.
async fn verify(
    state: &AppState,
    trigger: &Trigger,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<SignedMessage>, ApiError> {
    let id = trigger.id;
    let filter = filter::read(trigger.source, id, &trigger.filter)
        .map_err(|fault| store::StoreError::unexpected(format!("the filter of trigger {id}: {fault}")))?;
    let Some(sealed) = &filter.secret else { return Ok(None) };
    let secret = state.store.open_sealed(trigger.tenant, Purpose::Hook { trigger: id }, sealed).await?;
    let message = hook_signature::verify(headers, body, &secret, state.store.clock().now())?;
    Ok(Some(SignedMessage { id: message, body_hash: Sha256::digest(body).into() }))
}

fn events(state: &AppState, trigger: &Trigger, headers: &HeaderMap, body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let (now, depth) = (state.store.clock().now(), depth::of(headers)?);
    let Some(events) = cloudevent::read(headers, body)? else {
        let data = json_body(state, headers, body)?;
        return Ok(vec![Event::new(now, trigger.tenant, Source::Http, "receive", depth, data)]);
    };
    let event = |event| from_cloud_event(state, now, trigger.tenant, EventTarget::Hook(trigger.id), depth, event);
    events.into_iter().map(event).collect()
}

fn json_body(state: &AppState, headers: &HeaderMap, body: &[u8]) -> Result<String, ApiError> {
    crate::extract::check_content_type(headers)?;
    let limit = state.options.payload_bytes;
    if body.len() > limit {
        return Err(ApiError::body_too_large(limit as u64));
    }
    json::any(body).map(Into::into)
}
