//! The rollups as they are asked for: by hour, by day, and against the targets (S5).

use std::collections::BTreeMap;

use domain::limits::{TTFS_DAYS, TTFS_HOURS, TTFS_SLO_HOURS};
use domain::ttfs::{compliance_pct, percentile};
use domain::{TenantId, Time};

use super::day;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// Each hour of seven days, split by cache hit.
    Hour,
    /// Each day of ninety.
    Day,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Summary {
    pub at: Time,
    pub surface: String,
    /// Only by hour.
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
    /// Newest first.
    pub async fn ttfs_summary(&self, tenant: TenantId, by: By) -> Result<Vec<Summary>, StoreError> {
        self.read(Summarize { tenant, by }).await
    }

    /// Rendered signals of the last 24 hours against their targets, newest hour first.
    pub async fn ttfs_slo(&self, tenant: TenantId) -> Result<Vec<SloHour>, StoreError> {
        self.read(Slo { tenant }).await
    }
}

struct Summarize {
    tenant: TenantId,
    by: By,
}

const HOURS: Sql = Sql::both(&["select surface, hour_at, cache_hit, events, timed, sum_ms, min_ms, max_ms, over_2s,
         over_5s, errors, rendered, rendered_over_2s, rendered_over_5s
     from ttfs_hours where tenant = $1 and hour_at > $2"]);
const BUCKETS: Sql = Sql::both(&["select surface, hour_at, cache_hit, ms, count from ttfs_buckets
     where tenant = $1 and hour_at > $2"]);

#[derive(Default)]
struct Sums {
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

impl Operation for Summarize {
    type Output = Vec<Summary>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Summary>, StoreError> {
        let since = match self.by {
            By::Hour => tx.now().plus_s(-TTFS_HOURS * 3_600),
            By::Day => tx.now().plus_s(-TTFS_DAYS * 86_400),
        };
        let params = [Param::Int(self.tenant.0), Param::Time(since)];
        let mut all: BTreeMap<Key, Sums> = BTreeMap::new();
        for row in tx.query(&HOURS, &params).await? {
            let hit = row.bool(2)?;
            let sums = all.entry(self.key(row.text(0)?, row.time(1)?, hit)).or_default();
            sums.events += row.int(3)?;
            sums.hits += if hit { row.int(3)? } else { 0 };
            sums.timed += row.int(4)?;
            sums.sum_ms += row.int(5)?;
            sums.min_ms = [sums.min_ms, row.opt_int(6)?].into_iter().flatten().min();
            sums.max_ms = [sums.max_ms, row.opt_int(7)?].into_iter().flatten().max();
            sums.over_2s += row.int(8)?;
            sums.over_5s += row.int(9)?;
            sums.errors += row.int(10)?;
        }
        for row in tx.query(&BUCKETS, &params).await? {
            let sums = all.entry(self.key(row.text(0)?, row.time(1)?, row.bool(2)?)).or_default();
            *sums.times.entry(row.int(3)?).or_default() += row.int(4)?;
        }
        Ok(all.into_iter().map(|(key, sums)| summary(key, sums)).collect())
    }
}

impl Summarize {
    fn key(&self, surface: String, hour: Time, hit: bool) -> Key {
        match self.by {
            By::Hour => (std::cmp::Reverse(hour), surface, Some(hit)),
            By::Day => (std::cmp::Reverse(day(hour)), surface, None),
        }
    }
}

fn summary((std::cmp::Reverse(at), surface, cache_hit): Key, sums: Sums) -> Summary {
    let times: Vec<(i64, i64)> = sums.times.into_iter().collect();
    let hundredths = |value: f64| (value * 100.0).round() / 100.0;
    Summary {
        at,
        surface,
        cache_hit,
        events: sums.events,
        avg_ms: (sums.timed > 0).then(|| hundredths(sums.sum_ms as f64 / sums.timed as f64)),
        p50_ms: percentile(&times, 0.5),
        p95_ms: percentile(&times, 0.95),
        p99_ms: percentile(&times, 0.99),
        min_ms: sums.min_ms,
        max_ms: sums.max_ms,
        over_2s: sums.over_2s,
        over_5s: sums.over_5s,
        hit_rate: (sums.hits as f64 / sums.events.max(1) as f64 * 10_000.0).round() / 10_000.0,
        errors: sums.errors,
    }
}

struct Slo {
    tenant: TenantId,
}

impl Operation for Slo {
    type Output = Vec<SloHour>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<SloHour>, StoreError> {
        let since = tx.now().plus_s(-TTFS_SLO_HOURS * 3_600);
        let mut all: BTreeMap<(std::cmp::Reverse<Time>, String), (i64, i64, i64)> = BTreeMap::new();
        for row in tx.query(&HOURS, &[Param::Int(self.tenant.0), Param::Time(since)]).await? {
            let sums = all.entry((std::cmp::Reverse(row.time(1)?), row.text(0)?)).or_default();
            sums.0 += row.int(11)?;
            sums.1 += row.int(12)?;
            sums.2 += row.int(13)?;
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
