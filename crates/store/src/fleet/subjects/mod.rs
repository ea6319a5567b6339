//! Subjects: long-lived things that jobs work on, for example machines, with timestamped facts.
//!
//! `eligibility` evaluates subjects against the selectors of processes, `guard` checks jobs at the claim, `work`
//! applies the outcome of jobs to their subjects. The other modules are operations.

pub mod credential;
pub mod delete;
pub(crate) mod eligibility;
pub mod facts;
pub mod get;
pub(crate) mod guard;
pub mod list;
pub mod put;
pub(crate) mod work;

use domain::{TenantId, Time};

use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;
use facts::FactDocument;

/// A row of `subjects`.
#[derive(Clone, Debug)]
pub(crate) struct SubjectRow {
    pub(crate) id: String,
    pub(crate) kind: Option<String>,
    pub(crate) facts: FactDocument,
    pub(crate) created_at: Time,
    pub(crate) updated_at: Time,
}

impl SubjectRow {
    pub(crate) fn read(row: &Row) -> Result<Self, StoreError> {
        Ok(Self {
            id: row.text("id")?,
            kind: row.opt_text("kind")?,
            facts: FactDocument::read(&row.text("facts")?)?,
            created_at: row.time("created_at")?,
            updated_at: row.time("updated_at")?,
        })
    }
}

const LOCK: Sql = Sql::new(
    &["select id, kind, facts, created_at, updated_at from subjects where tenant = $2 and id = $1"],
    "select id, kind, facts, created_at, updated_at from subjects where tenant = $2 and id = any($1::text[])
     order by id for update",
);
const INSERT_MISSING: Sql = Sql::new(
    &["insert into subjects (tenant, id, facts, created_at, updated_at) values ($2, $1, '{}', $3, $3)
       on conflict do nothing"],
    "insert into subjects (tenant, id, facts, created_at, updated_at)
     select $2, id, '{}', $3, $3 from (select id from unnest($1::text[]) as n(id) order by 1) sorted
     on conflict do nothing",
);

/// Locks and returns the rows of those of these subjects that exist.
pub(crate) async fn lock(tx: &mut Tx<'_>, tenant: TenantId, ids: &[&str]) -> Result<Vec<SubjectRow>, StoreError> {
    let columns = [Column::texts(ids.iter().copied())];
    let rows = tx.query_each(&LOCK, &columns, &[Param::Int(tenant.0)]).await?;
    rows.iter().map(SubjectRow::read).collect()
}

/// Inserts those of these subjects that do not exist. A subject exists from its first report, job or runtime on.
/// Returns the number of rows inserted.
pub(crate) async fn insert_missing(tx: &mut Tx<'_>, tenant: TenantId, ids: &[&str]) -> Result<u64, StoreError> {
    let columns = [Column::texts(ids.iter().copied())];
    let now = Param::Time(tx.now());
    tx.execute_each(&INSERT_MISSING, &columns, &[Param::Int(tenant.0), now]).await
}

const WRITE: Sql = Sql::new(
    &["update subjects set kind = $2, facts = $3, updated_at = $5 where tenant = $4 and id = $1"],
    "update subjects s set kind = n.kind, facts = n.facts, updated_at = $5
     from unnest($1::text[], $2::text[], $3::json[]) as n(id, kind, facts)
     where s.tenant = $4 and s.id = n.id",
);

/// Writes back rows that this transaction has locked.
pub(crate) async fn write(tx: &mut Tx<'_>, tenant: TenantId, rows: &[SubjectRow]) -> Result<(), StoreError> {
    let facts: Vec<String> = rows.iter().map(|row| row.facts.text()).collect();
    let columns = [
        Column::texts(rows.iter().map(|row| row.id.as_str())),
        Column::Text(rows.iter().map(|row| row.kind.as_deref()).collect()),
        Column::Json(facts.iter().map(|facts| Some(facts.as_str())).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&WRITE, &columns, &[Param::Int(tenant.0), now]).await.map(|_| ())
}
