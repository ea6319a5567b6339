//! Events from outside: topics, CloudEvents and inbound hooks (T1).

use axum::Json;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode};
use domain::trigger::Source;
use domain::{EventId, TenantId, Time, TriggerId};
use sha2::{Digest, Sha256};
use store::events::Event;
use store::events::hook::{Message, Received};
use store::events::publish::Published;
use store::events::waited::Waited;
use store::jobs::enqueue::Idempotency;
use store::secrets::Purpose;
use store::triggers::filter;
use store::triggers::{Mode, Trigger};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{EventAccepted, SyncRunView};

use crate::auth::Principal;
use crate::cloudevent::{self, CloudEvent};
use crate::depth;
use crate::error::ApiError;
use crate::extract::{AnyJson, PathTopic, PathTrigger, RawBody, drain, read_at_most};
use crate::http::v1::jobs::idempotency;
use crate::json;
use crate::signature;
use crate::state::AppState;
use crate::sync;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(publish)).routes(routes!(cloud_events)).routes(routes!(hook))
}

/// Publishes any JSON on a topic. What it starts is durable when the answer comes.
#[utoipa::path(post, path = "/api/v1/topics/{topic}", tag = "events",
    params(("topic" = String, Path),
        ("Idempotency-Key" = Option<String>, Header, description = "the same key and body are one event for a day")),
    request_body = serde_json::Value,
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "it was published before")))]
async fn publish(
    State(state): State<AppState>,
    principal: Principal,
    PathTopic(topic): PathTopic,
    headers: HeaderMap,
    AnyJson(data): AnyJson,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    // A key is used for one topic; the keys of jobs are apart from it.
    let once = idempotency(&principal, &headers, data.as_bytes())?;
    let once = once.map(|once| Idempotency { key: format!("topic\n{topic}\n{}", once.key), ..once });
    let now = state.store.clock().now();
    let event = Event::new(now, principal.tenant, Source::Pubsub, "publish", depth::of(&headers)?, data.into());
    accept(&state, vec![event.with("topic", topic.as_str()).once(once)]).await
}

/// Takes CloudEvents in binary, structured or batch mode; each is published on the topic of its type.
///
/// One with the source and id of another is the same event: for a day it is answered with the first one's id.
#[utoipa::path(post, path = "/api/v1/events", tag = "events",
    request_body(content((Object = "application/cloudevents+json"),
        (Vec<Object> = "application/cloudevents-batch+json"), (serde_json::Value = "application/json"))),
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "all of them were taken before")))]
async fn cloud_events(
    State(state): State<AppState>,
    principal: Principal,
    headers: HeaderMap,
    RawBody(body): RawBody,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    let depth = depth::of(&headers)?;
    let events = cloudevent::read(&headers, &body)?.ok_or_else(ApiError::not_a_cloudevent)?;
    let now = state.store.clock().now();
    let event = |event| of_cloud_event(&state, now, principal.tenant, Place::Topics, depth, event);
    accept(&state, events.into_iter().map(event).collect::<Result<_, _>>()?).await
}

/// Where a CloudEvent was sent to. Each hook hears it for itself.
#[derive(Clone, Copy)]
enum Place {
    Topics,
    Hook(TriggerId),
}

impl Place {
    /// The source and id of a CloudEvent are its own: whatever else comes under them is the same event.
    fn once(self, source: &str, id: &str) -> Idempotency {
        let digest: [u8; 32] = Sha256::digest(format!("{source}\n{id}")).into();
        let hex: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
        let key = match self {
            Self::Topics => format!("cloudevent\n{hex}"),
            Self::Hook(trigger) => format!("cloudevent\n{trigger}\n{hex}"),
        };
        Idempotency { key, body_hash: digest }
    }
}

/// An event with the attributes of a CloudEvent; its topic is its type.
fn of_cloud_event(
    state: &AppState,
    now: Time,
    tenant: TenantId,
    place: Place,
    depth: i32,
    event: CloudEvent,
) -> Result<Event, ApiError> {
    let CloudEvent { id, source: from, kind, subject, time, data } = event;
    if data.len() > state.options.payload_bytes {
        let most = state.options.payload_bytes;
        return Err(ApiError::invalid_field(
            "data",
            format_args!("may have at most {most} bytes; it has {}", data.len()),
        ));
    }
    let (source, op) = match place {
        Place::Topics => (Source::Pubsub, "publish"),
        Place::Hook(_) => (Source::Http, "receive"),
    };
    let event = Event::new(now, tenant, source, op, depth, data)
        .once(Some(place.once(&from, &id)))
        .with("topic", kind.as_str())
        .with("ce_id", id)
        .with("ce_source", from);
    let event = subject.into_iter().fold(event, |event, subject| event.with("ce_subject", subject));
    Ok(time.into_iter().fold(event, |event, time| event.with("ce_time", time)))
}

async fn accept(state: &AppState, events: Vec<Event>) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    metrics::counter!("windlass_events_total").increment(events.len() as u64);
    let tenant = events.first().map(|event| event.tenant);
    let (ids, waited, before) = match state.store.publish(events).await? {
        Published::Done { ids, waited, before } => (ids, waited, before),
        Published::KeyReused => return Err(ApiError::idempotency_key_reused()),
    };
    let runs = sync::runs(state, tenant.unwrap_or(TenantId::DEFAULT), waited).await;
    Ok((if before { StatusCode::OK } else { StatusCode::ACCEPTED }, Json(accepted(&ids, runs))))
}

fn accepted(ids: &[EventId], runs: Vec<SyncRunView>) -> EventAccepted {
    let all: Vec<_> = ids.iter().map(|id| id.uuid()).collect();
    EventAccepted { event_id: all[0], event_ids: if all.len() > 1 { all } else { Vec::new() }, runs }
}

/// Calls an `http` trigger: JSON, or CloudEvents. Whoever knows the address may call it, unless it wants a signature.
///
/// A signed message is taken once: the same again gets the same answer, and another one under its id is refused. A
/// CloudEvent is taken once for a day.
#[utoipa::path(post, path = "/api/v1/hooks/{id}", tag = "events", params(("id" = Uuid, Path)),
    request_body = serde_json::Value,
    responses((status = 202, body = EventAccepted),
        (status = 200, body = EventAccepted, description = "this message was taken before"),
        (status = 409, description = "another message was taken under this webhook-id")))]
async fn hook(
    State(state): State<AppState>,
    PathTrigger(id): PathTrigger,
    request: Request,
) -> Result<(StatusCode, Json<EventAccepted>), ApiError> {
    let (parts, body) = request.into_parts();
    let headers = parts.headers;
    // Whoever guesses addresses has nothing kept in memory.
    let Some(trigger) = called(&state, id).await? else {
        drain(&headers, body).await;
        return Err(no_hook());
    };
    let most = cloudevent::body_bytes(&headers, state.options.payload_bytes);
    let body = read_at_most(most, &headers, body).await?;
    let message = signed(&state, &trigger, &headers, &body).await?;
    let events = events(&state, &trigger, &headers, &body)?;
    metrics::counter!("windlass_events_total").increment(events.len() as u64);
    let (status, ids) = match state.store.receive_hook(id, events, message).await? {
        Received::Taken(ids) => (StatusCode::ACCEPTED, ids),
        Received::Before(ids) => (StatusCode::OK, ids),
        Received::Replay => return Err(ApiError::replay_refused()),
        Received::NotFound => return Err(no_hook()),
    };
    let sync = trigger.mode == Mode::Sync;
    let waited = ids.iter().filter(|_| sync).map(|event| Waited { trigger: id, event: *event }).collect();
    let runs = sync::runs(&state, trigger.tenant, waited).await;
    Ok((status, Json(accepted(&ids, runs))))
}

fn no_hook() -> ApiError {
    ApiError::not_found("hook")
}

/// The trigger that a hook's address belongs to.
async fn called(state: &AppState, id: TriggerId) -> Result<Option<Trigger>, ApiError> {
    let trigger = state.store.trigger_of_any_tenant(id).await?;
    Ok(trigger.filter(|trigger| trigger.source == Source::Http && trigger.enabled))
}

/// What the caller signed, where the hook wants that.
async fn signed(
    state: &AppState,
    trigger: &Trigger,
    headers: &HeaderMap,
    body: &[u8],
) -> Result<Option<Message>, ApiError> {
    let id = trigger.id;
    let filter = filter::read(trigger.source, id, &trigger.filter)
        .map_err(|fault| store::StoreError::unexpected(format!("the filter of trigger {id}: {fault}")))?;
    let Some(sealed) = &filter.secret else { return Ok(None) };
    let secret = state.store.open_sealed(trigger.tenant, Purpose::Hook { trigger: id }, sealed).await?;
    let message = signature::verified(headers, body, &secret, state.store.clock().now())?;
    Ok(Some(Message { id: message, body_hash: Sha256::digest(body).into() }))
}

fn events(state: &AppState, trigger: &Trigger, headers: &HeaderMap, body: &[u8]) -> Result<Vec<Event>, ApiError> {
    let (now, depth) = (state.store.clock().now(), depth::of(headers)?);
    let Some(events) = cloudevent::read(headers, body)? else {
        let data = plain(state, headers, body)?;
        return Ok(vec![Event::new(now, trigger.tenant, Source::Http, "receive", depth, data)]);
    };
    let event = |event| of_cloud_event(state, now, trigger.tenant, Place::Hook(trigger.id), depth, event);
    events.into_iter().map(event).collect()
}

fn plain(state: &AppState, headers: &HeaderMap, body: &[u8]) -> Result<String, ApiError> {
    crate::extract::check_content_type(headers)?;
    let most = state.options.payload_bytes;
    if body.len() > most {
        return Err(ApiError::body_too_large(most as u64));
    }
    json::any(body).map(Into::into)
}
