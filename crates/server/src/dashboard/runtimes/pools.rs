//! `/pools`: the loaded models of each pool, the jobs that wait for each model, and the model swaps avoided by batching
//! jobs of one affinity.

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use domain::limits::{AFFINITY_COUNTED_JOBS, OVERVIEW_WORKERS, STARVATION_DEFAULT_S};
use domain::queue::claim::{LaneHead, next_swap};
use domain::{Label, Name, Time};
use pages::DashboardPage;
use pages::runtimes::pools::{AffinityBacklog, AffinityQueue, NextSwap, Pool, Pools};
use store::queue::queues::affinities::AffinityLane;
use store::queue::workers::list::ListedWorker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::PoolView;

use crate::dashboard::frame::Viewer;
use crate::dashboard::{PageParams, render};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

pub(crate) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// List pools by name, and queues with workers that swap affinities without a pool.
#[utoipa::path(get, path = "/pools", tag = "pages", operation_id = "pools", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let (frame, page) = viewer.listing(&state, DashboardPage::Pools, v1::runtimes::pools::list, query).await?;
    let now = state.store.clock().now();
    let mut by_queue: BTreeMap<Name, Vec<AffinityLane>> = BTreeMap::new();
    // The affinity of an operation is the node that executes it; there are no swaps in that queue.
    let lanes = state.store.affinity_lanes(principal.tenant).await?;
    for lane in lanes.into_iter().filter(|lane| lane.queue.as_str() != store::runtimes::QUEUE) {
        by_queue.entry(lane.queue.clone()).or_default().push(lane);
    }
    let pools = page.items.into_iter().map(|view| {
        let lanes = by_queue.remove(&Name::stored(&view.queue)).unwrap_or_default();
        pool(view, &lanes, now)
    });
    let pools: Vec<Pool> = pools.collect();
    let workers = state.store.list_workers(principal.tenant, None, OVERVIEW_WORKERS).await?;
    let mut queues = Vec::with_capacity(by_queue.len());
    for (name, lanes) in by_queue {
        // A queue without settings and without jobs has no counters.
        let Some(stored) = state.store.queue(principal.tenant, &name).await? else { continue };
        let starvation_s = stored.settings.starvation_s.unwrap_or(STARVATION_DEFAULT_S);
        let (made, avoided) = (stored.counts.swaps_made, stored.counts.swaps_avoided);
        queues.push(queue(&name, &lanes, &workers, starvation_s, now, (made, avoided)));
    }
    Ok(render(&Pools { frame, pools, next_cursor: page.next_cursor, queues }))
}

fn pool(view: PoolView, lanes: &[AffinityLane], now: Time) -> Pool {
    let members = view.members.iter().filter(|member| member.backoff_until.is_none());
    let served: Vec<Label> = members.map(|member| Label::stored(&member.affinity)).collect();
    let active = view.members.iter().filter(|member| member.state != "idle");
    let loaded: Vec<Label> = active.map(|member| Label::stored(&member.affinity)).collect();
    let starvation_s = view.starvation_s.unwrap_or(STARVATION_DEFAULT_S);
    // An affinity without a member, or with all members in backoff, cannot be swapped in.
    let can_be_served = |lane: &&AffinityLane| lane.affinity.as_ref().is_none_or(|own| served.contains(own));
    let heads: Vec<LaneHead> = lanes.iter().filter(can_be_served).filter_map(|lane| head(lane, starvation_s)).collect();
    Pool { next: next(&heads, &loaded, now), starvation_s, view }
}

fn queue(
    name: &Name,
    lanes: &[AffinityLane],
    workers: &[ListedWorker],
    starvation_s: i64,
    now: Time,
    (swaps_made, swaps_avoided): (i64, i64),
) -> AffinityQueue {
    let serving = workers.iter().map(|listed| &listed.worker).filter(|worker| worker.queues.contains(name));
    let (mut loaded, mut idle) = (BTreeMap::<Label, usize>::new(), 0);
    for worker in serving {
        match &worker.affinity {
            Some(affinity) => *loaded.entry(affinity.clone()).or_default() += 1,
            None => idle += 1,
        }
    }
    let mut waiting: BTreeMap<&Label, AffinityBacklog> = BTreeMap::new();
    for (lane, affinity) in lanes.iter().filter_map(|lane| Some((lane, lane.affinity.as_ref()?))) {
        let backlog = waiting.entry(affinity).or_insert_with(|| AffinityBacklog {
            affinity: affinity.to_string(),
            workers: loaded.get(affinity).copied().unwrap_or(0),
            waiting: 0,
            has_more: false,
            oldest: None,
        });
        backlog.waiting += lane.waiting;
        backlog.has_more |= lane.waiting >= AFFINITY_COUNTED_JOBS as i64;
        backlog.oldest = backlog.oldest.into_iter().chain(lane.oldest.map(view::time)).min();
    }
    let is_relevant = |backlog: &AffinityBacklog| backlog.waiting > 0 || backlog.workers > 0;
    let heads: Vec<LaneHead> = lanes.iter().filter_map(|lane| head(lane, starvation_s)).collect();
    let loaded: Vec<Label> = loaded.into_keys().collect();
    let affinities: Vec<AffinityBacklog> = waiting.into_values().filter(is_relevant).collect();
    AffinityQueue {
        name: name.to_string(),
        starvation_s,
        swaps_made,
        swaps_avoided,
        idle,
        starving_since: affinities
            .iter()
            .filter(|backlog| backlog.workers == 0)
            .filter_map(|backlog| backlog.oldest)
            .min(),
        next: next(&heads, &loaded, now),
        affinities,
    }
}

fn head(lane: &AffinityLane, starvation_s: i64) -> Option<LaneHead> {
    Some(LaneHead {
        lane: 0,
        priority: lane.priority,
        affinity: lane.affinity.clone(),
        waiting_since: lane.oldest?,
        order: 0,
        starvation_ms: starvation_s.saturating_mul(1_000),
    })
}

fn next(heads: &[LaneHead], loaded: &[Label], now: Time) -> Option<NextSwap> {
    let next = next_swap(heads, loaded, now)?;
    Some(NextSwap { affinity: next.affinity.to_string(), by: next.by.map(view::time), is_due: next.by == Some(now) })
}
