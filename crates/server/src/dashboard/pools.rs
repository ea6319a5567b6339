//! `/pools`: which model is up where, who waits for which, and what taking turns has saved (Q6, R7).

use std::collections::BTreeMap;

use axum::extract::State;
use axum::response::Response;
use domain::claim::{LaneHead, next_swap};
use domain::limits::{AFFINITY_COUNTED, OVERVIEW_WORKERS, STARVATION_S_DEFAULT};
use domain::{Label, Name, Time};
use pages::Place;
use pages::pools::{Next, Pool, Pools, Queue, Waiting};
use store::queues::affinities::AffinityLane;
use store::workers::list::ListedWorker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::PoolView;

use super::frame::Viewer;
use super::{PageParams, shown};
use crate::error::ApiError;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Pools by name, and the queues whose workers take turns without one.
#[utoipa::path(get, path = "/pools", tag = "pages", operation_id = "pools", params(PageQuery),
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(
    State(state): State<AppState>,
    viewer: Viewer,
    PageParams(query): PageParams<PageQuery>,
) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let (frame, page) = viewer.listing(&state, Place::Pools, v1::pools::list, query).await?;
    let now = state.store.clock().now();
    let mut by_queue: BTreeMap<Name, Vec<AffinityLane>> = BTreeMap::new();
    // Operations on runtimes have the node that does them for an affinity; nothing takes turns there.
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
        // One that was never told anything and whose lanes are empty has no figures.
        let Some(kept) = state.store.queue(principal.tenant, &name).await? else { continue };
        let starvation_s = kept.settings.starvation_s.unwrap_or(STARVATION_S_DEFAULT);
        let (made, avoided) = (kept.counts.swaps_made, kept.counts.swaps_avoided);
        queues.push(queue(&name, &lanes, &workers, starvation_s, now, (made, avoided)));
    }
    Ok(shown(&Pools { frame, pools, next_cursor: page.next_cursor, queues }))
}

fn pool(view: PoolView, lanes: &[AffinityLane], now: Time) -> Pool {
    let members = view.members.iter().filter(|member| member.backoff_until.is_none());
    let served: Vec<Label> = members.map(|member| Label::stored(&member.affinity)).collect();
    let up = view.members.iter().filter(|member| member.state != "idle");
    let held: Vec<Label> = up.map(|member| Label::stored(&member.affinity)).collect();
    let starvation_s = view.starvation_s.unwrap_or(STARVATION_S_DEFAULT);
    // What no member serves, and what is left alone after a failure, has no turn.
    let has_a_turn = |lane: &&AffinityLane| lane.affinity.as_ref().is_none_or(|own| served.contains(own));
    let heads: Vec<LaneHead> = lanes.iter().filter(has_a_turn).filter_map(|lane| head(lane, starvation_s)).collect();
    Pool { next: next(&heads, &held, now), starvation_s, view }
}

fn queue(
    name: &Name,
    lanes: &[AffinityLane],
    workers: &[ListedWorker],
    starvation_s: i64,
    now: Time,
    (swaps_made, swaps_avoided): (i64, i64),
) -> Queue {
    let serving = workers.iter().map(|listed| &listed.worker).filter(|worker| worker.queues.contains(name));
    let (mut held, mut idle) = (BTreeMap::<Label, usize>::new(), 0);
    for worker in serving {
        match &worker.affinity {
            Some(affinity) => *held.entry(affinity.clone()).or_default() += 1,
            None => idle += 1,
        }
    }
    let mut waiting: BTreeMap<&Label, Waiting> = BTreeMap::new();
    for (lane, affinity) in lanes.iter().filter_map(|lane| Some((lane, lane.affinity.as_ref()?))) {
        let known = waiting.entry(affinity).or_insert_with(|| Waiting {
            affinity: affinity.to_string(),
            workers: held.get(affinity).copied().unwrap_or(0),
            waiting: 0,
            has_more: false,
            oldest: None,
        });
        known.waiting += lane.waiting;
        known.has_more |= lane.waiting >= AFFINITY_COUNTED as i64;
        known.oldest = known.oldest.into_iter().chain(lane.oldest.map(view::time)).min();
    }
    let waits_or_is_held = |line: &Waiting| line.waiting > 0 || line.workers > 0;
    let heads: Vec<LaneHead> = lanes.iter().filter_map(|lane| head(lane, starvation_s)).collect();
    let held: Vec<Label> = held.into_keys().collect();
    let lines: Vec<Waiting> = waiting.into_values().filter(waits_or_is_held).collect();
    Queue {
        name: name.to_string(),
        starvation_s,
        swaps_made,
        swaps_avoided,
        idle,
        starving_since: lines.iter().filter(|line| line.workers == 0).filter_map(|line| line.oldest).min(),
        next: next(&heads, &held, now),
        lines,
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

fn next(heads: &[LaneHead], held: &[Label], now: Time) -> Option<Next> {
    let next = next_swap(heads, held, now)?;
    Some(Next { affinity: next.affinity.to_string(), by: next.by.map(view::time), is_due: next.by == Some(now) })
}
