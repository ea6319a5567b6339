//! Backoffs keep one process, or every process, off a subject. Failures and operators write them.
//!
//! An expired row is ignored, so no task has to delete it. A claim parks the jobs that an unexpired backoff blocks.
//! They are unparked by the transaction that removes the backoff, or by the scan once the backoff has expired.

pub mod lockout;

use std::collections::{BTreeSet, HashMap};

use domain::limits::PROCESS_SCAN_ROWS;
use domain::{Backoff, Name, TenantId, Time};
use uuid::Uuid;

use crate::db::effects::Effects;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::queue::lanes::LaneCache;
use crate::store::Store;

/// A backoff as stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBackoff {
    pub process: String,
    pub backoff: Backoff,
    /// The job whose failure wrote it; `None` for a manual backoff.
    pub job: Option<Uuid>,
}

/// Returns the value of `jobs.parked` for a job that waits for this backoff.
pub(crate) fn scope(process: &str, subject: &str) -> String {
    format!("{SCOPE}{process} {subject}")
}

/// Prefix of every value that [`scope`] returns.
pub(crate) const SCOPE: &str = "backoff ";

const READ: Sql = Sql::new(
    &[
        "select process, until, cause, actor, wait_s, at, job from backoffs where tenant = $1 and subject = $2 and process = $3",
    ],
    "select process, until, cause, actor, wait_s, at, job from backoffs
     where tenant = $1 and subject = $2 and process = $3 for update",
);
const OF_SUBJECTS: Sql = Sql::new(
    &["select process, until, cause, actor, wait_s, at, job, subject from backoffs where tenant = $2 and subject = $1"],
    "select process, until, cause, actor, wait_s, at, job, subject from backoffs
     where tenant = $2 and subject = any($1::text[])",
);
const WRITE: Sql = Sql::both(&["insert into backoffs (tenant, subject, process, until, cause, actor, wait_s, at, job)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
     on conflict (tenant, subject, process) do update set until = excluded.until, cause = excluded.cause,
         actor = excluded.actor, wait_s = excluded.wait_s, at = excluded.at, job = excluded.job"]);
const DELETE: Sql = Sql::new(
    &["delete from backoffs where tenant = $1 and subject = $2 and process = $3
       returning tenant, subject, process, waiting"],
    "delete from backoffs b using unnest($1::bigint[], $2::text[], $3::text[]) as n(tenant, subject, process)
     where b.tenant = n.tenant and b.subject = n.subject and b.process = n.process
     returning b.tenant, b.subject, b.process, b.waiting",
);

impl StoredBackoff {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            process: row.text("process")?,
            backoff: Backoff {
                until: row.opt_time("until")?,
                cause: row.text("cause")?,
                by: row.text("actor")?,
                wait_s: row.opt_int("wait_s")?.map(|wait| wait as u64),
                at: row.time("at")?,
            },
            job: row.opt_uuid("job")?,
        })
    }
}

/// Returns the backoff of this process, expired or not, and locks its row.
pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subject: &str,
    process: &str,
) -> Result<Option<StoredBackoff>, StoreError> {
    let row = tx.query_opt(&READ, &[Param::Int(tenant.0), Param::Text(subject), Param::Text(process)]).await?;
    row.as_ref().map(StoredBackoff::read).transpose()
}

/// Returns the unexpired backoffs of a subject, ordered by process.
pub(crate) async fn of_subject(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subject: &str,
) -> Result<Vec<StoredBackoff>, StoreError> {
    Ok(of_subjects(tx, tenant, &[subject]).await?.remove(subject).unwrap_or_default())
}

/// Like [`of_subject`], for many subjects; subjects without a backoff are absent from the map.
pub(crate) async fn of_subjects(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subjects: &[&str],
) -> Result<HashMap<String, Vec<StoredBackoff>>, StoreError> {
    let now = tx.now();
    let columns = [Column::texts(subjects.iter().copied())];
    let mut found: HashMap<String, Vec<StoredBackoff>> = HashMap::new();
    for row in tx.query_each(&OF_SUBJECTS, &columns, &[Param::Int(tenant.0)]).await? {
        let stored = StoredBackoff::read(&row)?;
        if stored.backoff.holds(now) {
            found.entry(row.text("subject")?).or_default().push(stored);
        }
    }
    found.values_mut().for_each(|all| all.sort_by(|one, other| one.process.cmp(&other.process)));
    Ok(found)
}

/// Inserts or replaces the backoff of one (subject, process).
pub(crate) async fn write(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subject: &str,
    stored: &StoredBackoff,
) -> Result<(), StoreError> {
    let Backoff { until, cause, by, wait_s, at } = &stored.backoff;
    let params = [
        Param::Int(tenant.0),
        Param::Text(subject),
        Param::Text(&stored.process),
        Param::time(*until),
        Param::Text(cause),
        Param::Text(by),
        Param::int(wait_s.map(|wait| wait.min(i64::MAX as u64) as i64)),
        Param::Time(*at),
        Param::uuid(stored.job),
    ];
    tx.execute(&WRITE, &params).await.map(|_| ())
}

/// Deletes the backoffs of these (tenant, subject, process) keys and unparks the jobs that waited for them. Returns the
/// subjects that had one.
pub(crate) async fn remove<'a>(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    keys: &[(TenantId, &'a str, &'a str)],
    effects: &mut Effects,
) -> Result<BTreeSet<(TenantId, &'a str)>, StoreError> {
    let columns = [
        Column::ints(keys.iter().map(|(tenant, _, _)| tenant.0)),
        Column::texts(keys.iter().map(|(_, subject, _)| *subject)),
        Column::texts(keys.iter().map(|(_, _, process)| *process)),
    ];
    let mut deleted: BTreeSet<(TenantId, String)> = BTreeSet::new();
    for row in tx.query_each(&DELETE, &columns, &[]).await? {
        let (tenant, subject) = (TenantId(row.int("tenant")?), row.text("subject")?);
        if row.bool("waiting")? {
            unpark(tx, lanes, tenant, &scope(&row.text("process")?, &subject), effects).await?;
        }
        deleted.insert((tenant, subject));
    }
    let subjects = keys.iter().map(|(tenant, subject, _)| (*tenant, *subject));
    Ok(subjects.filter(|(tenant, subject)| deleted.contains(&(*tenant, (*subject).to_owned()))).collect())
}

const UNPARK: Sql = Sql::both(&["update jobs set parked = null where tenant = $1 and parked = $2 returning lane"]);

async fn unpark(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    tenant: TenantId,
    scope: &str,
    effects: &mut Effects,
) -> Result<usize, StoreError> {
    let rows = tx.query(&UNPARK, &[Param::Int(tenant.0), Param::Text(scope)]).await?;
    let ids = rows.iter().map(|row| row.int("lane")).collect::<Result<Vec<_>, _>>()?;
    for lane in lanes.of(tx, &ids).await?.values() {
        effects.ready.insert((lane.tenant, Name::stored(lane.queue.as_str())));
    }
    Ok(ids.len())
}

/// Unparks the jobs whose backoff has expired, for a bounded number of backoffs. Returns how many jobs were unparked.
pub(crate) async fn unpark_expired(store: &Store) -> Result<usize, StoreError> {
    if store.read(HasExpired).await?.is_none() {
        return Ok(0);
    }
    let (unparked, effects) = store.write(UnparkExpired { lanes: store.lanes().clone() }).await?;
    store.announce(&effects);
    Ok(unparked)
}

struct HasExpired;

const NEXT_EXPIRED: Sql =
    Sql::both(&["select until from backoffs where waiting and until <= $1 order by until limit 1"]);

impl Operation for HasExpired {
    type Output = Option<Time>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Time>, StoreError> {
        let now = Param::Time(tx.now());
        tx.query_opt(&NEXT_EXPIRED, &[now]).await?.map(|row| row.time("until")).transpose()
    }
}

struct UnparkExpired {
    lanes: LaneCache,
}

const UNMARK_EXPIRED: Sql = Sql::new(
    &["update backoffs set waiting = 0 where (tenant, subject, process) in (
           select tenant, subject, process from backoffs where waiting and until <= $1 order by until limit $2)
       returning tenant, subject, process"],
    "with past as materialized (
         select tenant, subject, process from backoffs where waiting and until <= $1 order by until limit $2
         for update skip locked)
     update backoffs b set waiting = false from past
     where b.tenant = past.tenant and b.subject = past.subject and b.process = past.process
     returning b.tenant, b.subject, b.process",
);

impl Operation for UnparkExpired {
    type Output = (usize, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut effects = Effects::default();
        let params = [Param::Time(tx.now()), Param::Int(PROCESS_SCAN_ROWS as i64)];
        let mut unparked = 0;
        for row in tx.query(&UNMARK_EXPIRED, &params).await? {
            let scope = scope(&row.text("process")?, &row.text("subject")?);
            unparked += unpark(tx, &self.lanes, TenantId(row.int("tenant")?), &scope, &mut effects).await?;
        }
        Ok((unparked, effects))
    }
}
