//! What ended recently in a queue or of a kind, in intervals of a selected period.

use std::collections::BTreeMap;

use axum::extract::State;
use domain::limits::{ACTIVITY_FAILED_JOBS, ACTIVITY_INTERVALS};
use domain::{JobState, Time};
use pages::chart::ThroughputPoint;
use pages::latency::LatencyPoint;
use pages::queue::activity::{Activity, ActivityGroup, RANGES};
use serde::Deserialize;
use store::queue::queues::throughput::Minute;
use store::queue::recent_ends::{LaneFilter, RecentEnd};
use utoipa::IntoParams;
use wire::JobView;

use crate::access::auth::Principal;
use crate::error::ApiError;
use crate::extract::Params;
use crate::http::v1;
use crate::state::AppState;
use crate::validate::query::JobQuery;
use crate::view;

#[derive(Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub(crate) struct RangeQuery {
    /// The period: `15m`, `1h`, `6h` or `24h` (default: `1h`).
    range: Option<String>,
}

/// A period that ends now, in intervals of whole minutes.
pub(crate) struct Period {
    name: &'static str,
    interval_minutes: i64,
    /// The start of each interval.
    starts: Vec<Time>,
}

impl Period {
    pub(crate) fn new(query: &RangeQuery, now: Time) -> Result<Self, ApiError> {
        let wanted = query.range.as_deref().unwrap_or("1h");
        let found = RANGES.into_iter().find(|(name, _)| *name == wanted);
        let refuse = || ApiError::invalid_query("range", "range must be 15m, 1h, 6h or 24h");
        let (name, minutes) = found.ok_or_else(refuse)?;
        let interval_minutes = (minutes / ACTIVITY_INTERVALS).max(1);
        let intervals = minutes / interval_minutes;
        let length_s = 60 * interval_minutes;
        let last = Time::from_seconds(now.millis().div_euclid(1_000 * length_s) * length_s);
        let starts = (0..intervals).map(|number| last.plus_s(-length_s * (intervals - 1 - number))).collect();
        Ok(Self { name, interval_minutes, starts })
    }

    pub(crate) fn since(&self) -> Time {
        self.starts[0]
    }

    fn interval(&self, at: Time) -> Option<usize> {
        self.starts.iter().rposition(|start| *start <= at)
    }

    /// Sums of the minutes of each interval.
    fn throughput(&self, minutes: &[(Time, Minute)]) -> Vec<ThroughputPoint> {
        let mut sums = vec![Minute::default(); self.starts.len()];
        for (at, minute) in minutes {
            let Some(sum) = self.interval(*at).and_then(|interval| sums.get_mut(interval)) else { continue };
            sum.enqueued += minute.enqueued;
            sum.succeeded += minute.succeeded;
            sum.failed += minute.failed;
        }
        let point = |(at, sum): (&Time, Minute)| ThroughputPoint {
            at: view::time(*at),
            enqueued: sum.enqueued,
            succeeded: sum.succeeded,
            failed: sum.failed,
        };
        self.starts.iter().zip(sums).map(point).collect()
    }

    /// The percentiles of each interval.
    fn latency(&self, ends: &[RecentEnd], of: impl Fn(&RecentEnd) -> Option<f64>) -> Vec<LatencyPoint> {
        let mut seconds: Vec<Vec<f64>> = vec![Vec::new(); self.starts.len()];
        for end in ends {
            let interval = self.interval(end.finished_at).and_then(|interval| seconds.get_mut(interval));
            if let (Some(interval), Some(value)) = (interval, of(end)) {
                interval.push(value);
            }
        }
        let point = |(at, values): (&Time, Vec<f64>)| {
            let quantiles = quantiles(values);
            LatencyPoint { at: view::time(*at), p50_s: quantiles.map(|of| of.0), p95_s: quantiles.map(|of| of.1) }
        };
        self.starts.iter().zip(seconds).map(point).collect()
    }
}

/// The live jobs at the end of each interval, from their number now and the throughput since.
fn depth(points: &[ThroughputPoint], now: i64) -> Vec<i64> {
    let mut depth = vec![now; points.len()];
    for interval in (1..points.len()).rev() {
        let point = &points[interval];
        depth[interval - 1] = (depth[interval] - point.enqueued + point.succeeded + point.failed).max(0);
    }
    depth
}

/// The p50 and the p95.
fn quantiles(mut seconds: Vec<f64>) -> Option<(f64, f64)> {
    seconds.sort_by(f64::total_cmp);
    let last = seconds.len().checked_sub(1)?;
    let quantile = |share: f64| seconds[(last as f64 * share).round() as usize];
    Some((quantile(0.5), quantile(0.95)))
}

fn wait_s(end: &RecentEnd) -> Option<f64> {
    end.started_at.map(|started_at| seconds(end.ready_at, started_at))
}

fn run_s(end: &RecentEnd) -> Option<f64> {
    end.started_at.map(|started_at| seconds(started_at, end.finished_at))
}

fn seconds(from: Time, to: Time) -> f64 {
    to.ms_since(from).max(0) as f64 / 1_000.0
}

/// Figures by `name`, the most ended first. Names without an end are listed too.
fn groups<'a>(
    names: impl Iterator<Item = &'a String>,
    ends: &'a [RecentEnd],
    name: impl Fn(&RecentEnd) -> &String,
) -> Vec<ActivityGroup> {
    let mut by_name: BTreeMap<&String, Vec<&RecentEnd>> = names.map(|name| (name, Vec::new())).collect();
    ends.iter().for_each(|end| by_name.entry(name(end)).or_default().push(end));
    let group = |(name, ends): (&String, Vec<&RecentEnd>)| ActivityGroup {
        name: name.clone(),
        ended: ends.len() as i64,
        failed: ends.iter().filter(|end| end.state == JobState::Failed).count() as i64,
        wait_s: quantiles(ends.iter().filter_map(|end| wait_s(end)).collect()),
        run_s: quantiles(ends.iter().filter_map(|end| run_s(end)).collect()),
    };
    let mut groups: Vec<ActivityGroup> = by_name.into_iter().map(group).collect();
    groups.sort_by_key(|group| std::cmp::Reverse(group.ended));
    groups
}

/// The activity of a queue, or of a kind. `live` is the number of live jobs of the queue.
pub(crate) async fn activity(
    state: &AppState,
    principal: &Principal,
    filter: LaneFilter,
    period: &Period,
    live: i64,
) -> Result<Activity, ApiError> {
    let throughput = match &filter.queue {
        Some(queue) => {
            let queue = domain::Name::stored(queue);
            let minutes = state.store.queue_throughput(principal.tenant, queue, period.since()).await?;
            period.throughput(&minutes)
        }
        None => Vec::new(),
    };
    let by_queue = filter.queue.is_none();
    let failed = failed_jobs(state, principal, &filter).await?;
    let recent = state.store.recent_ends(principal.tenant, filter, period.since()).await?;
    let ends = &recent.ends;
    let groups = match by_queue {
        true => groups(recent.lanes.iter().map(|(queue, _)| queue), ends, |end| &end.queue),
        false => groups(recent.lanes.iter().map(|(_, kind)| kind), ends, |end| &end.kind),
    };
    Ok(Activity {
        range: period.name,
        interval_minutes: period.interval_minutes,
        depth: depth(&throughput, live),
        throughput,
        wait: period.latency(ends, wait_s),
        run: period.latency(ends, run_s),
        groups,
        samples: ends.len() as i64,
        is_partial: recent.is_partial,
        failed,
    })
}

async fn failed_jobs(state: &AppState, principal: &Principal, filter: &LaneFilter) -> Result<Vec<JobView>, ApiError> {
    let query = JobQuery {
        state: Some("failed".into()),
        queue: filter.queue.clone(),
        kind: filter.kind.clone(),
        limit: Some(ACTIVITY_FAILED_JOBS.to_string()),
        ..JobQuery::default()
    };
    Ok(v1::queue::jobs::list(State(state.clone()), principal.clone(), Params(query)).await?.0.items)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(minute: i64) -> Time {
        Time::from_seconds(60 * minute)
    }

    fn period(range: &str, now: i64) -> Period {
        Period::new(&RangeQuery { range: Some(range.into()) }, at(now)).expect("a period")
    }

    #[test]
    fn a_period_ends_with_the_current_interval() {
        let hour = period("1h", 600);
        assert_eq!((hour.starts.len(), hour.interval_minutes, hour.since()), (60, 1, at(541)));
        let day = period("24h", 1_450);
        assert_eq!((day.starts.len(), day.interval_minutes), (60, 24));
        assert_eq!(day.interval(at(1_450)), Some(59));
        assert_eq!(day.interval(day.since().plus_s(-1)), None);
        assert!(Period::new(&RangeQuery { range: Some("9h".into()) }, at(0)).is_err());
    }

    #[test]
    fn minutes_and_ends_fall_into_their_interval() {
        let period = period("15m", 100);
        let minute = Minute { enqueued: 5, succeeded: 2, failed: 1 };
        let points = period.throughput(&[(at(99), minute), (at(100), minute), (at(10), minute)]);
        assert_eq!((points.len(), points[13].enqueued, points[14].succeeded, points[0].enqueued), (15, 5, 2, 0));
        assert_eq!(depth(&points, 7)[12..], [3, 5, 7], "two more jobs came than ended in each of the last minutes");
        let end = |seconds: i64| RecentEnd {
            queue: "q".into(),
            kind: "k".into(),
            state: JobState::Succeeded,
            ready_at: at(99),
            started_at: Some(at(99).plus_s(seconds)),
            finished_at: at(100),
        };
        let wait = period.latency(&[end(1), end(2), end(9)], wait_s);
        assert_eq!((wait[14].p50_s, wait[14].p95_s, wait[13].p50_s), (Some(2.0), Some(9.0), None));
        let idle = "idle".to_owned();
        let groups = groups([&idle].into_iter(), &[end(1)], |end| &end.kind);
        assert_eq!(
            groups.iter().map(|group| (group.name.as_str(), group.ended)).collect::<Vec<_>>(),
            [("k", 1), ("idle", 0)]
        );
    }
}
