//! Lists failure groups, most recently seen first.

use std::collections::BTreeMap;

use domain::limits::FAILURE_SUBJECTS_SHOWN;
use domain::{TenantId, Time};
use uuid::Uuid;

use crate::db::codec::from_json;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug)]
pub struct FailureGroup {
    pub id: Uuid,
    pub kind: String,
    pub phase: Option<String>,
    pub error_code: String,
    pub message_pattern: String,
    pub example: String,
    pub count: i64,
    pub first_seen_at: Time,
    pub last_seen_at: Time,
    pub last_job: Uuid,
    pub repairs_s: Vec<f64>,
    pub signature: Option<Uuid>,
    /// When it first failed again after a user marked the cause as fixed.
    pub recurred_at: Option<Time>,
    /// The most affected subjects, in descending order of failures.
    pub subjects: Vec<String>,
    /// Number of affected subjects.
    pub subject_count: i64,
    /// Failures in each of the last 24 hours, oldest first.
    pub hourly: Vec<i64>,
}

impl FailureGroup {
    /// Compares the last six hours with the six before them: `quiet`, `new`, `rising`, `falling` or `steady`.
    pub fn trend(&self) -> &'static str {
        let sum = |range: std::ops::Range<usize>| self.hourly.get(range).map_or(0, |hours| hours.iter().sum::<i64>());
        let (before, now) = (sum(12..18), sum(18..24));
        match (before, now) {
            (0, 0) => "quiet",
            (0, _) if self.count == self.hourly.iter().sum::<i64>() => "new",
            (before, now) if now * 2 > before * 3 => "rising",
            (before, now) if now * 3 < before * 2 => "falling",
            _ => "steady",
        }
    }
}

/// Page cursor: the last group of the previous page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureCursor {
    pub last_seen_at: Time,
    pub id: Uuid,
}

impl Store {
    /// Returns up to `limit` groups after the cursor.
    pub async fn list_failures(
        &self,
        tenant: TenantId,
        after: Option<FailureCursor>,
        limit: usize,
    ) -> Result<Vec<FailureGroup>, StoreError> {
        self.read(ListFailures { tenant, after, limit, only: None }).await
    }

    pub async fn failure_group(&self, tenant: TenantId, id: Uuid) -> Result<Option<FailureGroup>, StoreError> {
        Ok(self.read(ListFailures { tenant, after: None, limit: 1, only: Some(id) }).await?.pop())
    }
}

struct ListFailures {
    tenant: TenantId,
    after: Option<FailureCursor>,
    limit: usize,
    only: Option<Uuid>,
}

const PAGE: Sql = Sql::both(&["select g.id, g.kind, g.phase, g.error_code, g.message_pattern, g.example, g.count,
         g.first_seen_at, g.last_seen_at, g.last_job, g.repairs, g.signature, s.recurred_at
     from failure_groups g left join signatures s on s.id = g.signature
     where g.tenant = $1 and (g.last_seen_at, g.id) < ($2, $3) order by g.last_seen_at desc, g.id desc limit $4"]);
const ONE: Sql = Sql::both(&["select g.id, g.kind, g.phase, g.error_code, g.message_pattern, g.example, g.count,
         g.first_seen_at, g.last_seen_at, g.last_job, g.repairs, g.signature, s.recurred_at
     from failure_groups g left join signatures s on s.id = g.signature where g.tenant = $1 and g.id = $2"]);
const SUBJECTS: Sql = Sql::both(&["select subject, count from failure_subjects where group_id = $1
     order by count desc, subject limit $2"]);
const SUBJECT_COUNT: Sql = Sql::both(&["select count(*) as subjects from (
         select 1 from failure_subjects where group_id = $1 limit 10000) capped"]);
const HOURS: Sql = Sql::both(&["select hour_at, count from failure_hours where group_id = $1 and hour_at > $2"]);

impl Operation for ListFailures {
    type Output = Vec<FailureGroup>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<FailureGroup>, StoreError> {
        let tenant = Param::Int(self.tenant.0);
        let rows = match self.only {
            Some(id) => tx.query(&ONE, &[tenant, Param::Uuid(id)]).await?,
            None => {
                let (at, id) =
                    self.after.map_or((tx.now().plus_s(86_400 * 365), Uuid::max()), |a| (a.last_seen_at, a.id));
                tx.query(&PAGE, &[tenant, Param::Time(at), Param::Uuid(id), Param::Int(self.limit as i64)]).await?
            }
        };
        let mut groups = Vec::with_capacity(rows.len());
        for row in &rows {
            groups.push(group(tx, row).await?);
        }
        Ok(groups)
    }
}

async fn group(tx: &mut Tx<'_>, row: &Row) -> Result<FailureGroup, StoreError> {
    let id = row.uuid("id")?;
    let key = Param::Uuid(id);
    let subjects = tx.query(&SUBJECTS, &[key, Param::Int(FAILURE_SUBJECTS_SHOWN as i64)]).await?;
    let count = tx.query_opt(&SUBJECT_COUNT, &[key]).await?;
    let now = tx.now();
    let hours = tx.query(&HOURS, &[key, Param::Time(now.plus_s(-24 * 3_600))]).await?;
    let mut by_age: BTreeMap<i64, i64> = BTreeMap::new();
    for hour in &hours {
        *by_age.entry(now.ms_since(hour.time("hour_at")?).max(0) / 3_600_000).or_default() += hour.int("count")?;
    }
    Ok(FailureGroup {
        id,
        kind: row.text("kind")?,
        phase: Some(row.text("phase")?).filter(|phase| !phase.is_empty()),
        error_code: row.text("error_code")?,
        message_pattern: row.text("message_pattern")?,
        example: row.text("example")?,
        count: row.int("count")?,
        first_seen_at: row.time("first_seen_at")?,
        last_seen_at: row.time("last_seen_at")?,
        last_job: row.uuid("last_job")?,
        repairs_s: row.opt_text("repairs")?.map(|text| from_json(&text)).transpose()?.unwrap_or_default(),
        signature: row.opt_uuid("signature")?,
        recurred_at: row.opt_time("recurred_at")?,
        subjects: subjects.iter().map(|row| row.text("subject")).collect::<Result<_, _>>()?,
        subject_count: count.map(|row| row.int("subjects")).transpose()?.unwrap_or(0),
        hourly: (0..24).rev().map(|age| by_age.get(&age).copied().unwrap_or(0)).collect(),
    })
}
