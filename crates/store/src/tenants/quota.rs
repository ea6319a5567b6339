//! Quotas of a tenant (Q12): jobs waiting, jobs and payload bytes taken in, triggers. Set at the machine, kept by each node.
//!
//! A tenant without a quota costs one look into memory. Rates are held by each node for itself, and jobs waiting are counted
//! from kept figures at most a quarter of a second old plus what this node has taken in since: with many nodes a quota may
//! be passed by what they take in within that time.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use domain::limits::TOKEN_TRUST_MS;
use domain::{Name, TenantId};
use serde_json::json;

use crate::error::StoreError;
use crate::store::Store;
use crate::timeline::{self, Entry};
use crate::tokens::move_version;
use crate::tx::{Operation, Param, Row, Sql, Tx};

const FRESH: Duration = Duration::from_millis(TOKEN_TRUST_MS);
/// A rate may be used up ahead for this long.
const BURST_S: f64 = 1.0;

/// Without a number there is no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Quota {
    /// Jobs scheduled or queued at once.
    pub waiting_jobs: Option<i64>,
    /// Jobs taken in, in a second.
    pub jobs_per_s: Option<f64>,
    /// Bytes of payload taken in, in a second.
    pub payload_bytes_per_s: Option<f64>,
    pub triggers: Option<i64>,
    /// Jobs it is given in its turn by a worker that serves several tenants; one, unless set.
    pub weight: Option<i64>,
}

/// What a tenant wants to bring in.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    pub jobs: usize,
    pub payload_bytes: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Admission {
    Admitted,
    /// Which quota is used up, what it is, and when to come back.
    Over {
        quota: &'static str,
        limit: f64,
        retry_s: u64,
    },
}

/// What this node knows of how much tenants have used.
#[derive(Default)]
pub(crate) struct QuotaUse {
    tenants: Mutex<HashMap<TenantId, Used>>,
}

#[derive(Default)]
struct Used {
    jobs: Bucket,
    payload_bytes: Bucket,
    waiting: Option<Waiting>,
}

struct Waiting {
    counted: Instant,
    jobs: i64,
}

/// Fills at the quota's rate, up to what may be used ahead.
#[derive(Default)]
struct Bucket {
    level: Option<(f64, Instant)>,
}

impl Bucket {
    /// In how many seconds there is enough, if not now. What is more than the bucket ever holds may be taken when it is full,
    /// and is owed.
    fn lacks(&mut self, per_s: f64, wanted: f64, now: Instant) -> Option<f64> {
        let most = (per_s * BURST_S).max(1.0);
        let level = self.level.map_or(most, |(level, at)| most.min(level + per_s * (now - at).as_secs_f64()));
        self.level = Some((level, now));
        let enough = wanted.min(most);
        (level < enough).then(|| (enough - level) / per_s)
    }

    fn take(&mut self, wanted: f64) {
        if let Some((level, _)) = &mut self.level {
            *level -= wanted;
        }
    }
}

impl Store {
    /// Whether the tenant may bring this in now.
    pub async fn admit(&self, tenant: TenantId, wanted: Wanted) -> Result<Admission, StoreError> {
        self.look_at_tokens().await?;
        let Some(quota) = self.tokens().quota(tenant) else { return Ok(Admission::Admitted) };
        if let Some(limit) = quota.waiting_jobs {
            let waiting = self.waiting_jobs(tenant).await?;
            if waiting + wanted.jobs as i64 > limit {
                return Ok(Admission::Over { quota: "waiting_jobs", limit: limit as f64, retry_s: 5 });
            }
        }
        let mut tenants = self.quota_use().tenants.lock().expect("nobody panics with it in hand");
        let used = tenants.entry(tenant).or_default();
        let now = Instant::now();
        let mut rates = [
            ("jobs_per_s", quota.jobs_per_s, wanted.jobs as f64, &mut used.jobs),
            ("payload_bytes_per_s", quota.payload_bytes_per_s, wanted.payload_bytes as f64, &mut used.payload_bytes),
        ];
        // What one of them refuses is taken from none.
        for (quota, limit, wanted, bucket) in &mut rates {
            let Some(limit) = *limit else { continue };
            if let Some(wait_s) = bucket.lacks(limit, *wanted, now) {
                return Ok(Admission::Over { quota, limit, retry_s: wait_s.ceil().max(1.0) as u64 });
            }
        }
        let limited = rates.into_iter().filter(|(_, limit, ..)| limit.is_some());
        limited.for_each(|(_, _, wanted, bucket)| bucket.take(wanted));
        if let Some(waiting) = &mut used.waiting {
            waiting.jobs += wanted.jobs as i64;
        }
        Ok(Admission::Admitted)
    }

    async fn waiting_jobs(&self, tenant: TenantId) -> Result<i64, StoreError> {
        {
            let tenants = self.quota_use().tenants.lock().expect("nobody panics with it in hand");
            let waiting = tenants.get(&tenant).and_then(|used| used.waiting.as_ref());
            if let Some(waiting) = waiting.filter(|waiting| waiting.counted.elapsed() < FRESH) {
                return Ok(waiting.jobs);
            }
        }
        let counted = Instant::now();
        let jobs = self.read(CountWaiting { tenant }).await?;
        let mut tenants = self.quota_use().tenants.lock().expect("nobody panics with it in hand");
        tenants.entry(tenant).or_default().waiting = Some(Waiting { counted, jobs });
        Ok(jobs)
    }

    pub async fn set_quota(&self, tenant: Name, quota: Quota, by: &str) -> Result<bool, StoreError> {
        let found = self.write(Set { tenant, quota, by: by.to_owned() }).await?;
        self.tokens().forget();
        Ok(found)
    }

    pub async fn quota_of(&self, tenant: TenantId) -> Result<Quota, StoreError> {
        Ok(self.quotas().await?.remove(&tenant).unwrap_or_default())
    }

    /// Of every tenant that was ever given one.
    pub async fn quotas(&self) -> Result<HashMap<TenantId, Quota>, StoreError> {
        self.read(All).await
    }
}

struct CountWaiting {
    tenant: TenantId,
}

const WAITING: Sql = Sql::new(
    &["select coalesce(sum(waiting), 0) from (
           select scheduled + queued as waiting from counters where tenant = $1
           union all select scheduled + queued from counter_deltas where tenant = $1)"],
    "select coalesce(sum(waiting), 0)::bigint from (
         select scheduled + queued as waiting from counters where tenant = $1
         union all select scheduled + queued from counter_deltas where tenant = $1) kept",
);

impl Operation for CountWaiting {
    type Output = i64;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        let row = tx.query_opt(&WAITING, &[Param::Int(self.tenant.0)]).await?;
        Ok(row.map(|row| row.int(0)).transpose()?.unwrap_or(0))
    }
}

struct Set {
    tenant: Name,
    quota: Quota,
    by: String,
}

const UPSERT: Sql =
    Sql::both(&["insert into quotas (tenant, waiting_jobs, jobs_per_s, payload_bytes_per_s, triggers, weight)
     values ($1, $2, $3, $4, $5, $6)
     on conflict (tenant) do update set waiting_jobs = excluded.waiting_jobs, jobs_per_s = excluded.jobs_per_s,
         payload_bytes_per_s = excluded.payload_bytes_per_s, triggers = excluded.triggers, weight = excluded.weight"]);

impl Operation for Set {
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
            Param::int(self.quota.weight),
        ];
        tx.execute(&UPSERT, &params).await?;
        let detail = json!({
            "tenant": self.tenant.as_str(), "waiting_jobs": self.quota.waiting_jobs, "jobs_per_s": self.quota.jobs_per_s,
            "payload_bytes_per_s": self.quota.payload_bytes_per_s, "triggers": self.quota.triggers,
            "weight": self.quota.weight,
        });
        timeline::write(tx, &[Entry::by(tenant, &self.by, "quotas_changed", detail.to_string())]).await?;
        // Nodes read quotas when they find that tokens have changed. While there are none yet, nobody has a tenant of their own.
        if crate::tokens::version(tx).await? > 0 {
            move_version(tx).await?;
        }
        Ok(true)
    }
}

const TRIGGERS: Sql = Sql::both(&["select triggers from quotas where tenant = $1"]);

/// How many triggers the tenant may have, where that is limited.
pub(crate) async fn triggers(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Option<i64>, StoreError> {
    let row = tx.query_opt(&TRIGGERS, &[Param::Int(tenant.0)]).await?;
    Ok(row.map(|row| row.opt_int(0)).transpose()?.flatten())
}

pub(crate) struct All;

const ALL: Sql =
    Sql::both(&["select tenant, waiting_jobs, jobs_per_s, payload_bytes_per_s, triggers, weight from quotas"]);

impl Operation for All {
    type Output = HashMap<TenantId, Quota>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        tx.query(&ALL, &[]).await?.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<(TenantId, Quota), StoreError> {
    let quota = Quota {
        waiting_jobs: row.opt_int(1)?,
        jobs_per_s: row.opt_real(2)?,
        payload_bytes_per_s: row.opt_real(3)?,
        triggers: row.opt_int(4)?,
        weight: row.opt_int(5)?,
    };
    Ok((TenantId(row.int(0)?), quota))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take(bucket: &mut Bucket, per_s: f64, wanted: f64, now: Instant) -> Result<(), f64> {
        if let Some(wait_s) = bucket.lacks(per_s, wanted, now) {
            return Err(wait_s);
        }
        bucket.take(wanted);
        Ok(())
    }

    #[test]
    fn q12_a_rate_holds_over_time_and_lets_a_burst_through() {
        let mut bucket = Bucket::default();
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        assert_eq!(take(&mut bucket, 10.0, 10.0, at(0)), Ok(()));
        assert_eq!(take(&mut bucket, 10.0, 1.0, at(0)), Err(0.1));
        assert_eq!(take(&mut bucket, 10.0, 1.0, at(100)), Ok(()));
        assert!(take(&mut bucket, 10.0, 1.0, at(150)).is_err());
        let taken = (0..10_000).filter(|ms| take(&mut bucket, 10.0, 1.0, at(1_000 + ms)).is_ok()).count();
        assert!((100..=111).contains(&taken), "{taken} in ten seconds");
    }

    #[test]
    fn q12_a_batch_larger_than_the_burst_gets_in_and_is_owed() {
        let mut bucket = Bucket::default();
        let start = Instant::now();
        assert_eq!(take(&mut bucket, 10.0, 100.0, start), Ok(()));
        assert!(take(&mut bucket, 10.0, 1.0, start + Duration::from_secs(9)).is_err());
        assert_eq!(take(&mut bucket, 10.0, 1.0, start + Duration::from_secs(10)), Ok(()));
    }
}
