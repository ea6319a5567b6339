//! Quotas of a tenant: waiting jobs, jobs and payload bytes per second, triggers, reported events. A local administrator sets them and
//! every node enforces them.
//!
//! A tenant without a quota costs one map lookup per request. Each node enforces the rates on its own. Waiting jobs are
//! counted from the counters, cached for at most 250 ms, plus the jobs that this node has admitted since. With several
//! nodes a tenant can therefore exceed this quota by what they admit within that time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::limits::TOKEN_CACHE_TTL_MS;
use domain::{Name, TenantId};
use serde_json::json;

use crate::access::tokens::move_version;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::store::Store;

/// Maximum age of the cached number of waiting jobs.
const MAX_COUNT_AGE: Duration = Duration::from_millis(TOKEN_CACHE_TTL_MS);
/// Size of the token bucket, in seconds of its rate.
const BURST_S: f64 = 1.0;
/// The same for rates per minute: a client may report a minute's events at once.
const MINUTE_BURST_S: f64 = 60.0;

/// Limits of a tenant. `None` means unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    /// Jobs scheduled or queued at once.
    pub waiting_jobs: Option<i64>,
    /// Jobs admitted per second.
    pub jobs_per_s: Option<f64>,
    /// Payload bytes admitted per second.
    pub payload_bytes_per_s: Option<f64>,
    pub triggers: Option<i64>,
    /// Time-to-first-signal events recorded per minute.
    pub ttfs_events_per_min: Option<i64>,
    /// Weight in the round-robin of a worker that serves several tenants: jobs per turn (default: 1).
    pub weight: Option<i64>,
}

/// Jobs that a tenant wants to enqueue.
#[derive(Clone, Copy, Debug)]
pub struct AdmissionRequest {
    pub jobs: usize,
    pub payload_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    Admitted,
    /// The name and limit of the exceeded quota, and when to retry.
    Over {
        quota: &'static str,
        limit: f64,
        retry_s: u64,
    },
}

/// Usage per tenant, as observed by this node.
#[derive(Default)]
pub(crate) struct QuotaUse {
    tenants: Mutex<HashMap<TenantId, TenantUsage>>,
}

#[derive(Default)]
struct TenantUsage {
    jobs: TokenBucket,
    payload_bytes: TokenBucket,
    ttfs_events: TokenBucket,
    waiting: Option<WaitingJobs>,
}

struct WaitingJobs {
    counted_at: Instant,
    jobs: i64,
}

/// A token bucket that refills at the quota's rate.
#[derive(Default)]
struct TokenBucket {
    level: Option<(f64, Instant)>,
}

impl TokenBucket {
    /// Returns `None` if the bucket admits the request now, else the seconds until it does.
    ///
    /// A request larger than the bucket is admitted when the bucket is full. The level then becomes negative.
    fn seconds_until_admitted(&mut self, per_s: f64, burst_s: f64, requested: f64, now: Instant) -> Option<f64> {
        let capacity = (per_s * burst_s).max(1.0);
        let level = self.level.map_or(capacity, |(level, at)| capacity.min(level + per_s * (now - at).as_secs_f64()));
        self.level = Some((level, now));
        let needed = requested.min(capacity);
        (level < needed).then(|| (needed - level) / per_s)
    }

    fn charge(&mut self, requested: f64) {
        if let Some((level, _)) = &mut self.level {
            *level -= requested;
        }
    }
}

impl Store {
    /// Checks the request against the tenant's quotas and, if it is admitted, charges it.
    pub async fn admit(&self, tenant: TenantId, requested: AdmissionRequest) -> Result<Admission, StoreError> {
        self.refresh_token_cache().await?;
        let Some(quota) = self.tokens().quota(tenant) else { return Ok(Admission::Admitted) };
        if let Some(limit) = quota.waiting_jobs {
            let waiting = self.waiting_jobs(tenant).await?;
            if waiting + requested.jobs as i64 > limit {
                return Ok(Admission::Over { quota: "waiting_jobs", limit: limit as f64, retry_s: 5 });
            }
        }
        let mut tenants = self.quota_use().tenants.lock().expect("lock poisoned");
        let usage = tenants.entry(tenant).or_default();
        let now = Instant::now();
        let mut rates = [
            ("jobs_per_s", quota.jobs_per_s, requested.jobs as f64, &mut usage.jobs),
            (
                "payload_bytes_per_s",
                quota.payload_bytes_per_s,
                requested.payload_bytes as f64,
                &mut usage.payload_bytes,
            ),
        ];
        // Check every rate before charging any: a rejected request consumes nothing.
        for (quota, limit, requested, bucket) in &mut rates {
            let Some(limit) = *limit else { continue };
            if let Some(wait_s) = bucket.seconds_until_admitted(limit, BURST_S, *requested, now) {
                return Ok(Admission::Over { quota, limit, retry_s: wait_s.ceil().max(1.0) as u64 });
            }
        }
        let limited = rates.into_iter().filter(|(_, limit, ..)| limit.is_some());
        limited.for_each(|(_, _, requested, bucket)| bucket.charge(requested));
        if let Some(waiting) = &mut usage.waiting {
            waiting.jobs += requested.jobs as i64;
        }
        Ok(Admission::Admitted)
    }

    /// Checks reported events against the tenant's quota and, if they are admitted, charges them.
    pub async fn admit_ttfs_events(&self, tenant: TenantId, events: usize) -> Result<Admission, StoreError> {
        self.refresh_token_cache().await?;
        let quota = self.tokens().quota(tenant);
        let Some(limit) = quota.and_then(|quota| quota.ttfs_events_per_min) else { return Ok(Admission::Admitted) };
        let over = |retry_s| Admission::Over { quota: "ttfs_events_per_min", limit: limit as f64, retry_s };
        let per_s = limit as f64 / MINUTE_BURST_S;
        if per_s <= 0.0 {
            return Ok(over(MINUTE_BURST_S as u64));
        }
        let mut tenants = self.quota_use().tenants.lock().expect("lock poisoned");
        let bucket = &mut tenants.entry(tenant).or_default().ttfs_events;
        if let Some(wait_s) = bucket.seconds_until_admitted(per_s, MINUTE_BURST_S, events as f64, Instant::now()) {
            return Ok(over(wait_s.ceil().max(1.0) as u64));
        }
        bucket.charge(events as f64);
        Ok(Admission::Admitted)
    }

    async fn waiting_jobs(&self, tenant: TenantId) -> Result<i64, StoreError> {
        {
            let tenants = self.quota_use().tenants.lock().expect("lock poisoned");
            let waiting = tenants.get(&tenant).and_then(|usage| usage.waiting.as_ref());
            if let Some(waiting) = waiting.filter(|waiting| waiting.counted_at.elapsed() < MAX_COUNT_AGE) {
                return Ok(waiting.jobs);
            }
        }
        let counted_at = Instant::now();
        let jobs = self.read(CountWaitingJobs { tenant }).await?;
        let mut tenants = self.quota_use().tenants.lock().expect("lock poisoned");
        tenants.entry(tenant).or_default().waiting = Some(WaitingJobs { counted_at, jobs });
        Ok(jobs)
    }

    pub async fn set_quota(&self, tenant: Name, quota: Quota, by: &str) -> Result<bool, StoreError> {
        let found = self.write(SetQuota { tenant, quota, by: by.to_owned() }).await?;
        self.tokens().invalidate();
        Ok(found)
    }

    pub async fn quota_of(&self, tenant: TenantId) -> Result<Quota, StoreError> {
        Ok(self.quotas().await?.remove(&tenant).unwrap_or_default())
    }

    /// Returns the quotas of all tenants that have one.
    pub async fn quotas(&self) -> Result<HashMap<TenantId, Quota>, StoreError> {
        self.read(ListQuotas).await
    }
}

struct CountWaitingJobs {
    tenant: TenantId,
}

const WAITING: Sql = Sql::new(
    &["select coalesce(sum(waiting), 0) as waiting_jobs from (
           select waiting + scheduled + queued as waiting from counters where tenant = $1
           union all select waiting + scheduled + queued from counter_deltas where tenant = $1)"],
    "select coalesce(sum(waiting), 0)::bigint as waiting_jobs from (
         select waiting + scheduled + queued as waiting from counters where tenant = $1
         union all select waiting + scheduled + queued from counter_deltas where tenant = $1) kept",
);

impl Operation for CountWaitingJobs {
    type Output = i64;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&WAITING, &[Param::Int(self.tenant.0)]).await?;
        Ok(row.map(|row| row.int("waiting_jobs")).transpose()?.unwrap_or(0))
    }
}

struct SetQuota {
    tenant: Name,
    quota: Quota,
    by: String,
}

const UPSERT: Sql = Sql::both(&["insert into quotas
         (tenant, waiting_jobs, jobs_per_s, payload_bytes_per_s, triggers, ttfs_events_per_min, weight)
     values ($1, $2, $3, $4, $5, $6, $7)
     on conflict (tenant) do update set waiting_jobs = excluded.waiting_jobs, jobs_per_s = excluded.jobs_per_s,
         payload_bytes_per_s = excluded.payload_bytes_per_s, triggers = excluded.triggers,
         ttfs_events_per_min = excluded.ttfs_events_per_min, weight = excluded.weight"]);

impl Operation for SetQuota {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let Some(tenant) = super::find(tx, &self.tenant).await? else { return Ok(false) };
        let real = |value: Option<f64>| value.map_or(Param::Null, Param::Real);
        let params = [
            Param::Int(tenant.0),
            Param::int(self.quota.waiting_jobs),
            real(self.quota.jobs_per_s),
            real(self.quota.payload_bytes_per_s),
            Param::int(self.quota.triggers),
            Param::int(self.quota.ttfs_events_per_min),
            Param::int(self.quota.weight),
        ];
        tx.execute(&UPSERT, &params).await?;
        let detail = json!({
            "tenant": self.tenant.as_str(), "waiting_jobs": self.quota.waiting_jobs, "jobs_per_s": self.quota.jobs_per_s,
            "payload_bytes_per_s": self.quota.payload_bytes_per_s, "triggers": self.quota.triggers,
            "ttfs_events_per_min": self.quota.ttfs_events_per_min, "weight": self.quota.weight,
        });
        timeline::write(tx, &[Entry::by(tenant, &self.by, "quotas_changed", detail.to_string())]).await?;
        // Nodes reload quotas when the token version moves. Version 0 must not move: it means that no token was ever
        // created. Until then every caller belongs to the default tenant.
        if crate::access::tokens::version(tx).await? > 0 {
            move_version(tx).await?;
        }
        Ok(true)
    }
}

const TRIGGER_LIMIT: Sql = Sql::both(&["select triggers from quotas where tenant = $1"]);

/// Returns the tenant's maximum number of triggers, if it has a limit.
pub(crate) async fn trigger_limit(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<i64>, StoreError> {
    let row = tx.query_opt(&TRIGGER_LIMIT, &[Param::Int(tenant.0)]).await?;
    Ok(row.map(|row| row.opt_int("triggers")).transpose()?.flatten())
}

pub(crate) struct ListQuotas;

const ALL: Sql =
    Sql::both(&["select tenant, waiting_jobs, jobs_per_s, payload_bytes_per_s, triggers, ttfs_events_per_min, weight
     from quotas"]);

impl Operation for ListQuotas {
    type Output = HashMap<TenantId, Quota>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        tx.query(&ALL, &[]).await?.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<(TenantId, Quota), StoreError> {
    let quota = Quota {
        waiting_jobs: row.opt_int("waiting_jobs")?,
        jobs_per_s: row.opt_real("jobs_per_s")?,
        payload_bytes_per_s: row.opt_real("payload_bytes_per_s")?,
        triggers: row.opt_int("triggers")?,
        ttfs_events_per_min: row.opt_int("ttfs_events_per_min")?,
        weight: row.opt_int("weight")?,
    };
    Ok((TenantId(row.int("tenant")?), quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn admit(bucket: &mut TokenBucket, per_s: f64, requested: f64, now: Instant) -> Result<(), f64> {
        if let Some(wait_s) = bucket.seconds_until_admitted(per_s, BURST_S, requested, now) {
            return Err(wait_s);
        }
        bucket.charge(requested);
        Ok(())
    }

    /// Requirement Q12.
    #[test]
    fn a_rate_limit_holds_over_time_and_admits_a_burst() {
        let mut bucket = TokenBucket::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(admit(&mut bucket, 10.0, 10.0, at(0)), Ok(()));
        assert_eq!(admit(&mut bucket, 10.0, 1.0, at(0)), Err(0.1));
        assert_eq!(admit(&mut bucket, 10.0, 1.0, at(100)), Ok(()));
        assert!(admit(&mut bucket, 10.0, 1.0, at(150)).is_err());
        let admitted = (0..10_000).filter(|ms| admit(&mut bucket, 10.0, 1.0, at(1_000 + ms)).is_ok()).count();
        assert!((100..=111).contains(&admitted), "{admitted} in ten seconds");
    }

    /// Requirement Q12.
    #[test]
    fn a_batch_larger_than_the_burst_is_admitted_as_debt() {
        let mut bucket = TokenBucket::default();
        let start = Instant::now();
        assert_eq!(admit(&mut bucket, 10.0, 100.0, start), Ok(()));
        assert!(admit(&mut bucket, 10.0, 1.0, start + Duration::from_secs(9)).is_err());
        assert_eq!(admit(&mut bucket, 10.0, 1.0, start + Duration::from_secs(10)), Ok(()));
    }
}
