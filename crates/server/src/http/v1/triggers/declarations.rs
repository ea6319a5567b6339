//! Triggers: create, inspect, replace, fire manually and dry-run.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode};
use domain::{Right, TriggerId};
use engine::triggers::plan::{MANUAL_FIRE, NotStarted, PlannedRun, run};
use engine::triggers::scripting::{Actor, ScriptMode, ScriptOutcome};
use store::triggers::events::Event;
use store::triggers::events::awaited_runs::AwaitedRun;
use store::triggers::filter;
use store::triggers::outbox::OutboxRow;
use store::triggers::outbox::script_effect::ScriptEffect;
use store::triggers::put::TriggerPut;
use store::triggers::target::{self, Target};
use store::triggers::{Mode, Trigger};
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use uuid::Uuid;
use wire::{DryRunView, FireRequest, FireView, Page, RawValue, TriggerRequest, TriggerRunView, TriggerView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, OptionalJson, Params, PathTrigger};
use crate::page::page;
use crate::state::AppState;
use crate::triggers::depth;
use crate::triggers::sync;
use crate::validate::query::{PageQuery, limit};
use crate::validate::triggers::trigger::{ATTRIBUTES, new_trigger, only_toggles};
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new()
        .routes(routes!(list, create))
        .routes(routes!(get, put, delete))
        .routes(routes!(fire))
        .routes(routes!(runs))
}

/// List triggers, newest first.
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

/// Create a trigger.
///
/// Every event accepted after the response is matched against it, on every node. The trigger acts with the rights of
/// its creator. Returns 403 if it needs rights that the caller lacks, 409 if the name is in use or the limit is
/// reached, 422 for an invalid definition, and 429 if the tenant's quota is exhausted.
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
    let created = current_view(&state, &principal, done(put)?).await.map_err(ApiError::after_a_change)?;
    Ok((StatusCode::CREATED, created))
}

/// Get a trigger with its counters and, for a schedule, the next five fire times.
///
/// Secrets are replaced by placeholders.
#[utoipa::path(get, path = "/api/v1/triggers/{id}", tag = "triggers", params(("id" = Uuid, Path)),
    responses((status = 200, body = TriggerView)))]
pub(crate) async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathTrigger(id): PathTrigger,
) -> Result<Json<TriggerView>, ApiError> {
    current_view(&state, &principal, id).await
}

/// Replace a trigger, or enable or disable it.
///
/// Idempotent. The trigger then acts with the rights of the caller. A request that only changes `enabled` keeps the
/// previous principal.
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
        let put = match only_toggles(&before, &trigger) {
            true => store.set_trigger_enabled(tenant, id, before.updated_at, trigger, &principal.name).await?,
            false => store.replace_trigger(tenant, id, trigger, &principal.name).await?,
        };
        // A concurrent change came first; decide again from the current trigger.
        if put != TriggerPut::Changed {
            break put;
        }
    };
    current_view(&state, &principal, done(put)?).await.map_err(ApiError::after_a_change)
}

/// Delete a trigger and its pending runs.
///
/// Jobs that it already created continue. Its dead letters are kept.
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

/// Fire a trigger manually.
///
/// The filter is ignored. With `dry_run`, nothing is started: the response shows whether an event would match and what
/// it would start. A dry run of another principal's script requires the rights to read payloads, results and logs.
#[utoipa::path(post, path = "/api/v1/triggers/{id}/fire", tag = "triggers", params(("id" = Uuid, Path)),
    request_body = Option<FireRequest>,
    responses((status = 202, body = FireView), (status = 200, body = FireView, description = "Dry run: nothing was started")))]
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
        return Err(ApiError::invalid_field(field, "requires dry_run; a trigger fired manually ignores its filter"));
    }
    let data: String = request.data.map_or_else(|| "null".into(), |data| data.get().to_owned());
    if data.len() > state.options.payload_bytes {
        let limit = state.options.payload_bytes;
        return Err(ApiError::invalid_field("data", format_args!("may have at most {limit} bytes of JSON")));
    }
    let op = request.op.as_deref().unwrap_or(MANUAL_FIRE);
    let now = state.store.clock().now();
    let mut event = Event::new(now, principal.tenant, trigger.source, op, depth, data);
    for (name, value) in request.attributes.unwrap_or_default() {
        let Some(attribute) = ATTRIBUTES.iter().find(|attribute| **attribute == name) else {
            let detail = format_args!("is not a known attribute; use {}", ATTRIBUTES.join(", "));
            return Err(ApiError::invalid_field(format!("attributes.{name}"), detail));
        };
        event = event.with(attribute, value);
    }
    if dry_run {
        check_dry_run(&principal, &trigger)?;
        let dry_run = simulate(&state, &trigger, &event).await?;
        return Ok((StatusCode::OK, Json(FireView { event_id: None, dry_run: Some(dry_run), runs: Vec::new() })));
    }
    let fired = state.store.fire_trigger(principal.tenant, id, event).await?.ok_or_else(not_found)?;
    let sync = trigger.mode == Mode::Sync;
    let waited = sync.then_some(AwaitedRun { trigger: id, event: fired }).into_iter().collect();
    let runs = sync::runs(&state, principal.tenant, waited).await;
    Ok((StatusCode::ACCEPTED, Json(FireView { event_id: Some(fired.uuid()), dry_run: None, runs })))
}

/// List the runs of a trigger, newest first.
///
/// Covers runs of scripts, with their logs, and runs of `sync` triggers.
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

/// Returns 403 for a script of another principal that the caller may not see at work: it reads with the rights of its
/// principal, the caller chooses its event, and the response contains its result, its effects and its log.
fn check_dry_run(principal: &Principal, trigger: &Trigger) -> Result<(), ApiError> {
    let is_script = matches!(target::read(&trigger.target), Ok(Target::Script(_)));
    if !is_script || *trigger.principal == *principal.name {
        return Ok(());
    }
    let required = [Right::ReadPayloads, Right::ReadResults, Right::ReadLogs];
    match required.into_iter().find(|right| !principal.has(*right)) {
        Some(right) => Err(ApiError::forbidden(format_args!(
            "a dry run shows what the script of {} reads, and the token lacks the right {right}",
            trigger.principal
        ))),
        None => Ok(()),
    }
}

/// Follows the dispatcher's steps without their effects. A script is run, but its effects are discarded.
async fn simulate(state: &AppState, trigger: &Trigger, event: &Event) -> Result<DryRunView, ApiError> {
    let not_matching = |reason: String| DryRunView { reason: Some(reason), ..no_match() };
    let filter = filter::read(trigger.source, trigger.id, &trigger.filter)
        .map_err(|fault| store::StoreError::unexpected(format!("the filter of trigger {}: {fault}", trigger.id)))?;
    let attribute =
        |name: &str| event.attributes.iter().find(|(attribute, _)| *attribute == name).map(|(_, v)| v.as_str());
    // An event without an operation and attributes tests only the payload.
    let has_event = event.op != MANUAL_FIRE || !event.attributes.is_empty();
    if has_event && !filter.pattern.matches(&event.op, attribute) {
        return Ok(not_matching("the event does not match the filter's operations or attributes".into()));
    }
    let row = OutboxRow {
        id: Uuid::nil(),
        tenant: trigger.tenant,
        trigger: trigger.id,
        event: event.id,
        source: trigger.source.to_string(),
        op: if has_event { event.op.clone() } else { "try".into() },
        depth: 0,
        head: event.head(),
        data: event.data.clone(),
        wait_s: None,
        attempts: Vec::new(),
        mode: trigger.mode,
    };
    let principal_key = (trigger.tenant, trigger.principal.clone());
    let rights =
        state.store.principal_rights([principal_key.clone()].into()).await?.remove(&principal_key).unwrap_or_default();
    // Expressions may take a while, and a dry run must not delay other requests.
    let planned = tokio::task::spawn_blocking({
        let (trigger, row, rights) = (trigger.clone(), row.clone(), rights.clone());
        move || run(&trigger, &row, 1, &rights)
    });
    let planned = planned.await.map_err(|error| store::StoreError::unexpected(error.to_string()))?;
    Ok(match planned {
        Ok(PlannedRun::Script(source)) => {
            let actor = Actor::new(trigger, &row, rights, 1);
            let ended = state.engine.script_runner().run(actor, source, &row.head, &row.data, ScriptMode::Dry).await;
            script_view(ended)
        }
        Ok(PlannedRun::Job(job)) => DryRunView {
            matches: true,
            queue: Some(job.queue.to_string()),
            kind: Some(job.kind.to_string()),
            payload: RawValue::from_string(job.payload.into()).ok(),
            ..no_match()
        },
        Ok(PlannedRun::Delivery(delivery)) => DryRunView {
            matches: true,
            url: Some(delivery.url.clone()),
            payload: RawValue::from_string(delivery.body).ok(),
            ..no_match()
        },
        Ok(PlannedRun::Operation(operation)) => {
            let (runtime, new) = *operation;
            let image = new.image.map_or_else(String::new, |image| format!(" to {image}"));
            DryRunView { matches: true, effects: vec![format!("{} {runtime}{image}", new.kind)], ..no_match() }
        }
        Err(NotStarted::FilteredOut) => not_matching("the filter's `when` condition is false".into()),
        Err(NotStarted::Failed(error)) => {
            DryRunView { matches: true, ..not_matching(format!("{}: {}", error.code, error.message)) }
        }
    })
}

fn no_match() -> DryRunView {
    DryRunView {
        matches: false,
        reason: None,
        queue: None,
        kind: None,
        url: None,
        payload: None,
        effects: Vec::new(),
        log: Vec::new(),
    }
}

fn script_view(ended: ScriptOutcome) -> DryRunView {
    match ended {
        ScriptOutcome::Succeeded { ran, script_effects, .. } => DryRunView {
            matches: true,
            payload: ran.result.and_then(|result| RawValue::from_string(result).ok()),
            effects: script_effects.iter().map(effect).collect(),
            log: ran.log,
            ..no_match()
        },
        ScriptOutcome::Failed { ran, error } => {
            let reason = Some(format!("{}: {}", error.code, error.message));
            DryRunView { matches: true, reason, log: ran.log, ..no_match() }
        }
        ScriptOutcome::Interrupted => {
            DryRunView { matches: true, reason: Some("the server is shutting down".into()), ..no_match() }
        }
    }
}

fn effect(effect: &ScriptEffect) -> String {
    match effect {
        ScriptEffect::Enqueue { job, .. } => format!("enqueue {} {} {}", job.queue, job.kind, job.payload),
        ScriptEffect::ChangeKv { collection, key, value: Some(value), .. } => format!("set {collection} {key} {value}"),
        ScriptEffect::ChangeKv { collection, key, value: None, .. } => format!("delete {collection} {key}"),
        ScriptEffect::Publish(event) => {
            format!("publish {} {}", event.attribute("topic").unwrap_or_default(), event.data)
        }
        ScriptEffect::Resolve { letter, .. } => format!("resolve {letter}"),
    }
}

fn done(put: TriggerPut) -> Result<TriggerId, ApiError> {
    match put {
        TriggerPut::Done(id) => Ok(id),
        TriggerPut::NameTaken => Err(ApiError::name_taken()),
        TriggerPut::TooMany => {
            Err(ApiError::limit_reached("the tenant has reached its limit on triggers; delete one first"))
        }
        TriggerPut::OverQuota(limit) => Err(ApiError::over_quota("triggers", limit as f64, None)),
        TriggerPut::NotFound | TriggerPut::Changed => Err(not_found()),
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("trigger")
}

async fn find(state: &AppState, principal: &Principal, id: TriggerId) -> Result<Trigger, ApiError> {
    state.store.trigger(principal.tenant, id).await?.ok_or_else(not_found)
}

async fn current_view(state: &AppState, principal: &Principal, id: TriggerId) -> Result<Json<TriggerView>, ApiError> {
    let trigger = find(state, principal, id).await?;
    Ok(Json(view::trigger(trigger, principal, state.store.clock().now())?))
}
