//! `/`: the overview, with throughput and a list of problems that need attention.

use std::collections::{BTreeMap, BTreeSet};

use axum::extract::State;
use axum::http::Method;
use axum::response::Response;
use domain::limits::{
    OVERVIEW_DELIVERIES, OVERVIEW_FAILED_DELIVERY_S, OVERVIEW_FAILURES, OVERVIEW_LONG_WAIT_S, OVERVIEW_QUEUES,
    OVERVIEW_RUNTIMES, OVERVIEW_WORKERS, TTFS_SLO_HOURS,
};
use jiff::Timestamp;
use pages::chart::ThroughputPoint;
use pages::overview::{Action, Concern, Overview, Slo};
use pages::{DashboardPage, Frame, count, segment};
use store::queue::workers::list::ListedWorker;
use utoipa_axum::router::OpenApiRouter;
use utoipa_axum::routes;
use wire::{DeliveryView, FailureView, Page, QueueView, RuntimeView, TtfsAlert, TtfsSlo};

use super::frame::Viewer;
use super::render;
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::{DeliveryQuery, PageQuery};
use crate::view;

pub(super) fn routes() -> OpenApiRouter<AppState> {
    OpenApiRouter::new().routes(routes!(page))
}

/// Show the overview.
#[utoipa::path(get, path = "/", tag = "pages", operation_id = "home",
    responses((status = 200, content_type = "text/html", body = String)))]
async fn page(State(state): State<AppState>, viewer: Viewer) -> Result<Response, ApiError> {
    let principal = &viewer.principal;
    let tenant = principal.tenant;
    let frame = viewer.frame(&state, DashboardPage::Overview).await?;
    let some = |limit: usize| Params(PageQuery { limit: Some(limit.to_string()), cursor: None });
    let queues = v1::queue::queues::list(State(state.clone()), principal.clone(), some(OVERVIEW_QUEUES)).await?.0.items;
    let mut workers = state.store.list_workers(tenant, None, OVERVIEW_WORKERS + 1).await?;
    let more_workers = workers.len() > OVERVIEW_WORKERS;
    workers.truncate(OVERVIEW_WORKERS);
    let throughput = state.store.throughput(tenant).await?;
    let sums = throughput.sums();
    let points = throughput.minutes.iter().zip(&sums).map(|(at, minute)| ThroughputPoint {
        at: view::time(*at),
        enqueued: minute.enqueued,
        succeeded: minute.succeeded,
        failed: minute.failed,
    });
    let failures = match principal.may(&Method::GET, "/api/v1/failures") {
        true => {
            v1::signals::failures::list(State(state.clone()), principal.clone(), some(OVERVIEW_FAILURES)).await?.0.items
        }
        false => Vec::new(),
    };
    let slo = v1::signals::ttfs::slo(State(state.clone()), principal.clone()).await?.0;
    let served_for = state.store.queues_served_for(tenant).await?;
    let serves = |queue: &str| {
        let serves_queue = |listed: &ListedWorker| listed.worker.queues.iter().any(|served| served.as_str() == queue);
        more_workers || workers.iter().any(serves_queue) || served_for.iter().any(|served| served.as_str() == queue)
    };
    let runtimes = v1::runtimes::declarations::list(State(state.clone()), principal.clone(), some(OVERVIEW_RUNTIMES))
        .await?
        .0
        .items;
    let failed = deliveries(&state, &viewer, "failed").await?;
    let pending = deliveries(&state, &viewer, "pending").await?;
    let mut concerns: Vec<Concern> = queues.iter().filter_map(|queue| of_queue(&frame, queue, &serves)).collect();
    concerns.extend(of_dead_letters(&frame));
    concerns.extend(runtimes.iter().filter_map(of_runtime));
    concerns.extend(of_failed(&failed, frame.now));
    concerns.extend(of_circuits(&pending.items, frame.now));
    concerns.extend(of_alerts(&slo.alerts));
    concerns.extend(failures.iter().filter(|group| group.trend == "rising").map(of_group));
    concerns.sort_by_key(|concern| !concern.grave);
    Ok(render(&Overview {
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
    if jobs == 1 { "1 job queued".into() } else { format!("{} jobs queued", count(&jobs)) }
}

/// Returns the newest deliveries in a state.
async fn deliveries(state: &AppState, viewer: &Viewer, wanted: &str) -> Result<Page<DeliveryView>, ApiError> {
    let limit = Some(OVERVIEW_DELIVERIES.to_string());
    let query = DeliveryQuery { state: Some(wanted.to_owned()), job: None, limit, cursor: None };
    Ok(v1::triggers::deliveries::list(State(state.clone()), viewer.principal.clone(), Params(query)).await?.0)
}

/// Share of signals that may miss the p95 target.
const MAY_BE_LATE: f64 = 0.05;

/// Aggregates all surfaces over the last day: the share of signals within target and the error-budget burn rate.
fn share(slo: &TtfsSlo, now: Timestamp) -> Option<Slo> {
    let sum = |figure: fn(&wire::TtfsSloHour) -> i64| slo.items.iter().map(figure).sum::<i64>();
    let signals = sum(|hour| hour.total_signals);
    let pct = |breaches: i64| (signals - breaches) as f64 * 100.0 / signals as f64;
    let burn = |late: i64, all: i64| if all == 0 { 0.0 } else { late as f64 / all as f64 / MAY_BE_LATE };
    // Index: hours before the current one.
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

fn of_queue(frame: &Frame, queue: &QueueView, is_served: &impl Fn(&str) -> bool) -> Option<Concern> {
    let (name, waiting) = (queue.name.as_str(), queue.counts.queued);
    let age_s = queue.oldest_waiting_at.map_or(0, |at| frame.now.duration_since(at).as_secs());
    let link = Some((format!("jobs?queue={}&state=queued", segment(name)), "View jobs"));
    let seen = Concern { link, ..Concern::default() };
    if queue.paused {
        let by = queue.paused_by.as_ref().map(|by| format!("by {by}"));
        let details: Vec<String> = queue.paused_reason.iter().cloned().chain(by).collect();
        return Some(Concern {
            id: format!("paused-{}", segment(name)),
            grave: waiting > 0,
            what: format!("{name} is paused, {}", waits(waiting)),
            more: (!details.is_empty()).then(|| details.join(" · ")),
            action: frame.can.operate.then(|| resume(name)),
            ..seen
        });
    }
    if waiting > 0 && !is_served(name) {
        return Some(Concern {
            id: format!("unserved-{}", segment(name)),
            grave: true,
            what: format!("{} in {name}, but no worker serves it", waits(waiting)),
            command: Some(format!("windlass work --queue {name} -- ./your-program")),
            ..seen
        });
    }
    (age_s > OVERVIEW_LONG_WAIT_S).then(|| Concern {
        id: format!("old-{}", segment(name)),
        what: format!("The oldest job in {name} has waited {} min", age_s / 60),
        ..seen
    })
}

fn resume(queue: &str) -> Action {
    Action {
        label: "Resume",
        call: format!("POST api/v1/queues/{}/resume", segment(queue)),
        done: format!("{queue} resumed"),
    }
}

fn of_dead_letters(frame: &Frame) -> Option<Concern> {
    let (total, more) = frame.dead_letters.filter(|(total, _)| *total > 0)?;
    let letters = if total == 1 { "unresolved dead letter" } else { "unresolved dead letters" };
    let plus = if more { "+" } else { "" };
    Some(Concern {
        id: "letters".into(),
        grave: true,
        what: format!("{total}{plus} {letters}"),
        link: Some(("dead-letters".into(), "View dead letters")),
        ..Concern::default()
    })
}

/// A stopped runtime has no health and raises no concern.
fn of_runtime(runtime: &RuntimeView) -> Option<Concern> {
    let (name, status) = (&runtime.name, runtime.status.as_str());
    let is_wanted = runtime.desired.as_deref() == Some("running") && runtime.in_flight.is_none();
    let (what, more) = match &runtime.health {
        Some(_) if status == "unavailable" => (format!("Runtime {name} is unavailable"), runtime.notice.clone()),
        Some(health) if health.status != "healthy" => {
            (format!("Runtime {name}: {}", health.status.replace('_', " ")), Some(health.details.clone()))
        }
        _ if is_wanted && status != "running" => {
            (format!("Runtime {name} should be running but is {status}"), runtime.notice.clone())
        }
        _ => return None,
    };
    Some(Concern {
        id: format!("runtime-{}", segment(name)),
        grave: true,
        what,
        more,
        link: Some((format!("runtimes/{}", segment(name)), "View runtime")),
        ..Concern::default()
    })
}

fn of_failed(failed: &Page<DeliveryView>, now: Timestamp) -> Option<Concern> {
    let is_new = |at: Timestamp| now.duration_since(at).as_secs() < OVERVIEW_FAILED_DELIVERY_S;
    let recent = failed.items.iter().filter(|delivery| delivery.ended_at.is_some_and(is_new));
    let recent: Vec<&DeliveryView> = recent.collect();
    let total = recent.len();
    let plus = if total == failed.items.len() && failed.next_cursor.is_some() { "+" } else { "" };
    let deliveries = if total == 1 { "delivery" } else { "deliveries" };
    recent.first().map(|first| Concern {
        id: "deliveries".into(),
        grave: true,
        what: format!("{total}{plus} {deliveries} failed in the last hour"),
        more: first.error.clone(),
        link: Some(("deliveries?state=failed".into(), "View deliveries")),
        ..Concern::default()
    })
}

/// One concern for all receivers with an open circuit.
fn of_circuits(pending: &[DeliveryView], now: Timestamp) -> Option<Concern> {
    let open_circuits = pending.iter().filter(|delivery| delivery.circuit_open_until.is_some_and(|until| until > now));
    let hosts: BTreeSet<&str> = open_circuits.filter_map(|delivery| delivery.url.split('/').nth(2)).collect();
    let hosts: Vec<&str> = hosts.into_iter().collect();
    (!hosts.is_empty()).then(|| Concern {
        id: "circuits".into(),
        what: format!("Deliveries to {} are paused", hosts.join(", ")),
        more: Some("too many consecutive failures opened the circuit".into()),
        link: Some(("deliveries?state=pending".into(), "View pending deliveries")),
        ..Concern::default()
    })
}

/// One concern for each kind of alert, with the worst of its surfaces.
fn of_alerts(alerts: &[TtfsAlert]) -> Vec<Concern> {
    let mut by_kind: BTreeMap<&str, Vec<&TtfsAlert>> = BTreeMap::new();
    for alert in alerts {
        by_kind.entry(&alert.alert).or_default().push(alert);
    }
    let concern = |(kind, mut alerts): (&str, Vec<&TtfsAlert>)| {
        let surfaces: Vec<&str> = alerts.iter().map(|alert| alert.surface.as_str()).collect();
        alerts.sort_by(|one, other| one.value.total_cmp(&other.value));
        // A low hit rate is worse; for every other alert a high value is worse.
        let worst = if kind == "hit_rate_low" { alerts.first() } else { alerts.last() }?;
        Some(Concern {
            id: kind.to_owned(),
            grave: true,
            what: format!("First signals on {}: {}", surfaces.join(", "), worst.detail),
            more: (alerts.len() > 1).then(|| format!("worst surface: {}", worst.surface)),
            link: Some(("signals".into(), "View charts")),
            ..Concern::default()
        })
    };
    by_kind.into_iter().filter_map(concern).collect()
}

fn of_group(group: &FailureView) -> Concern {
    Concern {
        id: format!("rising-{}", group.group_id),
        what: format!("{} is rising: {} in total", group.error_code, group.count),
        more: Some(group.message_pattern.clone()),
        link: Some((format!("failures#group-{}", group.group_id), "View group")),
        ..Concern::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn alerts_of_one_kind_are_merged_and_show_the_worst_value() {
        let alert = |surface: &str, alert: &str, value: f64| TtfsAlert {
            surface: surface.into(),
            alert: alert.into(),
            since: Timestamp::UNIX_EPOCH,
            value,
            detail: format!("it is {value}"),
        };
        let alerts = [
            alert("ci", "hit_rate_low", 0.6),
            alert("ui", "hit_rate_low", 0.5),
            alert("ci", "p95_over_target", 7_000.0),
            alert("ui", "p95_over_target", 6_000.0),
        ];
        let summary: Vec<String> = of_alerts(&alerts).into_iter().map(|concern| concern.what).collect();
        assert_eq!(summary, ["First signals on ci, ui: it is 0.5", "First signals on ci, ui: it is 7000"]);
        assert_eq!(waits(20_000), "20,000 jobs queued");
    }

    #[test]
    fn recent_failed_deliveries_show_their_own_error() {
        let delivery = |ended_at: &str, error: &str| {
            serde_json::json!({
                "id": uuid::Uuid::nil(), "message_id": "m", "state": "failed", "source": "job", "op": "failed",
                "url": "https://example.com", "method": "POST", "attempt": 3, "max_attempts": 3, "error": error,
                "created_at": "2026-01-01T00:00:00Z", "ended_at": ended_at,
            })
        };
        let items = [delivery("2026-01-01T10:00:00Z", "long ago"), delivery("2026-01-02T09:30:00Z", "just now")];
        let failed = serde_json::from_value(serde_json::json!({"items": items, "next_cursor": "more"})).unwrap();
        let summary = of_failed(&failed, "2026-01-02T10:00:00Z".parse().unwrap()).unwrap();
        assert_eq!(
            (summary.what.as_str(), summary.more.as_deref()),
            ("1 delivery failed in the last hour", Some("just now"))
        );
    }
}
