//! How long a failure lasts: from it to the next success of the same kind with the same subject or key (S7).

use domain::limits::{FAILURES_AT_ONCE, REPAIR_S_MAX, REPAIR_SAMPLES};
use domain::{JobId, TenantId, Time};
use uuid::Uuid;

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

impl Store {
    /// Looks whether what failed works again. Tells how many do.
    pub async fn learn_repairs(&self) -> Result<u64, StoreError> {
        let open = self.read(Open).await?;
        if open.is_empty() {
            return Ok(0);
        }
        self.write(Check { open }).await
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

struct Open;

const OPEN: Sql = Sql::both(&["select tenant, kind, key, group_id, job, failed_at from unrepaired
     order by checked_at limit $1"]);

impl Operation for Open {
    type Output = Vec<Unrepaired>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Unrepaired>, StoreError> {
        let rows = tx.query(&OPEN, &[Param::Int(FAILURES_AT_ONCE as i64)]).await?;
        rows.iter()
            .map(|row| {
                Ok(Unrepaired {
                    tenant: TenantId(row.int(0)?),
                    kind: row.text(1)?,
                    key: row.text(2)?,
                    group: row.uuid(3)?,
                    job: row.job(4)?,
                    failed_at: row.time(5)?,
                })
            })
            .collect()
    }
}

struct Check {
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
// What a person wrote of the repair stays.
const TEACH: Sql = Sql::both(&["update signatures set mttr_p50_s = $2, mttr_p95_s = $3
     where id = $1 and (status <> 'manual' or mttr_p50_s is null)"]);

impl Operation for Check {
    type Output = u64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<u64, StoreError> {
        let now = tx.now();
        let mut repaired = 0;
        for open in &self.open {
            let (tenant, kind) = (Param::Int(open.tenant.0), Param::Text(&open.kind));
            let (sql, word) = match open.key.split_once(' ') {
                Some(("subject", subject)) => (&NEXT_BY_SUBJECT, subject),
                Some((_, key)) => (&NEXT_BY_KEY, key),
                None => continue,
            };
            let row = tx.query_opt(sql, &[tenant, Param::Text(word), Param::from(open.job), kind]).await?;
            let key = [tenant, kind, Param::Text(&open.key), Param::from(open.job)];
            let is_old = now.ms_since(open.failed_at) > REPAIR_S_MAX * 1_000;
            match row {
                Some(row) => {
                    let seconds = row.time(0)?.ms_since(open.failed_at).max(0) as f64 / 1_000.0;
                    repaired += u64::from(learn(tx, open.group, &key, seconds).await?);
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

/// Closes the failure and notes how long it lasted; `false` when another node has done so meanwhile.
///
/// The group is locked first, as by those who count failures into it.
async fn learn(tx: &mut Tx<'_>, group: Uuid, key: &[Param<'_>], seconds: f64) -> Result<bool, StoreError> {
    let row = tx.query_opt(&REPAIRS, &[Param::Uuid(group)]).await?;
    if tx.execute(&CLOSE, key).await? == 0 {
        return Ok(false);
    }
    let Some(row) = row else { return Ok(true) };
    let mut repairs: Vec<f64> = row.opt_text(0)?.map(|text| from_json(&text)).transpose()?.unwrap_or_default();
    repairs.push(seconds);
    let first = repairs.len().saturating_sub(REPAIR_SAMPLES);
    repairs.drain(..first);
    tx.execute(&SET_REPAIRS, &[Param::Uuid(group), Param::Json(&to_json(&repairs))]).await?;
    let Some(signature) = row.opt_uuid(1)? else { return Ok(true) };
    repairs.sort_by(f64::total_cmp);
    let at = |share: f64| repairs[((repairs.len() - 1) as f64 * share).round() as usize];
    let params = [Param::Uuid(signature), Param::Real(at(0.5)), Param::Real(at(0.95))];
    tx.execute(&TEACH, &params).await.map(|_| true)
}
