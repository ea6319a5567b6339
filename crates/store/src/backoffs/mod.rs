//! Backoffs (W5): what keeps a process, or every process, off a subject; written by failures and by hand.
//!
//! A row is ignored once its time has passed; nobody has to clean up. Jobs that meet one at the claim are parked for it;
//! whoever takes it away lets them go, and so does the scan once its time has passed.

pub mod by_hand;

use std::collections::{BTreeSet, HashMap};

use domain::limits::SCAN_ROWS_AT_ONCE;
use domain::{Backoff, Name, TenantId, Time};
use uuid::Uuid;

use crate::effects::Effects;
use crate::error::StoreError;
use crate::lanes::LaneCache;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

/// A backoff as everyone may read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredBackoff {
    pub process: String,
    pub backoff: Backoff,
    /// The job whose failure wrote it.
    pub job: Option<Uuid>,
}

/// What a job that waits for a backoff is parked for.
pub(crate) fn scope(process: &str, subject: &str) -> String {
    format!("{SCOPE}{process} {subject}")
}

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
            process: row.text(0)?,
            backoff: Backoff {
                until: row.opt_time(1)?,
                cause: row.text(2)?,
                by: row.text(3)?,
                wait_s: row.opt_int(4)?.map(|wait| wait as u64),
                at: row.time(5)?,
            },
            job: row.opt_uuid(6)?,
        })
    }
}

/// The one of this process, past or not, locked.
pub(crate) async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subject: &str,
    process: &str,
) -> Result<Option<StoredBackoff>, StoreError> {
    let row = tx.query_opt(&READ, &[Param::Int(tenant.0), Param::Text(subject), Param::Text(process)]).await?;
    row.as_ref().map(StoredBackoff::read).transpose()
}

/// All of a subject that still hold, by process.
pub(crate) async fn of_subject(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    subject: &str,
) -> Result<Vec<StoredBackoff>, StoreError> {
    Ok(of_subjects(tx, tenant, &[subject]).await?.remove(subject).unwrap_or_default())
}

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
            found.entry(row.text(7)?).or_default().push(stored);
        }
    }
    found.values_mut().for_each(|all| all.sort_by(|one, other| one.process.cmp(&other.process)));
    Ok(found)
}

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

/// Takes them away, by tenant, subject and process, and lets those jobs go that waited for them. Gives the subjects that
/// had one.
pub(crate) async fn remove<'a>(
    tx: &mut Tx<'_>,
    lanes: &LaneCache,
    on: &[(TenantId, &'a str, &'a str)],
    effects: &mut Effects,
) -> Result<BTreeSet<(TenantId, &'a str)>, StoreError> {
    let columns = [
        Column::ints(on.iter().map(|(tenant, _, _)| tenant.0)),
        Column::texts(on.iter().map(|(_, subject, _)| *subject)),
        Column::texts(on.iter().map(|(_, _, process)| *process)),
    ];
    let mut had: BTreeSet<(TenantId, String)> = BTreeSet::new();
    for row in tx.query_each(&DELETE, &columns, &[]).await? {
        let (tenant, subject) = (TenantId(row.int(0)?), row.text(1)?);
        if row.bool(3)? {
            unpark(tx, lanes, tenant, &scope(&row.text(2)?, &subject), effects).await?;
        }
        had.insert((tenant, subject));
    }
    let of = on.iter().map(|(tenant, subject, _)| (*tenant, *subject));
    Ok(of.filter(|(tenant, subject)| had.contains(&(*tenant, (*subject).to_owned()))).collect())
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
    let ids = rows.iter().map(|row| row.int(0)).collect::<Result<Vec<_>, _>>()?;
    for lane in lanes.of(tx, &ids).await?.values() {
        effects.ready.insert((lane.tenant, Name::stored(lane.queue.as_str())));
    }
    Ok(ids.len())
}

/// Lets jobs go whose backoff has passed.
pub(crate) async fn unpark_past(store: &Store) -> Result<usize, StoreError> {
    if store.read(AnyPast).await?.is_none() {
        return Ok(0);
    }
    let (unparked, effects) = store.write(UnparkPast { lanes: store.lanes().clone() }).await?;
    store.announce(&effects);
    Ok(unparked)
}

struct AnyPast;

const ANY_PAST: Sql = Sql::both(&["select until from backoffs where waiting and until <= $1 order by until limit 1"]);

impl Operation for AnyPast {
    type Output = Option<Time>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<Time>, StoreError> {
        let now = Param::Time(tx.now());
        tx.query_opt(&ANY_PAST, &[now]).await?.map(|row| row.time(0)).transpose()
    }
}

struct UnparkPast {
    lanes: LaneCache,
}

const PAST: Sql = Sql::new(
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

impl Operation for UnparkPast {
    type Output = (usize, Effects);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut effects = Effects::default();
        let params = [Param::Time(tx.now()), Param::Int(SCAN_ROWS_AT_ONCE as i64)];
        let mut unparked = 0;
        for row in tx.query(&PAST, &params).await? {
            let scope = scope(&row.text(2)?, &row.text(1)?);
            unparked += unpark(tx, &self.lanes, TenantId(row.int(0)?), &scope, &mut effects).await?;
        }
        Ok((unparked, effects))
    }
}
