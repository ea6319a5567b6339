//! `/`: how it goes, and what wants attention.

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::{OVERVIEW_FAILURES, OVERVIEW_OLD_S, OVERVIEW_QUEUES, OVERVIEW_WORKERS, TTFS_SLO_HOURS};
use jiff::Timestamp;
use pages::chart::Point;
use pages::overview::{Action, Concern, Overview, Slo};
use pages::{Frame, Place};
use store::workers::list::ListedWorker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{FailureView, QueueView, TtfsSlo};

use super::frame::Viewer;
use super::shown;
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::signal::escaped;
use crate::state::AppState;
use crate::validate::query::PageQuery;
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// The overview.
#[utoipa::path(get, path = "/", tag = "pages", operation_id = "home",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let tenant = principal.tenant;
    let frame = viewer.frame(&state, Place::Overview).await?;
    let some = |limit: usize| Params(PageQuery { limit: Some(limit.to_string()), cursor: None });
    let queues = v1::queues::list(State(state.clone()), principal.clone(), some(OVERVIEW_QUEUES)).await?.0.items;
    let mut workers = state.store.list_workers(tenant, None, OVERVIEW_WORKERS + 1).await?;
    let more_workers = workers.len() > OVERVIEW_WORKERS;
    workers.truncate(OVERVIEW_WORKERS);
    let throughput = state.store.throughput(tenant).await?;
    let sums = throughput.sums();
    let points = throughput.minutes.iter().zip(&sums).map(|(at, minute)| Point {
        at: view::time(*at),
        enqueued: minute.enqueued,
        succeeded: minute.succeeded,
        failed: minute.failed,
    });
    let failures = match principal.may(&Method::GET, "/api/v1/failures") {
        true => v1::failures::list(State(state.clone()), principal.clone(), some(OVERVIEW_FAILURES)).await?.0.items,
        false => Vec::new(),
    };
    let slo = v1::ttfs::slo(State(state.clone()), principal.clone()).await?.0;
    let served_for = state.store.queues_served_for(tenant).await?;
    let serves = |queue: &str| {
        let own = |listed: &ListedWorker| listed.worker.queues.iter().any(|served| served.as_str() == queue);
        more_workers || workers.iter().any(own) || served_for.iter().any(|served| served.as_str() == queue)
    };
    let concerns = concerns(&frame, &queues, serves, &failures, &slo);
    Ok(shown(&Overview {
        totals: view::counts(&state.store.totals(tenant).await?),
        queues,
        workers: workers.len(),
        more_workers,
        points: points.collect(),
        failures,
        concerns,
        slo: share(&slo, frame.now),
        frame,
    }))
}

fn waits(jobs: i64) -> String {
    if jobs == 1 { "1 job waits".into() } else { format!("{jobs} jobs wait") }
}

/// Of twenty signals one may be late.
const MAY_BE_LATE: f64 = 0.05;

/// All surfaces of the last day together, and how fast they use up what may be late.
fn share(slo: &TtfsSlo, now: Timestamp) -> Option<Slo> {
    let sum = |figure: fn(&wire::TtfsSloHour) -> i64| slo.items.iter().map(figure).sum::<i64>();
    let signals = sum(|hour| hour.total_signals);
    let pct = |breaches: i64| (signals - breaches) as f64 * 100.0 / signals as f64;
    let burn = |late: i64, all: i64| if all == 0 { 0.0 } else { late as f64 / all as f64 / MAY_BE_LATE };
    // Hours before this one, by their number.
    let mut hours = [(0, 0); TTFS_SLO_HOURS as usize];
    for hour in &slo.items {
        let before = (now.as_second().div_euclid(3_600) - hour.at.as_second().div_euclid(3_600)) as usize;
        if let Some((late, all)) = hours.get_mut(before) {
            *late += hour.p95_breaches;
            *all += hour.total_signals;
        }
    }
    (signals > 0).then(|| Slo {
        p50_pct: pct(sum(|hour| hour.p50_breaches)),
        p95_pct: pct(sum(|hour| hour.p95_breaches)),
        burn: burn(sum(|hour| hour.p95_breaches), signals),
        burn_now: burn(hours[0].0, hours[0].1),
        burn_hours: hours.iter().rev().map(|(late, all)| (burn(*late, *all) * 100.0) as i64).collect(),
    })
}

fn concerns(
    frame: &Frame,
    queues: &[QueueView],
    is_served: impl Fn(&str) -> bool,
    failures: &[FailureView],
    slo: &TtfsSlo,
) -> Vec<Concern> {
    let mut concerns = Vec::new();
    for queue in queues {
        let name = &queue.name;
        let waiting = queue.counts.queued;
        let age_s = queue.oldest_waiting_at.map_or(0, |at| frame.now.duration_since(at).as_secs());
        let seen = Concern {
            id: String::new(),
            grave: false,
            what: String::new(),
            more: None,
            link: Some((format!("jobs?queue={}&state=queued", escaped(name)), "See them")),
            action: None,
            command: None,
        };
        if queue.paused {
            let by = queue.paused_by.as_ref().map(|by| format!("by {by}"));
            let said: Vec<String> = queue.paused_reason.iter().cloned().chain(by).collect();
            let resume = Action {
                label: "Resume",
                call: format!("POST api/v1/queues/{}/resume", escaped(name)),
                done: format!("{name} goes on"),
            };
            concerns.push(Concern {
                id: format!("paused-{}", escaped(name)),
                grave: waiting > 0,
                what: format!("{name} is paused, {}", waits(waiting)),
                more: (!said.is_empty()).then(|| said.join(" · ")),
                action: frame.can.operate.then_some(resume),
                ..seen
            });
        } else if waiting > 0 && !is_served(name) {
            concerns.push(Concern {
                id: format!("unserved-{}", escaped(name)),
                grave: true,
                what: format!("{} in {name}, and no worker serves it", waits(waiting)),
                command: Some(format!("windlass work --queue {name} -- ./your-program")),
                ..seen
            });
        } else if age_s > OVERVIEW_OLD_S {
            concerns.push(Concern {
                id: format!("old-{}", escaped(name)),
                what: format!("The oldest job in {name} has waited {} min", age_s / 60),
                ..seen
            });
        }
    }
    if let Some((many, more)) = frame.dead_letters.filter(|(many, _)| *many > 0) {
        let letters = if many == 1 { "dead letter waits" } else { "dead letters wait" };
        let plus = if more { "+" } else { "" };
        concerns.push(Concern {
            id: "letters".into(),
            grave: true,
            what: format!("{many}{plus} {letters} for somebody"),
            more: None,
            link: Some(("dead-letters".into(), "See them")),
            action: None,
            command: None,
        });
    }
    for alert in &slo.alerts {
        concerns.push(Concern {
            id: format!("{}-{}", alert.alert, escaped(&alert.surface)),
            grave: true,
            what: format!("First signals on {}: {}", alert.surface, alert.detail),
            more: None,
            link: Some(("signals".into(), "See the charts")),
            action: None,
            command: None,
        });
    }
    for group in failures.iter().filter(|group| group.trend == "rising") {
        concerns.push(Concern {
            id: format!("rising-{}", group.group_id),
            grave: false,
            what: format!("{} is on the rise: {} in all", group.error_code, group.count),
            more: Some(group.message_pattern.clone()),
            link: Some((format!("failures#group-{}", group.group_id), "See the group")),
            action: None,
            command: None,
        });
    }
    concerns.sort_by_key(|concern| !concern.grave);
    concerns
}
