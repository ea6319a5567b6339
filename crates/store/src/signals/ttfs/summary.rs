//! Reads the rollups: by hour, by day, and as compliance with the targets. Called by the API.

use std::collections::BTreeMap;

use domain::limits::{TTFS_DAYS, TTFS_HOURS, TTFS_SLO_HOURS};
use domain::signals::ttfs::{compliance_pct, percentile};
use domain::{TenantId, Time};

use super::day;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SummaryPeriod {
    /// Every hour of the last `TTFS_HOURS` hours, split by cache hit.
    Hour,
    /// Every day of the last `TTFS_DAYS` days.
    Day,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub at: Time,
    pub surface: String,
    /// Set only for hourly summaries.
    pub cache_hit: Option<bool>,
    pub events: i64,
    pub avg_ms: Option<f64>,
    pub p50_ms: Option<i64>,
    pub p95_ms: Option<i64>,
    pub p99_ms: Option<i64>,
    pub min_ms: Option<i64>,
    pub max_ms: Option<i64>,
    pub over_2s: i64,
    pub over_5s: i64,
    pub hit_rate: f64,
    pub errors: i64,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SloHour {
    pub at: Time,
    pub surface: String,
    pub total: i64,
    pub p50_breaches: i64,
    pub p95_breaches: i64,
    pub p50_compliance_pct: f64,
    pub p95_compliance_pct: f64,
}

impl Store {
    /// Returns the summaries, newest first.
    pub async fn ttfs_summary(&self, tenant: TenantId, by: SummaryPeriod) -> Result<Vec<Summary>, StoreError> {
        self.read(SummarizeTtfs { tenant, by }).await
    }

    /// Returns the target compliance of rendered signals in the last `TTFS_SLO_HOURS` hours, newest hour first.
    pub async fn ttfs_slo(&self, tenant: TenantId) -> Result<Vec<SloHour>, StoreError> {
        self.read(ReadSlo { tenant }).await
    }
}

struct SummarizeTtfs {
    tenant: TenantId,
    by: SummaryPeriod,
}

const HOURS: Sql = Sql::both(&["select surface, hour_at, cache_hit, events, timed, sum_ms, min_ms, max_ms, over_2s,
         over_5s, errors, rendered, rendered_over_2s, rendered_over_5s
     from ttfs_hours where tenant = $1 and hour_at > $2"]);
const BUCKETS: Sql = Sql::both(&["select surface, hour_at, cache_hit, ms, count from ttfs_buckets
     where tenant = $1 and hour_at > $2"]);

/// Totals of one summary row.
#[derive(Default)]
struct SummaryTotals {
    events: i64,
    hits: i64,
    timed: i64,
    sum_ms: i64,
    min_ms: Option<i64>,
    max_ms: Option<i64>,
    over_2s: i64,
    over_5s: i64,
    errors: i64,
    times: BTreeMap<i64, i64>,
}

/// Newest first, then by surface.
type Key = (std::cmp::Reverse<Time>, String, Option<bool>);

impl Operation for SummarizeTtfs {
    type Output = Vec<Summary>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Summary>, StoreError> {
        let since = match self.by {
            SummaryPeriod::Hour => tx.now().plus_s(-TTFS_HOURS * 3_600),
            SummaryPeriod::Day => tx.now().plus_s(-TTFS_DAYS * 86_400),
        };
        let params = [Param::Int(self.tenant.0), Param::Time(since)];
        let mut all: BTreeMap<Key, SummaryTotals> = BTreeMap::new();
        for row in tx.query(&HOURS, &params).await? {
            let hit = row.bool("cache_hit")?;
            let sums = all.entry(self.key(row.text("surface")?, row.time("hour_at")?, hit)).or_default();
            sums.events += row.int("events")?;
            sums.hits += if hit { row.int("events")? } else { 0 };
            sums.timed += row.int("timed")?;
            sums.sum_ms += row.int("sum_ms")?;
            sums.min_ms = [sums.min_ms, row.opt_int("min_ms")?].into_iter().flatten().min();
            sums.max_ms = [sums.max_ms, row.opt_int("max_ms")?].into_iter().flatten().max();
            sums.over_2s += row.int("over_2s")?;
            sums.over_5s += row.int("over_5s")?;
            sums.errors += row.int("errors")?;
        }
        for row in tx.query(&BUCKETS, &params).await? {
            let sums =
                all.entry(self.key(row.text("surface")?, row.time("hour_at")?, row.bool("cache_hit")?)).or_default();
            *sums.times.entry(row.int("ms")?).or_default() += row.int("count")?;
        }
        Ok(all.into_iter().map(|(key, sums)| summary(key, sums)).collect())
    }
}

impl SummarizeTtfs {
    fn key(&self, surface: String, hour: Time, hit: bool) -> Key {
        match self.by {
            SummaryPeriod::Hour => (std::cmp::Reverse(hour), surface, Some(hit)),
            SummaryPeriod::Day => (std::cmp::Reverse(day(hour)), surface, None),
        }
    }
}

fn summary((std::cmp::Reverse(at), surface, cache_hit): Key, sums: SummaryTotals) -> Summary {
    let times: Vec<(i64, i64)> = sums.times.into_iter().collect();
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    // Rounded times may lie outside the exact extremes.
    let percentile_ms = |percent| Some(percentile(&times, percent)?.clamp(sums.min_ms?, sums.max_ms?));
    Summary {
        at,
        surface,
        cache_hit,
        events: sums.events,
        avg_ms: (sums.timed > 0).then(|| hundredths(sums.sum_ms as f64 / sums.timed as f64)),
        p50_ms: percentile_ms(50),
        p95_ms: percentile_ms(95),
        p99_ms: percentile_ms(99),
        min_ms: sums.min_ms,
        max_ms: sums.max_ms,
        over_2s: sums.over_2s,
        over_5s: sums.over_5s,
        hit_rate: (sums.hits as f64 / sums.events.max(1) as f64 * 10_000.0).round() / 10_000.0,
        errors: sums.errors,
    }
}

struct ReadSlo {
    tenant: TenantId,
}

impl Operation for ReadSlo {
    type Output = Vec<SloHour>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SloHour>, StoreError> {
        let since = tx.now().plus_s(-TTFS_SLO_HOURS * 3_600);
        let mut all: BTreeMap<(std::cmp::Reverse<Time>, String), (i64, i64, i64)> = BTreeMap::new();
        for row in tx.query(&HOURS, &[Param::Int(self.tenant.0), Param::Time(since)]).await? {
            let (total, over_p50, over_p95) =
                all.entry((std::cmp::Reverse(row.time("hour_at")?), row.text("surface")?)).or_default();
            *total += row.int("rendered")?;
            *over_p50 += row.int("rendered_over_2s")?;
            *over_p95 += row.int("rendered_over_5s")?;
        }
        let slo = |((std::cmp::Reverse(at), surface), (total, p50_breaches, p95_breaches))| {
            Some(SloHour {
                at,
                surface,
                total,
                p50_breaches,
                p95_breaches,
                p50_compliance_pct: compliance_pct(total, p50_breaches)?,
                p95_compliance_pct: compliance_pct(total, p95_breaches)?,
            })
        };
        Ok(all.into_iter().filter_map(slo).collect())
    }
}
