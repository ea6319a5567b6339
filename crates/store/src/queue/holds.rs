//! Holds: one row per claim that occupies a subject, a slot of a concurrency key, or a slot of a limited queue.
//!
//! Acquiring and releasing a scope both lock it first. So a job that is parked for a scope is always visible to the
//! transaction that releases it.

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::SUBJECT_UNPARK_JOBS;
use domain::{Epoch, JobId, Label, Name, TenantId};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

/// The claim that holds a scope. The epoch is part of it: after the server revoked a claim, the job may be claimed
/// again while the first worker still runs, and both claims hold the scope.
pub(crate) type Holder = (JobId, Epoch);

/// A scope that a job must hold to run, and the maximum number of holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Want {
    pub(crate) scope: String,
    pub(crate) limit: u32,
}

pub(crate) fn queue_scope(queue: &Name) -> String {
    format!("{QUEUE}{queue}")
}

pub(crate) fn key_scope(queue: &Name, key: &str) -> String {
    format!("key {queue} {key}")
}

/// Prefixes of the scopes of queues and subjects.
const QUEUE: &str = "queue ";
pub(crate) const SUBJECT: &str = "subject ";

/// Returns the scope of a subject. A job without a process uses its kind.
pub(crate) fn subject_scope(subject: &str, process: Option<&str>, kind: &Name) -> String {
    format!("{SUBJECT}{} {subject}", process.unwrap_or(kind.as_str()))
}

/// Returns the scopes that a job must hold besides its queue's: its subject and its concurrency key.
pub(crate) fn wants(
    queue: &Name,
    kind: &Name,
    subject: Option<&Label>,
    process: Option<&str>,
    concurrency_key: Option<&Label>,
    per_key: u32,
) -> Vec<Want> {
    let subject = subject.map(|s| Want { scope: subject_scope(s.as_str(), process, kind), limit: 1 });
    let key = concurrency_key.map(|key| Want { scope: key_scope(queue, key.as_str()), limit: per_key });
    subject.into_iter().chain(key).collect()
}

const COUNT: Sql = Sql::new(
    &["select scope, count(*) as holders from holds where tenant = $2 and scope = $1 group by scope"],
    "select scope, count(*) as holders from holds where tenant = $2 and scope = any($1::text[]) group by scope",
);
const INSERT: Sql = Sql::new(
    &["insert into holds (tenant, scope, job, epoch) values ($4, $1, $2, $3) on conflict do nothing"],
    "insert into holds (tenant, scope, job, epoch)
     select $4, s, j, e from unnest($1::text[], $2::uuid[], $3::bigint[]) as n(s, j, e)
     on conflict do nothing",
);
const HELD: Sql = Sql::new(
    &["select tenant, scope from holds where job = $1 and epoch = $2"],
    "select distinct h.tenant, h.scope from unnest($1::uuid[], $2::bigint[]) as n(job, epoch)
         join holds h on h.job = n.job and h.epoch = n.epoch",
);
const DELETE: Sql = Sql::new(
    &["delete from holds where job = $1 and epoch = $2 returning tenant, scope"],
    "delete from holds h using unnest($1::uuid[], $2::bigint[]) as n(job, epoch)
     where h.job = n.job and h.epoch = n.epoch returning h.tenant, h.scope",
);
// Selects by priority among the 1000 oldest jobs parked for the scope.
const UNPARK: Sql = Sql::new(
    &["update jobs set parked = null where id in (
           select id from (select j.id, l.priority, j.run_at from jobs j join lanes l on l.lane = j.lane
               where j.tenant = $1 and j.parked = $2 order by j.run_at, j.id limit 1000)
           order by priority desc, run_at, id limit $3)
       returning lane"],
    "with chosen as materialized (
         select id from (select j.id, l.priority, j.run_at from jobs j join lanes l on l.lane = j.lane
             where j.tenant = $1 and j.parked = $2 order by j.run_at, j.id limit 1000) oldest
         order by priority desc, run_at, id limit $3)
     update jobs set parked = null from chosen where jobs.id = chosen.id returning jobs.lane",
);

/// Counts the holders of each scope. The scopes stay locked until the transaction ends.
pub(crate) async fn lock_and_count(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    scopes: &BTreeSet<&str>,
) -> Result<BTreeMap<String, u32>, StoreError> {
    lock(tx, scopes.iter().map(|scope| (tenant, *scope))).await?;
    count(tx, tenant, scopes).await
}

/// Counts the holders of each scope without locking. The result may be stale at once.
pub(crate) async fn count(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    scopes: &BTreeSet<&str>,
) -> Result<BTreeMap<String, u32>, StoreError> {
    let rows = tx.query_each(&COUNT, &[Column::texts(scopes.iter().copied())], &[Param::Int(tenant.0)]).await?;
    rows.iter().map(|row| Ok((row.text("scope")?, row.int("holders")? as u32))).collect()
}

async fn lock<'s>(tx: &mut Tx<'_>, scopes: impl Iterator<Item = (TenantId, &'s str)>) -> Result<(), StoreError> {
    let names: Vec<String> = scopes.map(|(tenant, scope)| format!("hold {} {scope}", tenant.0)).collect();
    tx.lock(&names.iter().map(String::as_str).collect::<Vec<_>>()).await
}

/// Inserts the holds. The caller has locked the scopes and checked the limits.
pub(crate) async fn acquire(tx: &mut Tx<'_>, tenant: TenantId, holds: &[(String, Holder)]) -> Result<(), StoreError> {
    let [jobs, epochs] = columns(holds.iter().map(|(_, holder)| *holder));
    let columns = [Column::texts(holds.iter().map(|(scope, _)| scope.as_str())), jobs, epochs];
    tx.execute_each(&INSERT, &columns, &[Param::Int(tenant.0)]).await.map(|_| ())
}

fn columns(holders: impl Iterator<Item = Holder> + Clone) -> [Column<'static>; 2] {
    [Column::jobs(holders.clone().map(|(job, _)| job)), Column::ints(holders.map(|(_, epoch)| epoch.0))]
}

/// Releases all holds of the claims and unparks jobs that wait for them. Returns the lanes that may have work now and
/// the queues whose limit has a free slot again.
pub(crate) async fn release(
    tx: &mut Tx<'_>,
    holders: &[Holder],
) -> Result<(Vec<i64>, Vec<(TenantId, Name)>), StoreError> {
    let mut lanes = Vec::new();
    let mut queues = Vec::new();
    if holders.is_empty() {
        return Ok((lanes, queues));
    }
    let claims = columns(holders.iter().copied());
    let mut held = BTreeSet::new();
    for row in tx.query_each(&HELD, &claims, &[]).await? {
        held.insert((row.int("tenant")?, row.text("scope")?));
    }
    // Lock queue scopes first, in the order of a claim; another order would deadlock with it.
    let (queue_scopes, other_scopes): (Vec<_>, Vec<_>) = held.iter().partition(|(_, scope)| scope.starts_with(QUEUE));
    for scopes in [queue_scopes, other_scopes] {
        lock(tx, scopes.iter().map(|(tenant, scope)| (TenantId(*tenant), scope.as_str()))).await?;
    }
    let mut freed: BTreeMap<(i64, String), i64> = BTreeMap::new();
    for row in tx.query_each(&DELETE, &claims, &[]).await? {
        *freed.entry((row.int("tenant")?, row.text("scope")?)).or_default() += 1;
    }
    for ((tenant, scope), count) in freed {
        if let Some(queue) = scope.strip_prefix(QUEUE) {
            queues.push((TenantId(tenant), Name::stored(queue)));
            continue;
        }
        // Jobs of several processes may be parked for one subject without excluding each other, so all of them are
        // unparked.
        let count = if scope.starts_with(SUBJECT) { SUBJECT_UNPARK_JOBS } else { count };
        lanes.extend(unpark(tx, TenantId(tenant), &scope, count).await?);
    }
    Ok((lanes, queues))
}

/// Unparks up to `count` jobs that are parked for a scope. Returns their lanes.
pub(crate) async fn unpark(tx: &mut Tx<'_>, tenant: TenantId, scope: &str, count: i64) -> Result<Vec<i64>, StoreError> {
    let rows = tx.query(&UNPARK, &[Param::Int(tenant.0), Param::Text(scope), Param::Int(count)]).await?;
    rows.iter().map(|row| row.int("lane")).collect()
}
