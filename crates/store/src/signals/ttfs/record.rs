//! Records TTFS events and adds them to the hourly rollups in the same transaction. A late event is added to the hour
//! in which it happened.

use std::collections::BTreeMap;

use domain::signals::ttfs::{TARGET_P50_MS, TARGET_P95_MS, rounded};
use domain::{TenantId, Time};
use uuid::Uuid;

use super::hour;
use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, Default)]
pub struct TtfsEvent {
    /// Id assigned by the sender. An event with a known id is ignored.
    pub id: Option<Uuid>,
    /// When it happened [default: now].
    pub at: Option<Time>,
    pub job: Option<Uuid>,
    pub surface: String,
    pub event_type: String,
    /// Milliseconds from the request to the event.
    pub ttfs_ms: i64,
    pub cache_hit: bool,
    pub signal_source: Option<String>,
    pub kind: Option<String>,
    pub phase: Option<String>,
    pub run: Option<String>,
    pub network_state: Option<String>,
    pub device: Option<String>,
    pub release: Option<String>,
    pub correlation_id: Option<String>,
    pub trace_id: Option<String>,
    pub span_id: Option<String>,
    pub error_code: Option<String>,
    pub error_message: Option<String>,
    pub metadata: Option<String>,
}

impl Store {
    /// Records events. Returns how many were new.
    pub async fn record_ttfs(&self, tenant: TenantId, events: Vec<TtfsEvent>) -> Result<usize, StoreError> {
        self.write(RecordTtfs { tenant, events }).await
    }
}

struct RecordTtfs {
    tenant: TenantId,
    events: Vec<TtfsEvent>,
}

const INSERT: Sql =
    Sql::both(&["insert into ttfs_events (id, tenant, at, job, surface, event_type, ttfs_ms, cache_hit,
         signal_source, kind, phase, run, network_state, device, release, correlation_id, trace_id, span_id, error_code,
         error_message, metadata)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17, $18, $19, $20, $21)
     on conflict (id) do nothing"]);
const HOUR: Sql = Sql::new(
    &["insert into ttfs_hours (tenant, surface, hour_at, cache_hit, events, timed, sum_ms, min_ms, max_ms, over_2s,
           over_5s, errors, rendered, rendered_over_2s, rendered_over_5s)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
       on conflict (tenant, surface, hour_at, cache_hit) do update set events = events + excluded.events,
           timed = timed + excluded.timed, sum_ms = sum_ms + excluded.sum_ms,
           min_ms = coalesce(min(min_ms, excluded.min_ms), min_ms, excluded.min_ms),
           max_ms = coalesce(max(max_ms, excluded.max_ms), max_ms, excluded.max_ms),
           over_2s = over_2s + excluded.over_2s, over_5s = over_5s + excluded.over_5s,
           errors = errors + excluded.errors, rendered = rendered + excluded.rendered,
           rendered_over_2s = rendered_over_2s + excluded.rendered_over_2s,
           rendered_over_5s = rendered_over_5s + excluded.rendered_over_5s"],
    "insert into ttfs_hours as h (tenant, surface, hour_at, cache_hit, events, timed, sum_ms, min_ms, max_ms, over_2s,
         over_5s, errors, rendered, rendered_over_2s, rendered_over_5s)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15)
     on conflict (tenant, surface, hour_at, cache_hit) do update set events = h.events + excluded.events,
         timed = h.timed + excluded.timed, sum_ms = h.sum_ms + excluded.sum_ms,
         min_ms = least(h.min_ms, excluded.min_ms), max_ms = greatest(h.max_ms, excluded.max_ms),
         over_2s = h.over_2s + excluded.over_2s, over_5s = h.over_5s + excluded.over_5s,
         errors = h.errors + excluded.errors, rendered = h.rendered + excluded.rendered,
         rendered_over_2s = h.rendered_over_2s + excluded.rendered_over_2s,
         rendered_over_5s = h.rendered_over_5s + excluded.rendered_over_5s",
);
const BUCKET: Sql = Sql::both(&["insert into ttfs_buckets (tenant, surface, hour_at, cache_hit, ms, count)
     values ($1, $2, $3, $4, $5, $6)
     on conflict (tenant, surface, hour_at, cache_hit, ms) do update set count = ttfs_buckets.count + excluded.count"]);

/// What a batch adds to one hourly rollup row.
#[derive(Default)]
struct HourDelta {
    events: i64,
    times: Vec<i64>,
    errors: i64,
    rendered: i64,
    rendered_over_2s: i64,
    rendered_over_5s: i64,
}

impl Operation for RecordTtfs {
    type Output = usize;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<usize, StoreError> {
        let mut new = 0;
        // In key order, so that concurrent batches lock the rows in the same order and cannot deadlock.
        let mut hours: BTreeMap<(&str, Time, bool), HourDelta> = BTreeMap::new();
        for event in &self.events {
            let at = event.at.unwrap_or(tx.now());
            if !self.insert(tx, event, at).await? {
                continue;
            }
            new += 1;
            let delta = hours.entry((&event.surface, hour(at), event.cache_hit)).or_default();
            let is_rendered = event.event_type == "signal.rendered";
            delta.events += 1;
            delta.errors += i64::from(event.event_type == "signal.error");
            delta.rendered += i64::from(is_rendered);
            delta.times.push(event.ttfs_ms);
            delta.rendered_over_2s += i64::from(is_rendered && event.ttfs_ms > TARGET_P50_MS);
            delta.rendered_over_5s += i64::from(is_rendered && event.ttfs_ms > TARGET_P95_MS);
        }
        for ((surface, hour, cache_hit), delta) in &hours {
            self.add(tx, surface, *hour, *cache_hit, delta).await?;
        }
        Ok(new)
    }
}

impl RecordTtfs {
    /// Inserts the event. Returns false if its id is known.
    async fn insert(&self, tx: &mut Tx<'_>, event: &TtfsEvent, at: Time) -> Result<bool, StoreError> {
        let params = [
            Param::Uuid(event.id.unwrap_or_else(|| new_uuid(at))),
            Param::Int(self.tenant.0),
            Param::Time(at),
            Param::uuid(event.job),
            Param::Text(&event.surface),
            Param::Text(&event.event_type),
            Param::Int(event.ttfs_ms),
            Param::Bool(event.cache_hit),
            Param::text(event.signal_source.as_deref()),
            Param::text(event.kind.as_deref()),
            Param::text(event.phase.as_deref()),
            Param::text(event.run.as_deref()),
            Param::text(event.network_state.as_deref()),
            Param::text(event.device.as_deref()),
            Param::text(event.release.as_deref()),
            Param::text(event.correlation_id.as_deref()),
            Param::text(event.trace_id.as_deref()),
            Param::text(event.span_id.as_deref()),
            Param::text(event.error_code.as_deref()),
            Param::text(event.error_message.as_deref()),
            Param::json(event.metadata.as_deref()),
        ];
        Ok(tx.execute(&INSERT, &params).await? > 0)
    }

    /// Adds a delta to its hourly rollup row and its latency buckets.
    async fn add(
        &self,
        tx: &mut Tx<'_>,
        surface: &str,
        hour: Time,
        cache_hit: bool,
        delta: &HourDelta,
    ) -> Result<(), StoreError> {
        let over = |target: i64| delta.times.iter().filter(|ms| **ms > target).count() as i64;
        let key = [Param::Int(self.tenant.0), Param::Text(surface), Param::Time(hour), Param::Bool(cache_hit)];
        let [tenant, surface, hour, hit] = key;
        let params = [
            tenant,
            surface,
            hour,
            hit,
            Param::Int(delta.events),
            Param::Int(delta.times.len() as i64),
            Param::Int(delta.times.iter().sum()),
            Param::int(delta.times.iter().min().copied()),
            Param::int(delta.times.iter().max().copied()),
            Param::Int(over(TARGET_P50_MS)),
            Param::Int(over(TARGET_P95_MS)),
            Param::Int(delta.errors),
            Param::Int(delta.rendered),
            Param::Int(delta.rendered_over_2s),
            Param::Int(delta.rendered_over_5s),
        ];
        tx.execute(&HOUR, &params).await?;
        let mut buckets: BTreeMap<i64, i64> = BTreeMap::new();
        for ms in &delta.times {
            *buckets.entry(rounded(*ms)).or_default() += 1;
        }
        for (ms, count) in buckets {
            tx.execute(&BUCKET, &[tenant, surface, hour, hit, Param::Int(ms), Param::Int(count)]).await?;
        }
        Ok(())
    }
}
