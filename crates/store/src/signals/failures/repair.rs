//! Measures repair times (MTTR): the time from a failure to the next success of the same kind with the same subject or
//! unique key. Called by the task that groups failures.

use domain::limits::{FAILURE_BATCH_ROWS, REPAIR_MAX_S, REPAIR_SAMPLES};
use domain::{JobId, TenantId, Time};
use uuid::Uuid;

use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

impl Store {
    /// Checks a batch of unrepaired failures for a later success. Returns how many were repaired.
    pub async fn learn_repairs(&self) -> Result<u64, StoreError> {
        let open = self.read(ListUnrepaired).await?;
        if open.is_empty() {
            return Ok(0);
        }
        self.write(CheckRepairs { open }).await
    }
}

#[derive(Clone, Debug)]
struct Unrepaired {
    tenant: TenantId,
    kind: String,
    key: String,
    group: Uuid,
    job: JobId,
    failed_at: Time,
}

struct ListUnrepaired;

const OPEN: Sql = Sql::both(&["select tenant, kind, key, group_id, job, failed_at from unrepaired
     order by checked_at limit $1"]);

impl Operation for ListUnrepaired {
    type Output = Vec<Unrepaired>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Unrepaired>, StoreError> {
        let rows = tx.query(&OPEN, &[Param::Int(FAILURE_BATCH_ROWS as i64)]).await?;
        rows.iter()
            .map(|row| {
                Ok(Unrepaired {
                    tenant: TenantId(row.int("tenant")?),
                    kind: row.text("kind")?,
                    key: row.text("key")?,
                    group: row.uuid("group_id")?,
                    job: row.job("job")?,
                    failed_at: row.time("failed_at")?,
                })
            })
            .collect()
    }
}

struct CheckRepairs {
    open: Vec<Unrepaired>,
}

const NEXT_BY_SUBJECT: Sql = Sql::both(&["select e.finished_at from (select id, lane, state, finished_at from ended
         where tenant = $1 and subject = $2 and id > $3 order by id limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 and e.state = 'succeeded' order by e.finished_at limit 1"]);
const NEXT_BY_KEY: Sql = Sql::both(&["select e.finished_at from (select id, lane, state, finished_at from ended
         where tenant = $1 and unique_key = $2 and id > $3 order by id limit 50) e
     join lanes l on l.lane = e.lane where l.kind = $4 and e.state = 'succeeded' order by e.finished_at limit 1"]);
const CLOSE: Sql = Sql::both(&["delete from unrepaired where tenant = $1 and kind = $2 and key = $3 and job = $4"]);
const CHECKED: Sql = Sql::both(&["update unrepaired set checked_at = $5
     where tenant = $1 and kind = $2 and key = $3 and job = $4"]);
const REPAIRS: Sql = Sql::new(
    &["select repairs, signature from failure_groups where id = $1"],
    "select repairs, signature from failure_groups where id = $1 for update",
);
const SET_REPAIRS: Sql = Sql::both(&["update failure_groups set repairs = $2 where id = $1"]);
// A repair time that a user entered is not overwritten.
const SET_MTTR: Sql = Sql::both(&["update signatures set mttr_p50_s = $2, mttr_p95_s = $3
     where id = $1 and (status <> 'manual' or mttr_p50_s is null)"]);

impl Operation for CheckRepairs {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let mut repaired = 0;
        for open in &self.open {
            let (tenant, kind) = (Param::Int(open.tenant.0), Param::Text(&open.kind));
            let (sql, value) = match open.key.split_once(' ') {
                Some(("subject", subject)) => (&NEXT_BY_SUBJECT, subject),
                Some((_, key)) => (&NEXT_BY_KEY, key),
                None => continue,
            };
            let row = tx.query_opt(sql, &[tenant, Param::Text(value), Param::from(open.job), kind]).await?;
            let key = [tenant, kind, Param::Text(&open.key), Param::from(open.job)];
            let is_old = now.ms_since(open.failed_at) > REPAIR_MAX_S * 1_000;
            match row {
                Some(row) => {
                    let seconds = row.time("finished_at")?.ms_since(open.failed_at).max(0) as f64 / 1_000.0;
                    repaired += u64::from(record_repair(tx, open.group, &key, seconds).await?);
                }
                None if is_old => drop(tx.execute(&CLOSE, &key).await?),
                None => {
                    let [a, b, c, d] = key;
                    tx.execute(&CHECKED, &[a, b, c, d, Param::Time(now)]).await?;
                }
            }
        }
        Ok(repaired)
    }
}

/// Closes the failure and records its repair time. Returns false if another node has closed it in the meantime.
///
/// The group is locked first, in the same order as in the transaction that counts failures into it.
async fn record_repair(tx: &mut Tx<'_>, group: Uuid, key: &[Param<'_>], seconds: f64) -> Result<bool, StoreError> {
    let row = tx.query_opt(&REPAIRS, &[Param::Uuid(group)]).await?;
    if tx.execute(&CLOSE, key).await? == 0 {
        return Ok(false);
    }
    let Some(row) = row else { return Ok(true) };
    let mut repairs: Vec<f64> = row.opt_text("repairs")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default();
    repairs.push(seconds);
    let first = repairs.len().saturating_sub(REPAIR_SAMPLES);
    repairs.drain(..first);
    tx.execute(&SET_REPAIRS, &[Param::Uuid(group), Param::Json(&to_json(&repairs))]).await?;
    let Some(signature) = row.opt_uuid("signature")? else { return Ok(true) };
    repairs.sort_by(f64::total_cmp);
    let quantile = |share: f64| repairs[((repairs.len() - 1) as f64 * share).round() as usize];
    let params = [Param::Uuid(signature), Param::Real(quantile(0.5)), Param::Real(quantile(0.95))];
    tx.execute(&SET_MTTR, &params).await.map(|_| true)
}
