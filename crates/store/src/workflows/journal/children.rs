//! Children: jobs that a step of another job started. The end of a child is counted in the transaction that ends it; the
//! parent's entry is resolved by `resolve` when the last one has ended.

use domain::{JobId, JobState};

use crate::db::tx::{Column, Sql, Tx};
use crate::error::StoreError;

/// Prefix of `triggered_by` of a child.
pub(crate) const ORIGIN: &str = "child:";

// The statement runs with the commit, after every lock of a job's row: the entry of the parent is locked last. The order
// of the entries is fixed, so that two transactions do not deadlock.
const COUNT_ENDED: Sql = Sql::new(
    &[
        "update journal_entries set pending = pending - 1 where pending > 0 and (job, position) in (
             select job, position from journal_children where child = $1 and state is null)",
        "update journal_children set state = $2 where child = $1 and state is null",
    ],
    "with ended as (
         update journal_children c set state = n.state from unnest($1::uuid[], $2::text[]) as n(child, state)
         where c.child = n.child and c.state is null returning c.job, c.position),
     counted as materialized (select job, position, count(*) as children from ended group by job, position),
     locked as materialized (
         select e.job, e.position, c.children from counted c
         join journal_entries e on e.job = c.job and e.position = c.position
         order by e.job, e.position for update of e)
     update journal_entries e set pending = e.pending - l.children from locked l
     where e.job = l.job and e.position = l.position and e.pending > 0",
);

/// Counts the ends of these children.
pub(crate) async fn ended(tx: &mut Tx<'_>, children: &[(JobId, JobState)]) -> Result<(), StoreError> {
    let columns = [
        Column::jobs(children.iter().map(|(child, _)| *child)),
        Column::texts(children.iter().map(|(_, state)| state.as_str())),
    ];
    tx.defer(&COUNT_ENDED, &columns, &[]).await
}

const INSERT: Sql = Sql::new(
    &["insert or fail into journal_children (child, tenant, job, position, number) values ($1, $2, $3, $4, $5)"],
    "insert into journal_children (child, tenant, job, position, number)
     select n.* from unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::bigint[], $5::bigint[]) n",
);

/// A child that an entry started.
pub(crate) struct NewChild {
    pub(crate) child: JobId,
    pub(crate) tenant: i64,
    pub(crate) job: JobId,
    pub(crate) position: i64,
    pub(crate) number: i64,
}

pub(crate) async fn insert(tx: &mut Tx<'_>, children: &[NewChild]) -> Result<(), StoreError> {
    let columns = [
        Column::jobs(children.iter().map(|new| new.child)),
        Column::ints(children.iter().map(|new| new.tenant)),
        Column::jobs(children.iter().map(|new| new.job)),
        Column::ints(children.iter().map(|new| new.position)),
        Column::ints(children.iter().map(|new| new.number)),
    ];
    tx.defer(&INSERT, &columns, &[]).await
}
