//! Triggers: register, look, change, fire by hand and try without doing (T2, T10).

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::TriggerId;
use engine::scripting::{Actor, Ended, Way};
use engine::trigger::{FIRED_BY_HAND, NoRun, Run, run};
use store::events::Event;
use store::events::waited::Waited;
use store::outbox::Taken;
use store::outbox::deed::Deed;
use store::triggers::filter;
use store::triggers::put::Put;
use store::triggers::{Mode, Trigger};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{DryRunView, FireRequest, FireView, Page, RawValue, TriggerRequest, TriggerRunView, TriggerView};

use crate::auth::Principal;
use crate::cursor;
use crate::depth;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathTrigger};
use crate::page::page;
use crate::state::AppState;
use crate::sync;
use crate::validate::query::{PageQuery, limit};
use crate::validate::trigger::{ATTRIBUTES, new_trigger, only_turns};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, put, delete))
        .routes(routes!(fire))
        .routes(routes!(runs))
}

/// Lists triggers, newest first.
#[utoipa::path(get, path = "/api/v1/triggers", tag = "triggers", params(PageQuery),
    responses((status = 200, body = Page<TriggerView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TriggerView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::trigger(query.cursor.as_deref())?;
    let triggers = state.store.list_triggers(principal.tenant, before, limit + 1).await?;
    let now = state.store.clock().now();
    let triggers = page(triggers, limit, |last| cursor::after_trigger(last.id));
    Ok(Json(triggers.try_map(|trigger| view::trigger(trigger, &principal, now))?))
}

/// Registers a trigger. Every event after the answer finds it, on every node.
#[utoipa::path(post, path = "/api/v1/triggers", tag = "triggers", request_body = TriggerRequest,
    responses((status = 201, body = TriggerView)))]
async fn create(
    State(state): State<AppState>,
    principal: Principal,
    JsonBody(request): JsonBody<TriggerRequest>,
) -> Result<(StatusCode, Json<TriggerView>), ApiError> {
    let id = state.store.new_trigger_id();
    let trigger = new_trigger(&state, &principal, id, request, None)?;
    let put = state.store.create_trigger(principal.tenant, id, trigger, &principal.name).await?;
    let made = answer(&state, &principal, done(put)?).await.map_err(ApiError::after_a_change)?;
    Ok((StatusCode::CREATED, made))
}

/// One trigger, with its figures and, for a schedule, the next five fires.
#[utoipa::path(get, path = "/api/v1/triggers/{id}", tag = "triggers", params(("id" = Uuid, Path)),
    responses((status = 200, body = TriggerView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
) -> Result<Json<TriggerView>, ApiError> {
    answer(&state, &principal, id).await
}

/// Replaces a trigger, or turns it on or off. What it starts has the rights of whoever replaced it last; who sends back
/// what was shown with another `enabled` replaces nothing.
#[utoipa::path(put, path = "/api/v1/triggers/{id}", tag = "triggers", params(("id" = Uuid, Path)),
    request_body = TriggerRequest, responses((status = 200, body = TriggerView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
    JsonBody(request): JsonBody<TriggerRequest>,
) -> Result<Json<TriggerView>, ApiError> {
    let (store, tenant) = (&state.store, principal.tenant);
    let put = loop {
        let before = find(&state, &principal, id).await?;
        let trigger = new_trigger(&state, &principal, id, request.clone(), Some(&before))?;
        let put = match only_turns(&before, &trigger) {
            true => store.turn_trigger(tenant, id, before.updated_at, trigger, &principal.name).await?,
            false => store.replace_trigger(tenant, id, trigger, &principal.name).await?,
        };
        // Somebody was faster: what is left to do is judged by what is there now.
        if put != Put::Changed {
            break put;
        }
    };
    answer(&state, &principal, done(put)?).await.map_err(ApiError::after_a_change)
}

/// Takes a trigger away, with what it had still to start.
#[utoipa::path(delete, path = "/api/v1/triggers/{id}", tag = "triggers", params(("id" = Uuid, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_trigger(principal.tenant, id, &principal.name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_found()),
    }
}

/// Starts a trigger by hand; with `dry_run`, shows whether an event would match and what would be started.
#[utoipa::path(post, path = "/api/v1/triggers/{id}/fire", tag = "triggers", params(("id" = Uuid, Path)),
    request_body = Option<FireRequest>,
    responses((status = 202, body = FireView), (status = 200, body = FireView, description = "a dry run")))]
async fn fire(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
    headers: HeaderMap,
    OptionalJson(request): OptionalJson<FireRequest>,
) -> Result<(StatusCode, Json<FireView>), ApiError> {
    let depth = depth::of(&headers)?;
    let trigger = find(&state, &principal, id).await?;
    let dry_run = request.dry_run == Some(true);
    if !dry_run && (request.op.is_some() || request.attributes.is_some()) {
        let field = if request.op.is_some() { "op" } else { "attributes" };
        return Err(ApiError::invalid_field(
            field,
            "is for a dry run; a trigger fired by hand runs whatever its filter says",
        ));
    }
    let data: String = request.data.map_or_else(|| "null".into(), |data| data.get().to_owned());
    if data.len() > state.options.payload_bytes {
        let most = state.options.payload_bytes;
        return Err(ApiError::invalid_field("data", format_args!("may have at most {most} bytes of JSON")));
    }
    let op = request.op.as_deref().unwrap_or(FIRED_BY_HAND);
    let now = state.store.clock().now();
    let mut event = Event::new(now, principal.tenant, trigger.source, op, depth, data);
    for (name, value) in request.attributes.unwrap_or_default() {
        let Some(known) = ATTRIBUTES.iter().find(|known| **known == name) else {
            let detail = format_args!("is not known; use {}", ATTRIBUTES.join(", "));
            return Err(ApiError::invalid_field(format!("attributes.{name}"), detail));
        };
        event = event.with(known, value);
    }
    if dry_run {
        let dry_run = try_out(&state, &trigger, &event).await?;
        return Ok((StatusCode::OK, Json(FireView { event_id: None, dry_run: Some(dry_run), runs: Vec::new() })));
    }
    let fired = state.store.fire_trigger(principal.tenant, id, event).await?.ok_or_else(not_found)?;
    let sync = trigger.mode == Mode::Sync;
    let waited = sync.then_some(Waited { trigger: id, event: fired }).into_iter().collect();
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok((StatusCode::ACCEPTED, Json(FireView { event_id: Some(fired.uuid()), dry_run: None, runs })))
}

/// How runs of a script went, with its logs, and those of a trigger that is waited for; newest first.
#[utoipa::path(get, path = "/api/v1/triggers/{id}/runs", tag = "triggers", params(("id" = Uuid, Path), PageQuery),
    responses((status = 200, body = Page<TriggerRunView>)))]
pub(crate) async fn runs(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<TriggerRunView>>, ApiError> {
    find(&state, &principal, id).await?;
    let limit = limit(query.limit.as_deref())?;
    let before = cursor::run(query.cursor.as_deref())?;
    let runs = state.store.trigger_runs(principal.tenant, id, before, limit + 1).await?;
    let runs = page(runs, limit, |last| cursor::after_run(last.id));
    Ok(Json(runs.try_map(|run| view::trigger_run(run, &principal))?))
}

/// The same way that the dispatcher goes, without its end. A script is run, and nothing that it does is carried out.
async fn try_out(state: &AppState, trigger: &Trigger, event: &Event) -> Result<DryRunView, ApiError> {
    let refused = |reason: String| DryRunView { reason: Some(reason), ..nothing() };
    let filter = filter::read(trigger.source, trigger.id, &trigger.filter)
        .map_err(|fault| store::StoreError::unexpected(format!("the filter of trigger {}: {fault}", trigger.id)))?;
    let attribute = |name: &str| event.attributes.iter().find(|(known, _)| *known == name).map(|(_, v)| v.as_str());
    // An event that names neither an operation nor attributes asks only for the payload.
    let asked = event.op != FIRED_BY_HAND || !event.attributes.is_empty();
    if asked && !filter.pattern.matches(&event.op, attribute) {
        return Ok(refused("the filter's names or operations do not match".into()));
    }
    let row = Taken {
        id: Uuid::nil(),
        tenant: trigger.tenant,
        trigger: trigger.id,
        event: event.id,
        source: trigger.source.to_string(),
        op: if asked { event.op.clone() } else { "try".into() },
        depth: 0,
        head: event.head(),
        data: event.data.clone(),
        wait_s: None,
        attempts: Vec::new(),
        mode: trigger.mode,
    };
    let named = (trigger.tenant, trigger.principal.clone());
    let standing = state.store.standings([named.clone()].into()).await?.remove(&named).unwrap_or_default();
    Ok(match run(trigger, &row, 1, &standing) {
        Ok(Run::Script(source)) => {
            let actor = Actor::new(trigger, &row, standing, 1);
            let ended = state.engine.stage().run(actor, source, &row.head, &row.data, Way::Dry).await;
            of_script(ended)
        }
        Ok(Run::Job(job)) => DryRunView {
            matches: true,
            queue: Some(job.queue.to_string()),
            kind: Some(job.kind.to_string()),
            payload: RawValue::from_string(job.payload.into()).ok(),
            ..nothing()
        },
        Ok(Run::Delivery(delivery)) => DryRunView {
            matches: true,
            url: Some(delivery.url.clone()),
            payload: RawValue::from_string(delivery.body).ok(),
            ..nothing()
        },
        Ok(Run::Operation(operation)) => {
            let (runtime, new) = *operation;
            let image = new.image.map_or_else(String::new, |image| format!(" to {image}"));
            DryRunView { matches: true, deeds: vec![format!("{} {runtime}{image}", new.kind)], ..nothing() }
        }
        Err(NoRun::Unwanted) => refused("the filter's `when` is not true of it".into()),
        Err(NoRun::Failed(error)) => {
            DryRunView { matches: true, ..refused(format!("{}: {}", error.code, error.message)) }
        }
    })
}

fn nothing() -> DryRunView {
    DryRunView {
        matches: false,
        reason: None,
        queue: None,
        kind: None,
        url: None,
        payload: None,
        deeds: Vec::new(),
        log: Vec::new(),
    }
}

fn of_script(ended: Ended) -> DryRunView {
    match ended {
        Ended::Well { ran, deeds, .. } => DryRunView {
            matches: true,
            payload: ran.result.and_then(|result| RawValue::from_string(result).ok()),
            deeds: deeds.iter().map(deed).collect(),
            log: ran.log,
            ..nothing()
        },
        Ended::Failed { ran, error } => {
            let reason = Some(format!("{}: {}", error.code, error.message));
            DryRunView { matches: true, reason, log: ran.log, ..nothing() }
        }
        Ended::CutShort => DryRunView { matches: true, reason: Some("the server stops".into()), ..nothing() },
    }
}

fn deed(deed: &Deed) -> String {
    match deed {
        Deed::Enqueue { job, .. } => format!("enqueue {} {} {}", job.queue, job.kind, job.payload),
        Deed::Keep { collection, key, value: Some(value), .. } => format!("set {collection} {key} {value}"),
        Deed::Keep { collection, key, value: None, .. } => format!("delete {collection} {key}"),
        Deed::Publish(event) => format!("publish {} {}", event.attribute("topic").unwrap_or_default(), event.data),
        Deed::Resolve { letter, .. } => format!("resolve {letter}"),
    }
}

fn done(put: Put) -> Result<TriggerId, ApiError> {
    match put {
        Put::Done(id) => Ok(id),
        Put::NameTaken => Err(ApiError::name_taken()),
        Put::TooMany => Err(ApiError::limit_reached("the tenant has as many triggers as it may have")),
        Put::OverQuota(limit) => Err(ApiError::over_quota("triggers", limit as f64, None)),
        Put::NotFound | Put::Changed => Err(not_found()),
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("trigger")
}

async fn find(state: &AppState, principal: &Principal, id: TriggerId) -> Result<Trigger, ApiError> {
    state.store.trigger(principal.tenant, id).await?.ok_or_else(not_found)
}

async fn answer(state: &AppState, principal: &Principal, id: TriggerId) -> Result<Json<TriggerView>, ApiError> {
    let trigger = find(state, principal, id).await?;
    Ok(Json(view::trigger(trigger, principal, state.store.clock().now())?))
}
