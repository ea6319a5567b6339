//! Eligibility of subjects for processes, stored per (subject, process) in the table `standings`. It is evaluated
//! whenever a fact changes, and again when the age of a fact alone may change the result.
//!
//! A stored row is exact until its `check_at`. The scan that makes jobs, the counts of a process and the list of
//! eligible subjects read these rows only.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::fleet::backoff::EVERY_PROCESS;
use domain::fleet::selector::Verdict;
use domain::queue::lease::service_since;
use domain::{Name, Selector, TenantId, Time};

use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::processes::codec::selector_from_json;
use crate::fleet::subjects::SubjectRow;

/// The `ready_at` of a subject that is locked out without an end: 9999-12-31, the latest time that both databases
/// store.
pub(crate) const NEVER: Time = Time::from_seconds(253_402_300_799);

/// The selector of one process, with what its evaluation depends on.
pub(crate) struct ProcessSelector {
    pub(crate) name: String,
    pub(crate) selector: Selector,
    /// Since when the service has been up. Facts could not be reported before, so downtime must not make them look old.
    pub(crate) served_since: Time,
    /// True if the stored rows were evaluated with another selector.
    pub(crate) is_new: bool,
}

impl ProcessSelector {
    /// Reads the settings of the process, and from the service the start of its current period (`since`) and its last
    /// heartbeat (`beat_at`). If the heartbeat is too old, the service is down and counts as up only since `now`.
    pub(crate) fn read(name: String, row: &Row, now: Time) -> Result<Self, StoreError> {
        let selector = selector_from_json(&row.text("settings")?)?;
        Ok(Self {
            name,
            selector,
            served_since: service_since(row.time("since")?, row.time("beat_at")?, now),
            is_new: false,
        })
    }
}

/// A row of `standings`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Eligibility {
    /// Since when the subject has been eligible; `None` while it is not.
    since: Option<Time>,
    /// Earliest time of the next job by the process's `every_s`.
    pace_at: Option<Time>,
    /// Earliest time of the next job, backoffs included.
    ready_at: Option<Time>,
    /// When the age of a fact may change the result.
    check_at: Option<Time>,
    /// True while the row has an unfinished job.
    busy: bool,
}

const SELECTORS: Sql =
    Sql::both(&["select p.name, p.settings, s.since, s.beat_at from processes p join service s on s.id = 1
     where p.tenant = $1 and p.dropped_at is null order by p.name"]);

/// Returns the selectors of all processes of a tenant and locks them in shared mode until the transaction ends. A
/// change of a process waits for the lock, so no evaluation uses a selector that has been replaced.
pub(crate) async fn selectors(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<ProcessSelector>, StoreError> {
    tx.lock_shared(&lock_name(tenant)).await?;
    let rows = tx.query(&SELECTORS, &[Param::Int(tenant.0)]).await?;
    rows.iter().map(|row| ProcessSelector::read(row.text("name")?, row, tx.now())).collect()
}

/// Returns the name of the advisory lock on a tenant's processes.
pub(crate) fn lock_name(tenant: TenantId) -> String {
    format!("processes {}", tenant.0)
}

const STANDINGS: Sql = Sql::new(
    &["select subject, process, since, pace_at, ready_at, check_at, job from standings
       where tenant = $2 and subject = $1"],
    "select subject, process, since, pace_at, ready_at, check_at, job from standings
     where tenant = $2 and subject = any($1::text[]) order by subject, process for update",
);
const UPSERT: Sql = Sql::new(
    &["insert into standings (subject, process, since, pace_at, ready_at, check_at, tenant)
       values ($1, $2, $3, $4, $5, $6, $7)
       on conflict (tenant, subject, process) do update set since = excluded.since, pace_at = excluded.pace_at,
           ready_at = excluded.ready_at, check_at = excluded.check_at"],
    "insert into standings (subject, process, since, pace_at, ready_at, check_at, tenant)
     select n.*, $7 from unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::timestamptz[],
         $6::timestamptz[]) n
     on conflict (tenant, subject, process) do update set since = excluded.since, pace_at = excluded.pace_at,
         ready_at = excluded.ready_at, check_at = excluded.check_at",
);
const DELETE: Sql = Sql::new(
    &["delete from standings where tenant = $3 and subject = $1 and process = $2"],
    "delete from standings s using unnest($1::text[], $2::text[]) as n(subject, process)
     where s.tenant = $3 and s.subject = n.subject and s.process = n.process",
);

/// Evaluates locked subjects against these selectors and writes the rows that changed. Returns true if the scan may
/// have new work or an earlier check time.
pub(crate) async fn evaluate(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    rows: &[SubjectRow],
    selectors: &[ProcessSelector],
) -> Result<bool, StoreError> {
    if rows.is_empty() || selectors.is_empty() {
        return Ok(false);
    }
    let now = tx.now();
    let ids = [Column::texts(rows.iter().map(|row| row.id.as_str()))];
    let mut stored: HashMap<(String, String), Eligibility> = HashMap::new();
    for row in tx.query_each(&STANDINGS, &ids, &[Param::Int(tenant.0)]).await? {
        stored.insert((row.text("subject")?, row.text("process")?), Eligibility::read(&row)?);
    }
    let wanted: BTreeSet<&str> =
        selectors.iter().flat_map(|process| process.selector.facts()).map(Name::as_str).collect();
    let mut changed: Vec<(&str, &str, Eligibility)> = Vec::new();
    for row in rows {
        let facts = row.facts.facts(&wanted);
        for process in selectors {
            let before = stored.remove(&(row.id.clone(), process.name.clone())).unwrap_or_default();
            let kind = row.kind.as_deref();
            // Once with the facts' real ages, and once with ages that exclude service downtime. If the results differ,
            // a fact is old only because it could not be renewed during the downtime, and the subject keeps its
            // previous state.
            let real = process.selector.evaluate(kind, &facts, now);
            let adjusted = process.selector.evaluate_since(process.served_since, kind, &facts, now);
            let was_eligible = before.since.is_some() && !process.is_new;
            let eligible = if real.eligible == adjusted.eligible { real.eligible } else { was_eligible };
            let changes_at = real.changes_at.into_iter().chain(adjusted.changes_at).min();
            let after = before.evaluated(Verdict { eligible, changes_at }, now);
            if after != before {
                changed.push((&row.id, &process.name, after));
            }
        }
    }
    if changed.is_empty() {
        return Ok(false);
    }
    let newly_eligible: BTreeSet<&str> =
        changed.iter().filter(|(_, _, after)| after.is_new(now)).map(|(id, _, _)| *id).collect();
    let backoffs = Backoffs::load(tx, tenant, &newly_eligible).await?;
    for (subject, process, after) in &mut changed {
        if after.is_new(now) {
            after.ready_at = Some(backoffs.ready_at(subject, process, now));
        }
    }
    let (empty, written): (Vec<_>, Vec<_>) = changed.iter().partition(|(_, _, after)| after.is_empty());
    let delete =
        [Column::texts(empty.iter().map(|(id, _, _)| *id)), Column::texts(empty.iter().map(|(_, name, _)| *name))];
    tx.execute_each(&DELETE, &delete, &[Param::Int(tenant.0)]).await?;
    let upsert = [
        Column::texts(written.iter().map(|(id, _, _)| *id)),
        Column::texts(written.iter().map(|(_, name, _)| *name)),
        Column::Time(written.iter().map(|(_, _, after)| after.since).collect()),
        Column::Time(written.iter().map(|(_, _, after)| after.pace_at).collect()),
        Column::Time(written.iter().map(|(_, _, after)| after.ready_at).collect()),
        Column::Time(written.iter().map(|(_, _, after)| after.check_at).collect()),
    ];
    tx.execute_each(&UPSERT, &upsert, &[Param::Int(tenant.0)]).await?;
    Ok(true)
}

impl Eligibility {
    fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            since: row.opt_time("since")?,
            pace_at: row.opt_time("pace_at")?,
            ready_at: row.opt_time("ready_at")?,
            check_at: row.opt_time("check_at")?,
            busy: row.opt_uuid("job")?.is_some(),
        })
    }

    fn evaluated(&self, verdict: Verdict, now: Time) -> Self {
        let check_at = match (self.check_at, verdict.changes_at) {
            // A check that comes too early does no harm, so a heartbeat fact does not have to move it every time.
            (Some(planned), later) if planned > now && later.is_none_or(|later| planned <= later) => Some(planned),
            (_, changes_at) => changes_at,
        };
        match (verdict.eligible, self.since) {
            (true, Some(_)) => Self { check_at, ..self.clone() },
            (true, None) => Self { since: Some(now), pace_at: None, ready_at: Some(now), check_at, busy: self.busy },
            (false, _) => Self { check_at, busy: self.busy, ..Self::default() },
        }
    }

    fn is_new(&self, now: Time) -> bool {
        self.since == Some(now)
    }

    /// True if the row equals the absence of a row and can be deleted.
    fn is_empty(&self) -> bool {
        self.since.is_none() && self.check_at.is_none() && !self.busy
    }
}

/// The unexpired backoffs of some subjects.
#[derive(Debug, Default)]
pub(crate) struct Backoffs(BTreeMap<(String, String), Time>);

const BACKOFFS: Sql = Sql::new(
    &[
        "select subject, process, until from backoffs where tenant = $2 and subject = $1 and (until is null or until > $3)",
    ],
    "select subject, process, until from backoffs
     where tenant = $2 and subject = any($1::text[]) and (until is null or until > $3)",
);

impl Backoffs {
    /// Reads the unexpired backoffs of these subjects.
    pub(crate) async fn load(tx: &mut Tx<'_>, tenant: TenantId, subjects: &BTreeSet<&str>) -> Result<Self, StoreError> {
        let columns = [Column::texts(subjects.iter().copied())];
        let params = [Param::Int(tenant.0), Param::Time(tx.now())];
        let mut found = BTreeMap::new();
        for row in tx.query_each(&BACKOFFS, &columns, &params).await? {
            found.insert((row.text("subject")?, row.text("process")?), row.opt_time("until")?.unwrap_or(NEVER));
        }
        Ok(Self(found))
    }

    /// Returns when the backoffs allow the process to work on the subject, at least `earliest`.
    pub(crate) fn ready_at(&self, subject: &str, process: &str, earliest: Time) -> Time {
        let until = |process: &str| self.0.get(&(subject.to_owned(), process.to_owned())).copied();
        [until(process), until(EVERY_PROCESS)].into_iter().flatten().fold(earliest, Time::max)
    }
}

const OF_SUBJECT: Sql = Sql::new(
    &["select process, since, pace_at from standings where tenant = $1 and subject = $2 and since is not null"],
    "select process, since, pace_at from standings where tenant = $1 and subject = $2 and since is not null
     order by process for update",
);
const SET_READY: Sql = Sql::new(
    &["update standings set ready_at = $2 where tenant = $3 and subject = $4 and process = $1"],
    "update standings s set ready_at = n.ready_at from unnest($1::text[], $2::timestamptz[]) as n(process, ready_at)
     where s.tenant = $3 and s.subject = $4 and s.process = n.process",
);

/// Recomputes `ready_at` of a subject's rows after one of its backoffs changed.
pub(crate) async fn recompute_ready(tx: &mut Tx<'_>, tenant: TenantId, subject: &str) -> Result<(), StoreError> {
    let key = [Param::Int(tenant.0), Param::Text(subject)];
    let rows = tx.query(&OF_SUBJECT, &key).await?;
    let backoffs = Backoffs::load(tx, tenant, &BTreeSet::from([subject])).await?;
    let mut ready: Vec<(String, Time)> = Vec::new();
    for row in &rows {
        let process = row.text("process")?;
        let earliest = row.opt_time("pace_at")?.unwrap_or(row.time("since")?);
        let at = backoffs.ready_at(subject, &process, earliest);
        ready.push((process, at));
    }
    let columns = [
        Column::texts(ready.iter().map(|(process, _)| process.as_str())),
        Column::Time(ready.iter().map(|(_, at)| Some(*at)).collect()),
    ];
    tx.execute_each(&SET_READY, &columns, &key).await.map(|_| ())
}

/// An ended job, for the row that waits for it.
pub(crate) struct EndedWork<'a> {
    pub(crate) subject: &'a str,
    pub(crate) process: &'a str,
    pub(crate) job: domain::JobId,
    /// True after a success or a cancel: the process's pace decides when the next job may be made. After a failure the
    /// backoff decides.
    pub(crate) paced: bool,
}

const ENDED: Sql = Sql::new(
    &["select s.subject, s.process, s.since, s.made_at, s.check_at, p.every_s
       from standings s left join processes p on p.tenant = s.tenant and p.name = s.process
       where s.tenant = $4 and s.subject = $1 and s.process = $2 and s.job = $3"],
    "select s.subject, s.process, s.since, s.made_at, s.check_at, p.every_s
     from unnest($1::text[], $2::text[], $3::uuid[]) as n(subject, process, job)
         join standings s on s.tenant = $4 and s.subject = n.subject and s.process = n.process and s.job = n.job
         left join processes p on p.tenant = s.tenant and p.name = s.process
     for update of s",
);
const FREE: Sql = Sql::new(
    &[
        "update standings set job = null, pace_at = $3, ready_at = $4 where tenant = $5 and subject = $1 and process = $2",
    ],
    "update standings s set job = null, pace_at = n.pace_at, ready_at = n.ready_at
     from unnest($1::text[], $2::text[], $3::timestamptz[], $4::timestamptz[])
         as n(subject, process, pace_at, ready_at)
     where s.tenant = $5 and s.subject = n.subject and s.process = n.process",
);

/// Clears the job of each row whose job has ended, so that the process may work on the subject again. Returns true if a
/// row was changed.
pub(crate) async fn free(tx: &mut Tx<'_>, tenant: TenantId, ended: &[EndedWork<'_>]) -> Result<bool, StoreError> {
    let columns = [
        Column::texts(ended.iter().map(|work| work.subject)),
        Column::texts(ended.iter().map(|work| work.process)),
        Column::jobs(ended.iter().map(|work| work.job)),
    ];
    let rows = tx.query_each(&ENDED, &columns, &[Param::Int(tenant.0)]).await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let subjects: BTreeSet<&str> = ended.iter().map(|work| work.subject).collect();
    let backoffs = Backoffs::load(tx, tenant, &subjects).await?;
    let now = tx.now();
    let mut empty: Vec<(String, String)> = Vec::new();
    let mut freed: Vec<(String, String, Option<Time>, Option<Time>)> = Vec::new();
    for row in &rows {
        let (subject, process) = (row.text("subject")?, row.text("process")?);
        if row.opt_time("since")?.is_none() {
            if row.opt_time("check_at")?.is_none() {
                empty.push((subject, process));
            } else {
                freed.push((subject, process, None, None));
            }
            continue;
        }
        let paced = ended.iter().any(|work| work.paced && work.subject == subject && work.process == process);
        let pace_at = match (paced, row.opt_time("made_at")?, row.opt_int("every_s")?) {
            (true, Some(made_at), Some(every_s)) => Some(made_at.plus_s(every_s).max(now)),
            _ => None,
        };
        let ready_at = backoffs.ready_at(&subject, &process, pace_at.unwrap_or(now));
        freed.push((subject, process, pace_at, Some(ready_at)));
    }
    let delete = [
        Column::texts(empty.iter().map(|(subject, _)| subject.as_str())),
        Column::texts(empty.iter().map(|(_, process)| process.as_str())),
    ];
    tx.execute_each(&DELETE, &delete, &[Param::Int(tenant.0)]).await?;
    let columns = [
        Column::texts(freed.iter().map(|(subject, ..)| subject.as_str())),
        Column::texts(freed.iter().map(|(_, process, ..)| process.as_str())),
        Column::Time(freed.iter().map(|(_, _, pace_at, _)| *pace_at).collect()),
        Column::Time(freed.iter().map(|(_, _, _, ready_at)| *ready_at).collect()),
    ];
    tx.execute_each(&FREE, &columns, &[Param::Int(tenant.0)]).await?;
    Ok(true)
}
