//! Holds: who has a subject, a concurrency key, or a place in a queue with a limit (Q12, W2).
//!
//! Taking and giving back a scope both lock it first, so that a job parked for want of a hold is always seen by whoever
//! gives that hold back.

use std::collections::{BTreeMap, BTreeSet};

use domain::limits::SUBJECT_UNPARKED;
use domain::{Epoch, JobId, Label, Name, TenantId};

use crate::error::StoreError;
use crate::tx::{Column, Param, Sql, Tx};

/// A claim. Not the job alone: while a worker has not let go of a claim that the server ended, the job may be claimed
/// again, and then both hold.
pub(crate) type Holder = (JobId, Epoch);

/// What a job must hold to run, and how many may hold it at once.
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

/// What the scopes of queues and of subjects begin with.
const QUEUE: &str = "queue ";
pub(crate) const SUBJECT: &str = "subject ";

/// A job with a subject and no process holds its kind.
pub(crate) fn subject_scope(subject: &str, process: Option<&str>, kind: &Name) -> String {
    format!("{SUBJECT}{} {subject}", process.unwrap_or(kind.as_str()))
}

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
    &["select scope, count(*) from holds where tenant = $2 and scope = $1 group by scope"],
    "select scope, count(*) from holds where tenant = $2 and scope = any($1::text[]) group by scope",
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
// Among the oldest thousand that wait for the scope, the most urgent.
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

/// How many hold each scope now. The scopes stay locked until the transaction ends.
pub(crate) async fn lock_and_count(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    scopes: &BTreeSet<&str>,
) -> Result<BTreeMap<String, u32>, StoreError> {
    lock(tx, scopes.iter().map(|scope| (tenant, *scope))).await?;
    count(tx, tenant, scopes).await
}

/// The same at a glance: the next moment it may be otherwise.
pub(crate) async fn count(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    scopes: &BTreeSet<&str>,
) -> Result<BTreeMap<String, u32>, StoreError> {
    let rows = tx.query_each(&COUNT, &[Column::texts(scopes.iter().copied())], &[Param::Int(tenant.0)]).await?;
    rows.iter().map(|row| Ok((row.text(0)?, row.int(1)? as u32))).collect()
}

async fn lock<'s>(tx: &mut Tx<'_>, scopes: impl Iterator<Item = (TenantId, &'s str)>) -> Result<(), StoreError> {
    let names: Vec<String> = scopes.map(|(tenant, scope)| format!("hold {} {scope}", tenant.0)).collect();
    tx.lock(&names.iter().map(String::as_str).collect::<Vec<_>>()).await
}

pub(crate) async fn take(tx: &mut Tx<'_>, tenant: TenantId, holds: &[(String, Holder)]) -> Result<(), StoreError> {
    let [jobs, epochs] = columns(holds.iter().map(|(_, holder)| *holder));
    let columns = [Column::texts(holds.iter().map(|(scope, _)| scope.as_str())), jobs, epochs];
    tx.execute_each(&INSERT, &columns, &[Param::Int(tenant.0)]).await.map(|_| ())
}

fn columns(holders: impl Iterator<Item = Holder> + Clone) -> [Column<'static>; 2] {
    [Column::jobs(holders.clone().map(|(job, _)| job)), Column::ints(holders.map(|(_, epoch)| epoch.0))]
}

/// Gives back what the claims hold and lets those run that waited for it. Gives the lanes that may have work now and the
/// queues whose limit has room again.
pub(crate) async fn give_back(
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
        held.insert((row.int(0)?, row.text(1)?));
    }
    // Queues first, as a claim does: in another order the two would wait for each other.
    let (of_queues, others): (Vec<_>, Vec<_>) = held.iter().partition(|(_, scope)| scope.starts_with(QUEUE));
    for scopes in [of_queues, others] {
        lock(tx, scopes.iter().map(|(tenant, scope)| (TenantId(*tenant), scope.as_str()))).await?;
    }
    let mut freed: BTreeMap<(i64, String), i64> = BTreeMap::new();
    for row in tx.query_each(&DELETE, &claims, &[]).await? {
        *freed.entry((row.int(0)?, row.text(1)?)).or_default() += 1;
    }
    for ((tenant, scope), count) in freed {
        if let Some(queue) = scope.strip_prefix(QUEUE) {
            queues.push((TenantId(tenant), Name::stored(queue)));
            continue;
        }
        // Several processes may wait for one subject and not exclude each other: all of them look again.
        let count = if scope.starts_with(SUBJECT) { SUBJECT_UNPARKED } else { count };
        lanes.extend(unpark(tx, TenantId(tenant), &scope, count).await?);
    }
    Ok((lanes, queues))
}

/// Lets so many look again that wait for a scope. Gives their lanes.
pub(crate) async fn unpark(tx: &mut Tx<'_>, tenant: TenantId, scope: &str, count: i64) -> Result<Vec<i64>, StoreError> {
    let rows = tx.query(&UNPARK, &[Param::Int(tenant.0), Param::Text(scope), Param::Int(count)]).await?;
    rows.iter().map(|row| row.int(0)).collect()
}
