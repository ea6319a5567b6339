//! Pools: declare, inspect and delete.

use std::collections::BTreeMap;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use domain::limits::HANDLER_TIMEOUT_DEFAULT_S;
use domain::runtimes::pool::{Handler, Member, PoolSpec, Stay};
use domain::{Label, Name, Time};
use store::runtimes::pools::Pool;
use store::runtimes::pools::backlog::Backlog;
use store::runtimes::pools::codec::MemberState;
use store::runtimes::pools::put::PoolPut;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{HandlerSettings, MemberSettings, MemberView, Page, PoolRequest, PoolView};

use crate::access::auth::Principal;
use crate::cursor;
use crate::error::ApiError;
use crate::extract::{JsonBody, Params, PathQueue};
use crate::page::page;
use crate::state::AppState;
use crate::validate::query::{PageQuery, limit};
use crate::validate::runtimes::runtime as validate;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(list)).routes(routes!(get, put, delete))
}

/// List pools by name.
#[utoipa::path(get, path = "/api/v1/pools", tag = "pools", params(PageQuery),
    responses((status = 200, body = Page<PoolView>)))]
pub(crate) async fn list(
    State(state): State<AppState>,
    principal: Principal,
    Params(query): Params<PageQuery>,
) -> Result<Json<Page<PoolView>>, ApiError> {
    let limit = limit(query.limit.as_deref())?;
    let after = cursor::pool(query.cursor.as_deref())?;
    let pools = state.store.list_pools(principal.tenant, after, limit + 1).await?;
    let pools = page(pools, limit, |last| cursor::after_pool(last.name.as_str()));
    let mut items = Vec::with_capacity(pools.items.len());
    for pool in pools.items {
        items.push(pool_view(&state, pool).await?);
    }
    Ok(Json(Page { items, next_cursor: pools.next_cursor, partial: false }))
}

/// Get a pool: its slots, loaded members, backlog, and the swaps it avoided.
///
/// A member's backoff explains why the pool leaves its jobs alone.
#[utoipa::path(get, path = "/api/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 200, body = PoolView)))]
async fn get(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
) -> Result<Json<PoolView>, ApiError> {
    current_view(&state, &principal, &name).await
}

/// Create or replace a pool.
///
/// Idempotent. From then on, a backlog for an affinity starts the runtime of that affinity. Returns 409 if a limit is
/// reached, and 422 for an invalid specification.
#[utoipa::path(put, path = "/api/v1/pools/{name}", tag = "pools", params(("name" = String, Path)), request_body = PoolRequest,
    responses((status = 200, body = PoolView)))]
async fn put(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
    JsonBody(request): JsonBody<PoolRequest>,
) -> Result<Json<PoolView>, ApiError> {
    let spec = spec(&name, request)?;
    match state.store.put_pool(principal.tenant, name.clone(), spec, principal.name.to_string()).await? {
        PoolPut::Done => current_view(&state, &principal, &name).await.map_err(ApiError::after_a_change),
        PoolPut::TooMany => Err(ApiError::limit_reached("the tenant has reached its limit on pools; delete one first")),
        PoolPut::NoRuntime(number) => Err(ApiError::invalid_field(
            format!("members[{number}].runtime"),
            "names an unknown runtime; create it first",
        )),
        PoolPut::Conflict(why) => Err(ApiError::limit_reached(why)),
        PoolPut::OverBudget(over) => Err(validate::invalid_spec(over)),
    }
}

/// Delete a pool.
///
/// Its runtimes stay as they are, and its jobs stay queued.
#[utoipa::path(delete, path = "/api/v1/pools/{name}", tag = "pools", params(("name" = String, Path)),
    responses((status = 204)))]
async fn delete(
    State(state): State<AppState>,
    principal: Principal,
    PathQueue(name): PathQueue,
) -> Result<StatusCode, ApiError> {
    match state.store.delete_pool(principal.tenant, &name).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(not_found()),
    }
}

fn not_found() -> ApiError {
    ApiError::not_found("pool")
}

fn spec(name: &Name, request: PoolRequest) -> Result<PoolSpec, ApiError> {
    let member = |(number, member): (usize, MemberSettings)| {
        let field = |part: &str| format!("members[{number}].{part}");
        let stay = member.stay.as_deref().unwrap_or(Stay::AsNeeded.as_str());
        Ok(Member {
            affinity: Label::new(&member.affinity)
                .map_err(|error| ApiError::invalid_field(field("affinity"), error))?,
            runtime: domain::RuntimeName::new(&member.runtime)
                .map_err(|error| ApiError::invalid_field(field("runtime"), error))?,
            stay: Stay::parse(stay)
                .ok_or_else(|| ApiError::invalid_field(field("stay"), "must be as_needed, preloaded or pinned"))?,
        })
    };
    let queue = request.queue.as_deref().map(Name::of_queue).transpose();
    let handler = request.handler.unwrap_or_default();
    let spec = PoolSpec {
        slots: request.slots,
        memory_mb: request.memory_mb,
        members: request.members.into_iter().enumerate().map(member).collect::<Result<_, ApiError>>()?,
        queue: queue.map_err(|error| ApiError::invalid_field("queue", error))?.unwrap_or_else(|| name.clone()),
        starvation_s: request.starvation_s,
        idle_stop_s: request.idle_stop_s,
        handler: Handler {
            path: handler.path.unwrap_or_else(|| "/".into()),
            timeout_s: handler.timeout_s.unwrap_or(HANDLER_TIMEOUT_DEFAULT_S),
            at_once: handler.at_once.unwrap_or(1),
        },
        placement: validate::placement(request.placement),
    };
    spec.check().map_err(validate::invalid_spec)?;
    Ok(spec)
}

async fn current_view(state: &AppState, principal: &Principal, name: &Name) -> Result<Json<PoolView>, ApiError> {
    let pool = state.store.pool(principal.tenant, name).await?.ok_or_else(not_found)?;
    pool_view(state, pool).await.map(Json)
}

async fn pool_view(state: &AppState, pool: Pool) -> Result<PoolView, ApiError> {
    let backlog = state.store.backlog(pool.tenant, &pool.spec.queue).await?;
    let queue = state.store.queue(pool.tenant, &pool.spec.queue).await?;
    let swaps_avoided = queue.map_or(0, |queue| queue.counts.swaps_avoided);
    let now = state.store.clock().now();
    let swap_s = pool.state.swap_s();
    let members: Vec<MemberView> = pool.spec.members.iter().map(|one| member(one, &pool, &backlog)).collect();
    let starving = pool.spec.members.iter().filter(|member| !is_up(&pool, member));
    let oldest = starving.filter_map(|member| backlog.get(member.affinity.as_str())?.oldest).min();
    Ok(PoolView {
        name: pool.name.to_string(),
        slots: pool.spec.slots,
        memory_mb: pool.spec.memory_mb,
        queue: pool.spec.queue.to_string(),
        starvation_s: pool.spec.starvation_s,
        idle_stop_s: pool.spec.idle_stop_s,
        handler: HandlerSettings {
            path: Some(pool.spec.handler.path.clone()),
            timeout_s: Some(pool.spec.handler.timeout_s),
            at_once: Some(pool.spec.handler.at_once),
        },
        placement: view::runtimes::placement(&pool.spec.placement),
        members,
        node: pool.node.clone(),
        swaps_made: pool.state.swaps as i64,
        swaps_avoided,
        loads: pool.state.loads,
        load_s: pool.state.load_s(),
        stop_s: pool.state.stop_s(),
        swap_s,
        minutes_saved: swap_s.unwrap_or(0.0) * swaps_avoided as f64 / 60.0,
        starvation_clock_s: oldest.map(|at| now.ms_since(at).max(0) as f64 / 1e3),
        created_at: view::time(pool.created_at),
        updated_at: view::time(pool.updated_at),
    })
}

fn is_up(pool: &Pool, member: &Member) -> bool {
    pool.state.members.get(member.affinity.as_str()).is_some_and(|state| state.state == "loaded")
}

fn member(member: &Member, pool: &Pool, backlog: &BTreeMap<String, Backlog>) -> MemberView {
    let idle = MemberState { state: "idle".into(), ..MemberState::default() };
    let state = pool.state.members.get(member.affinity.as_str()).unwrap_or(&idle);
    let waiting = backlog.get(member.affinity.as_str()).copied().unwrap_or_default();
    let time = |micros: Option<i64>| micros.map(|micros| view::time(Time::from_micros(micros)));
    MemberView {
        affinity: member.affinity.to_string(),
        runtime: member.runtime.to_string(),
        stay: member.stay.as_str().into(),
        state: state.state.clone(),
        slot: state.slot,
        since: time(state.since),
        waiting: waiting.waiting,
        oldest: waiting.oldest.map(view::time),
        backoff_until: time(state.backoff_until),
        cause: state.cause.clone(),
    }
}
