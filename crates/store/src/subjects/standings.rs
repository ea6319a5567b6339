//! How subjects stand with processes: judged whenever a fact changes, and again when age alone may change the answer.
//!
//! A standing is exact at every moment at which its `check_at` has not come: the scan that makes jobs, the figures and
//! the listing of eligible subjects all read it and nothing else (W7).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use domain::backoff::EVERY_PROCESS;
use domain::lease::service_since;
use domain::selector::Verdict;
use domain::{Selector, TenantId, Time};

use crate::error::StoreError;
use crate::processes::codec::selector_from_json;
use crate::subjects::SubjectRow;
use crate::tx::{Column, Param, Row, Sql, Tx};

/// From when a subject that is locked out without end may be worked on: the last moment both databases can tell.
pub(crate) const NEVER: Time = Time::from_seconds(253_402_300_799);

pub(crate) struct ProcessSelector {
    pub(crate) name: String,
    pub(crate) selector: Selector,
    /// Since when facts could be told: an outage of ours is nobody's silence.
    pub(crate) served_since: Time,
    /// What subjects were was judged by another selector.
    pub(crate) is_new: bool,
}

impl ProcessSelector {
    /// Of the settings at `first` and, behind them, since when service has been up and the last beat. In an outage that no
    /// beat has ended yet, it has been up since now.
    pub(crate) fn read(name: String, row: &Row, first: usize, now: Time) -> Result<Self, StoreError> {
        let selector = selector_from_json(&row.text(first)?)?;
        Ok(Self {
            name,
            selector,
            served_since: service_since(row.time(first + 1)?, row.time(first + 2)?, now),
            is_new: false,
        })
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Standing {
    /// Since when it has been eligible; `None` while it is not.
    since: Option<Time>,
    pace_at: Option<Time>,
    ready_at: Option<Time>,
    check_at: Option<Time>,
    busy: bool,
}

const SELECTORS: Sql =
    Sql::both(&["select p.name, p.settings, s.since, s.beat_at from processes p join service s on s.id = 1
     where p.tenant = $1 and p.dropped_at is null order by p.name"]);

/// The selectors of all processes. They stay as they are until the transaction ends: a process that changes waits, so
/// that nobody judges by a selector that has just gone.
pub(crate) async fn selectors(tx: &mut Tx<'_>, tenant: TenantId) -> Result<Vec<ProcessSelector>, StoreError> {
    tx.lock_shared(&lock_name(tenant)).await?;
    let rows = tx.query(&SELECTORS, &[Param::Int(tenant.0)]).await?;
    rows.iter().map(|row| ProcessSelector::read(row.text(0)?, row, 1, tx.now())).collect()
}

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

/// Judges locked subjects by these selectors and writes what is new. Gives whether there may be work, or a moment to
/// look again, that the scan does not know of.
pub(crate) async fn judge(
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
    let mut known: HashMap<(String, String), Standing> = HashMap::new();
    for row in tx.query_each(&STANDINGS, &ids, &[Param::Int(tenant.0)]).await? {
        known.insert((row.text(0)?, row.text(1)?), Standing::read(&row, 2)?);
    }
    let conditions = selectors.iter().flat_map(|process| {
        let Selector { all, any, not, .. } = &process.selector;
        all.iter().chain(any).chain(not)
    });
    let wanted: BTreeSet<&str> = conditions.map(|condition| condition.fact.as_str()).collect();
    let mut changed: Vec<(&str, &str, Standing)> = Vec::new();
    for row in rows {
        let facts = row.facts.facts(&wanted);
        for process in selectors {
            let before = known.remove(&(row.id.clone(), process.name.clone())).unwrap_or_default();
            let kind = row.kind.as_deref();
            // By the facts as they were told, and when an outage is allowed for. Where these differ, age counts only because
            // nobody could tell us, and the subject stays what it was.
            let told = process.selector.judge(kind, &facts, now);
            let allowed = process.selector.judge_since(process.served_since, kind, &facts, now);
            let stays = before.since.is_some() && !process.is_new;
            let eligible = if told.eligible == allowed.eligible { told.eligible } else { stays };
            let changes_at = told.changes_at.into_iter().chain(allowed.changes_at).min();
            let after = before.judged(Verdict { eligible, changes_at }, now);
            if after != before {
                changed.push((&row.id, &process.name, after));
            }
        }
    }
    if changed.is_empty() {
        return Ok(false);
    }
    let newly: BTreeSet<&str> =
        changed.iter().filter(|(_, _, after)| after.is_new(now)).map(|(id, _, _)| *id).collect();
    let backoffs = Backoffs::load(tx, tenant, &newly).await?;
    for (subject, process, after) in &mut changed {
        if after.is_new(now) {
            after.ready_at = Some(backoffs.ready_at(subject, process, now));
        }
    }
    let (gone, kept): (Vec<_>, Vec<_>) = changed.iter().partition(|(_, _, standing)| standing.says_nothing());
    let delete =
        [Column::texts(gone.iter().map(|(id, _, _)| *id)), Column::texts(gone.iter().map(|(_, name, _)| *name))];
    tx.execute_each(&DELETE, &delete, &[Param::Int(tenant.0)]).await?;
    let upsert = [
        Column::texts(kept.iter().map(|(id, _, _)| *id)),
        Column::texts(kept.iter().map(|(_, name, _)| *name)),
        Column::Time(kept.iter().map(|(_, _, standing)| standing.since).collect()),
        Column::Time(kept.iter().map(|(_, _, standing)| standing.pace_at).collect()),
        Column::Time(kept.iter().map(|(_, _, standing)| standing.ready_at).collect()),
        Column::Time(kept.iter().map(|(_, _, standing)| standing.check_at).collect()),
    ];
    tx.execute_each(&UPSERT, &upsert, &[Param::Int(tenant.0)]).await?;
    Ok(true)
}

impl Standing {
    fn read(row: &Row, first: usize) -> Result<Self, StoreError> {
        Ok(Self {
            since: row.opt_time(first)?,
            pace_at: row.opt_time(first + 1)?,
            ready_at: row.opt_time(first + 2)?,
            check_at: row.opt_time(first + 3)?,
            busy: row.opt_uuid(first + 4)?.is_some(),
        })
    }

    fn judged(&self, verdict: Verdict, now: Time) -> Self {
        let check_at = match (self.check_at, verdict.changes_at) {
            // Looking too early does no harm: a heartbeat need not move the moment every time.
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

    fn says_nothing(&self) -> bool {
        self.since.is_none() && self.check_at.is_none() && !self.busy
    }
}

/// What holds processes off some subjects, as far as it is not past.
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
    pub(crate) async fn load(tx: &mut Tx<'_>, tenant: TenantId, subjects: &BTreeSet<&str>) -> Result<Self, StoreError> {
        let columns = [Column::texts(subjects.iter().copied())];
        let params = [Param::Int(tenant.0), Param::Time(tx.now())];
        let mut found = BTreeMap::new();
        for row in tx.query_each(&BACKOFFS, &columns, &params).await? {
            found.insert((row.text(0)?, row.text(1)?), row.opt_time(2)?.unwrap_or(NEVER));
        }
        Ok(Self(found))
    }

    /// From when the process may work on the subject, but not before `earliest`.
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

/// A backoff of the subject came or went: from when its processes may work on it is another moment now.
pub(crate) async fn recompute_ready(tx: &mut Tx<'_>, tenant: TenantId, subject: &str) -> Result<(), StoreError> {
    let of = [Param::Int(tenant.0), Param::Text(subject)];
    let rows = tx.query(&OF_SUBJECT, &of).await?;
    let backoffs = Backoffs::load(tx, tenant, &BTreeSet::from([subject])).await?;
    let mut ready: Vec<(String, Time)> = Vec::new();
    for row in &rows {
        let process = row.text(0)?;
        let earliest = row.opt_time(2)?.unwrap_or(row.time(1)?);
        let at = backoffs.ready_at(subject, &process, earliest);
        ready.push((process, at));
    }
    let columns = [
        Column::texts(ready.iter().map(|(process, _)| process.as_str())),
        Column::Time(ready.iter().map(|(_, at)| Some(*at)).collect()),
    ];
    tx.execute_each(&SET_READY, &columns, &of).await.map(|_| ())
}

/// A job that has ended, for the standing that waited for it.
pub(crate) struct Over<'a> {
    pub(crate) subject: &'a str,
    pub(crate) process: &'a str,
    pub(crate) job: domain::JobId,
    /// Success and cancel leave the next look to the pace; after a failure the backoff decides.
    pub(crate) paced: bool,
}

const OVER: Sql = Sql::new(
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

/// The subject's place in its process is free again.
pub(crate) async fn free(tx: &mut Tx<'_>, tenant: TenantId, over: &[Over<'_>]) -> Result<bool, StoreError> {
    let columns = [
        Column::texts(over.iter().map(|over| over.subject)),
        Column::texts(over.iter().map(|over| over.process)),
        Column::jobs(over.iter().map(|over| over.job)),
    ];
    let rows = tx.query_each(&OVER, &columns, &[Param::Int(tenant.0)]).await?;
    if rows.is_empty() {
        return Ok(false);
    }
    let subjects: BTreeSet<&str> = over.iter().map(|over| over.subject).collect();
    let backoffs = Backoffs::load(tx, tenant, &subjects).await?;
    let now = tx.now();
    let mut gone: Vec<(String, String)> = Vec::new();
    let mut freed: Vec<(String, String, Option<Time>, Option<Time>)> = Vec::new();
    for row in &rows {
        let (subject, process) = (row.text(0)?, row.text(1)?);
        if row.opt_time(2)?.is_none() {
            if row.opt_time(4)?.is_none() {
                gone.push((subject, process));
            } else {
                freed.push((subject, process, None, None));
            }
            continue;
        }
        let paced = over.iter().any(|over| over.paced && over.subject == subject && over.process == process);
        let pace_at = match (paced, row.opt_time(3)?, row.opt_int(5)?) {
            (true, Some(made_at), Some(every_s)) => Some(made_at.plus_s(every_s).max(now)),
            _ => None,
        };
        let ready_at = backoffs.ready_at(&subject, &process, pace_at.unwrap_or(now));
        freed.push((subject, process, pace_at, Some(ready_at)));
    }
    let delete = [
        Column::texts(gone.iter().map(|(subject, _)| subject.as_str())),
        Column::texts(gone.iter().map(|(_, process)| process.as_str())),
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
