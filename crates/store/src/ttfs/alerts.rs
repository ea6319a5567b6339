//! Watches the rollups against their targets and keeps the alerts that hold now (S5). That one begins or ends is an event,
//! on the topic `windlass:ttfs`, for triggers to start work or call out.

use std::collections::{BTreeMap, BTreeSet};

use domain::trigger::Source;
use domain::ttfs::{
    BREACHES_MOST, BREACHES_WITHIN_S, ERROR_RATE_MOST, EVENTS_LEAST, HIT_RATE_LEAST, TARGET_P95_MS, percentile,
};
use domain::{TenantId, Time};
use serde::Serialize;

use super::hour;
use crate::codec::to_json;
use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::hints::Topic;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    pub tenant: TenantId,
    pub surface: String,
    /// `p95_over_target`, `hit_rate_low`, `error_rate_high` or `breaches`.
    pub alert: String,
    pub since: Time,
    pub value: f64,
    pub detail: String,
}

/// What began and what ended since the last look.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Watched {
    pub began: Vec<Alert>,
    pub ended: Vec<Alert>,
}

impl Store {
    pub async fn watch_ttfs(&self) -> Result<Watched, StoreError> {
        let found = self.read(Find).await?;
        if found.firing.keys().eq(found.kept.keys()) {
            return Ok(Watched::default());
        }
        let keep = Keep { firing: found.firing, triggers: self.triggers_cache().clone() };
        let (watched, heard) = self.write(keep).await?;
        if heard {
            self.hints().tell(Topic::Outbox);
        }
        Ok(watched)
    }

    pub async fn ttfs_alerts(&self, tenant: TenantId) -> Result<Vec<Alert>, StoreError> {
        let kept = self.read(Kept).await?;
        Ok(kept.into_values().filter(|alert| alert.tenant == tenant).collect())
    }
}

type Alerts = BTreeMap<(i64, String, String), Alert>;

struct Find;

struct Found {
    firing: Alerts,
    kept: Alerts,
}

const LATEST: Sql =
    Sql::both(&["select tenant, surface, cache_hit, events, errors from ttfs_hours where hour_at >= $1"]);
const TIMES: Sql = Sql::both(&["select tenant, surface, ms, count from ttfs_buckets where hour_at >= $1 order by ms"]);
const BREACHES: Sql = Sql::both(&["select tenant, surface, count(*) from ttfs_events
     where at > $1 and event_type = 'signal.rendered' and ttfs_ms > $2 group by tenant, surface"]);
const ALERTS: Sql = Sql::both(&["select tenant, surface, alert, since, value, detail from ttfs_alerts"]);

impl Operation for Find {
    type Output = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Found, StoreError> {
        let now = tx.now();
        // This hour and the one before: a look just past the hour must not start from nothing.
        let since = Param::Time(hour(now).plus_s(-3_600));
        let mut figures: BTreeMap<(i64, String), (i64, i64, i64)> = BTreeMap::new();
        for row in tx.query(&LATEST, &[since]).await? {
            let sums = figures.entry((row.int(0)?, row.text(1)?)).or_default();
            sums.0 += row.int(3)?;
            sums.1 += if row.bool(2)? { row.int(3)? } else { 0 };
            sums.2 += row.int(4)?;
        }
        let mut times: BTreeMap<(i64, String), Vec<(i64, i64)>> = BTreeMap::new();
        for row in tx.query(&TIMES, &[since]).await? {
            times.entry((row.int(0)?, row.text(1)?)).or_default().push((row.int(2)?, row.int(3)?));
        }
        let mut firing = Alerts::new();
        let mut fire = |(tenant, surface): &(i64, String), alert: &str, value: f64, detail: String| {
            let (since, tenant_id) = (now, TenantId(*tenant));
            let (surface, alert) = (surface.clone(), alert.to_owned());
            let key = (*tenant, surface.clone(), alert.clone());
            firing.insert(key, Alert { tenant: tenant_id, surface, alert, since, value, detail });
        };
        for (key, (events, hits, errors)) in figures.iter().filter(|(_, (events, ..))| *events >= EVENTS_LEAST) {
            let share = |part: i64| part as f64 / *events as f64;
            if share(*hits) < HIT_RATE_LEAST {
                let [told, least] = [share(*hits), HIT_RATE_LEAST].map(|share| share * 100.0);
                let detail = format!("{told:.0} % were told from what was kept; the target is {least:.0} %");
                fire(key, "hit_rate_low", share(*hits), detail);
            }
            if share(*errors) > ERROR_RATE_MOST {
                fire(
                    key,
                    "error_rate_high",
                    share(*errors),
                    format!("{:.1} % of events are errors", share(*errors) * 100.0),
                );
            }
            let p95 = times.get(key).and_then(|times| percentile(times, 0.95)).unwrap_or(0);
            if p95 > TARGET_P95_MS {
                fire(key, "p95_over_target", p95 as f64, format!("P95 is {p95} ms; the target is {TARGET_P95_MS} ms"));
            }
        }
        let params = [Param::Time(now.plus_s(-BREACHES_WITHIN_S)), Param::Int(TARGET_P95_MS)];
        for row in tx.query(&BREACHES, &params).await? {
            let breaches = row.int(2)?;
            if breaches > BREACHES_MOST {
                let detail = format!("{breaches} first signals took over {TARGET_P95_MS} ms in {BREACHES_WITHIN_S} s");
                fire(&(row.int(0)?, row.text(1)?), "breaches", breaches as f64, detail);
            }
        }
        Ok(Found { firing, kept: kept(tx).await? })
    }
}

async fn kept(tx: &mut Tx<'_>) -> Result<Alerts, StoreError> {
    let mut alerts = Alerts::new();
    for row in tx.query(&ALERTS, &[]).await? {
        let alert = Alert {
            tenant: TenantId(row.int(0)?),
            surface: row.text(1)?,
            alert: row.text(2)?,
            since: row.time(3)?,
            value: row.opt_real(4)?.unwrap_or(0.0),
            detail: row.text(5)?,
        };
        alerts.insert((alert.tenant.0, alert.surface.clone(), alert.alert.clone()), alert);
    }
    Ok(alerts)
}

struct Kept;

impl Operation for Kept {
    type Output = Alerts;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Alerts, StoreError> {
        kept(tx).await
    }
}

struct Keep {
    firing: Alerts,
    triggers: TriggerCache,
}

/// What a trigger hears of an alert.
#[derive(Serialize)]
struct Told<'a> {
    alert: &'a str,
    /// `began` or `ended`.
    state: &'static str,
    surface: &'a str,
    value: f64,
    detail: &'a str,
}

impl Alert {
    fn event(&self, now: Time, state: &'static str) -> Event {
        let Self { alert, surface, value, detail, .. } = self;
        let data = to_json(&Told { alert, state, surface, value: *value, detail });
        Event::new(now, self.tenant, Source::Pubsub, "publish", 0, data).with("topic", TOPIC)
    }
}

const TOPIC: &str = "windlass:ttfs";

const BEGIN: Sql = Sql::both(&["insert into ttfs_alerts (tenant, surface, alert, since, value, detail)
     values ($1, $2, $3, $4, $5, $6) on conflict do nothing"]);
const END: Sql = Sql::both(&["delete from ttfs_alerts where tenant = $1 and surface = $2 and alert = $3"]);

impl Operation for Keep {
    const WATCHES_TRIGGERS: bool = true;
    type Output = (Watched, bool);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Watched, bool), StoreError> {
        let kept = kept(tx).await?;
        let mut watched = Watched::default();
        let keys: BTreeSet<_> = kept.keys().chain(self.firing.keys()).collect();
        for key in keys {
            let (tenant, surface, name) = key;
            let id = [Param::Int(*tenant), Param::Text(surface), Param::Text(name)];
            match (kept.get(key), self.firing.get(key)) {
                (None, Some(alert)) => {
                    let [a, b, c] = id;
                    let rest = [Param::Time(alert.since), Param::Real(alert.value), Param::Text(&alert.detail)];
                    let [d, e, f] = rest;
                    if tx.execute(&BEGIN, &[a, b, c, d, e, f]).await? > 0 {
                        watched.began.push(alert.clone());
                    }
                }
                (Some(alert), None) => {
                    let is_gone = tx.execute(&END, &id).await? > 0;
                    watched.ended.extend(is_gone.then(|| alert.clone()));
                }
                _ => {}
            }
        }
        let now = tx.now();
        let began = watched.began.iter().map(|alert| alert.event(now, "began"));
        let events: Vec<Event> = began.chain(watched.ended.iter().map(|alert| alert.event(now, "ended"))).collect();
        let listeners = self.triggers.current(tx).await?;
        let heard = emit(tx, &listeners, &events).await? > 0;
        Ok((watched, heard))
    }
}
