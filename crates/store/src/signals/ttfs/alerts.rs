//! Compares the rollups with their targets and stores the active alerts. The start and the end of an alert are events
//! on the topic `windlass:ttfs`, so that triggers can react. Called by a task.

use std::collections::{BTreeMap, BTreeSet};

use domain::signals::ttfs::{
    BREACH_WINDOW_S, MAX_BREACHES, MAX_ERROR_RATE, MIN_EVENTS, MIN_HIT_RATE, TARGET_P95_MS, percentile,
};
use domain::triggers::trigger::Source;
use domain::{TenantId, Time};
use serde::Serialize;

use super::hour;
use crate::db::codec::to_json;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::cache::TriggerCache;
use crate::triggers::events::{Event, emit};

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

/// Alerts that started and ended since the last evaluation.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AlertChanges {
    pub began: Vec<Alert>,
    pub ended: Vec<Alert>,
}

impl Store {
    /// Evaluates the alerts and writes what changed.
    pub async fn watch_ttfs(&self) -> Result<AlertChanges, StoreError> {
        let found = self.read(EvaluateAlerts).await?;
        if found.firing.keys().eq(found.stored.keys()) {
            return Ok(AlertChanges::default());
        }
        let update = UpdateAlerts { firing: found.firing, triggers: self.triggers_cache().clone() };
        let (changes, has_outbox_rows) = self.write(update).await?;
        if has_outbox_rows {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(changes)
    }

    /// Returns the active alerts of a tenant.
    pub async fn ttfs_alerts(&self, tenant: TenantId) -> Result<Vec<Alert>, StoreError> {
        let stored = self.read(ReadAlerts).await?;
        Ok(stored.into_values().filter(|alert| alert.tenant == tenant).collect())
    }
}

/// Alerts by tenant, surface and name.
type Alerts = BTreeMap<(i64, String, String), Alert>;

struct EvaluateAlerts;

struct EvaluatedAlerts {
    firing: Alerts,
    stored: Alerts,
}

const LATEST: Sql =
    Sql::both(&["select tenant, surface, cache_hit, events, errors from ttfs_hours where hour_at >= $1"]);
const TIMES: Sql = Sql::both(&["select tenant, surface, ms, count from ttfs_buckets where hour_at >= $1 order by ms"]);
const BREACHES: Sql = Sql::both(&["select tenant, surface, count(*) as breaches from ttfs_events
     where at > $1 and event_type = 'signal.rendered' and ttfs_ms > $2 group by tenant, surface"]);
const ALERTS: Sql = Sql::both(&["select tenant, surface, alert, since, value, detail from ttfs_alerts"]);

impl Operation for EvaluateAlerts {
    type Output = EvaluatedAlerts;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<EvaluatedAlerts, StoreError> {
        let now = tx.now();
        // This hour and the one before, because shortly after the full hour the current one has too few events.
        let since = Param::Time(hour(now).plus_s(-3_600));
        let mut totals: BTreeMap<(i64, String), (i64, i64, i64)> = BTreeMap::new();
        for row in tx.query(&LATEST, &[since]).await? {
            let (events, hits, errors) = totals.entry((row.int("tenant")?, row.text("surface")?)).or_default();
            *events += row.int("events")?;
            *hits += if row.bool("cache_hit")? { row.int("events")? } else { 0 };
            *errors += row.int("errors")?;
        }
        let mut times: BTreeMap<(i64, String), Vec<(i64, i64)>> = BTreeMap::new();
        for row in tx.query(&TIMES, &[since]).await? {
            times
                .entry((row.int("tenant")?, row.text("surface")?))
                .or_default()
                .push((row.int("ms")?, row.int("count")?));
        }
        let mut firing = Alerts::new();
        let mut fire = |(tenant, surface): &(i64, String), alert: &str, value: f64, detail: String| {
            let (since, tenant_id) = (now, TenantId(*tenant));
            let (surface, alert) = (surface.clone(), alert.to_owned());
            let key = (*tenant, surface.clone(), alert.clone());
            firing.insert(key, Alert { tenant: tenant_id, surface, alert, since, value, detail });
        };
        for (key, (events, hits, errors)) in totals.iter().filter(|(_, (events, ..))| *events >= MIN_EVENTS) {
            let share = |part: i64| part as f64 / *events as f64;
            if share(*hits) < MIN_HIT_RATE {
                let [rate, target] = [share(*hits), MIN_HIT_RATE].map(|share| share * 100.0);
                let detail = format!("the cache hit rate is {rate:.0} %; the target is {target:.0} %");
                fire(key, "hit_rate_low", share(*hits), detail);
            }
            if share(*errors) > MAX_ERROR_RATE {
                fire(
                    key,
                    "error_rate_high",
                    share(*errors),
                    format!("{:.1} % of events are errors", share(*errors) * 100.0),
                );
            }
            let p95 = times.get(key).and_then(|times| percentile(times, 95)).unwrap_or(0);
            if p95 > TARGET_P95_MS {
                fire(key, "p95_over_target", p95 as f64, format!("P95 is {p95} ms; the target is {TARGET_P95_MS} ms"));
            }
        }
        let params = [Param::Time(now.plus_s(-BREACH_WINDOW_S)), Param::Int(TARGET_P95_MS)];
        for row in tx.query(&BREACHES, &params).await? {
            let breaches = row.int("breaches")?;
            if breaches > MAX_BREACHES {
                let detail = format!("{breaches} first signals took over {TARGET_P95_MS} ms in {BREACH_WINDOW_S} s");
                fire(&(row.int("tenant")?, row.text("surface")?), "breaches", breaches as f64, detail);
            }
        }
        Ok(EvaluatedAlerts { firing, stored: stored_alerts(tx).await? })
    }
}

async fn stored_alerts(tx: &mut Tx<'_>) -> Result<Alerts, StoreError> {
    let mut alerts = Alerts::new();
    for row in tx.query(&ALERTS, &[]).await? {
        let alert = Alert {
            tenant: TenantId(row.int("tenant")?),
            surface: row.text("surface")?,
            alert: row.text("alert")?,
            since: row.time("since")?,
            value: row.opt_real("value")?.unwrap_or(0.0),
            detail: row.text("detail")?,
        };
        alerts.insert((alert.tenant.0, alert.surface.clone(), alert.alert.clone()), alert);
    }
    Ok(alerts)
}

struct ReadAlerts;

impl Operation for ReadAlerts {
    type Output = Alerts;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Alerts, StoreError> {
        stored_alerts(tx).await
    }
}

struct UpdateAlerts {
    firing: Alerts,
    triggers: TriggerCache,
}

/// Data of the event that a trigger receives.
#[derive(Serialize)]
struct AlertEventData<'a> {
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
        let data = to_json(&AlertEventData { alert, state, surface, value: *value, detail });
        Event::new(now, self.tenant, Source::Pubsub, "publish", 0, data).with("topic", TOPIC)
    }
}

const TOPIC: &str = "windlass:ttfs";

const BEGIN: Sql = Sql::both(&["insert into ttfs_alerts (tenant, surface, alert, since, value, detail)
     values ($1, $2, $3, $4, $5, $6) on conflict do nothing"]);
const END: Sql = Sql::both(&["delete from ttfs_alerts where tenant = $1 and surface = $2 and alert = $3"]);

impl Operation for UpdateAlerts {
    const READS_TRIGGER_VERSION: bool = true;
    /// The changes, and whether a trigger receives an event.
    type Output = (AlertChanges, bool);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(AlertChanges, bool), StoreError> {
        let stored = stored_alerts(tx).await?;
        let mut changes = AlertChanges::default();
        let keys: BTreeSet<_> = stored.keys().chain(self.firing.keys()).collect();
        for key in keys {
            let (tenant, surface, name) = key;
            let id = [Param::Int(*tenant), Param::Text(surface), Param::Text(name)];
            match (stored.get(key), self.firing.get(key)) {
                (None, Some(alert)) => {
                    let [a, b, c] = id;
                    let rest = [Param::Time(alert.since), Param::Real(alert.value), Param::Text(&alert.detail)];
                    let [d, e, f] = rest;
                    if tx.execute(&BEGIN, &[a, b, c, d, e, f]).await? > 0 {
                        changes.began.push(alert.clone());
                    }
                }
                (Some(alert), None) => {
                    let is_deleted = tx.execute(&END, &id).await? > 0;
                    changes.ended.extend(is_deleted.then(|| alert.clone()));
                }
                _ => {}
            }
        }
        let now = tx.now();
        let began = changes.began.iter().map(|alert| alert.event(now, "began"));
        let events: Vec<Event> = began.chain(changes.ended.iter().map(|alert| alert.event(now, "ended"))).collect();
        let listeners = self.triggers.current(tx).await?;
        let has_outbox_rows = emit(tx, &listeners, &events).await? > 0;
        Ok((changes, has_outbox_rows))
    }
}
