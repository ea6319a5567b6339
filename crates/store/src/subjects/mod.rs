//! Subjects: long-lived things that work is done on, with facts that carry their time (W1 to W8).
//!
//! `standings` judges subjects against processes, `work` follows jobs on subjects, the others are operations.

pub mod credential;
pub mod delete;
pub mod facts;
pub mod get;
pub(crate) mod guard;
pub mod list;
pub mod put;
pub(crate) mod standings;
pub(crate) mod steps;
pub(crate) mod work;

use domain::{TenantId, Time};

use crate::error::StoreError;
use crate::tx::{Column, Param, Row, Sql, Tx};
use facts::FactDocument;

/// A subject's row, locked while it is changed.
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
            id: row.text(0)?,
            kind: row.opt_text(1)?,
            facts: FactDocument::read(&row.text(2)?)?,
            created_at: row.time(3)?,
            updated_at: row.time(4)?,
        })
    }
}

const LOCK: Sql = Sql::new(
    &["select id, kind, facts, created_at, updated_at from subjects where tenant = $2 and id = $1"],
    "select id, kind, facts, created_at, updated_at from subjects where tenant = $2 and id = any($1::text[])
     order by id for update",
);
const MAKE: Sql = Sql::new(
    &["insert into subjects (tenant, id, facts, created_at, updated_at) values ($2, $1, '{}', $3, $3)
       on conflict do nothing"],
    "insert into subjects (tenant, id, facts, created_at, updated_at)
     select $2, id, '{}', $3, $3 from (select id from unnest($1::text[]) as n(id) order by 1) sorted
     on conflict do nothing",
);

/// The rows of these subjects, locked, for those that exist.
pub(crate) async fn lock(tx: &mut Tx<'_>, tenant: TenantId, ids: &[&str]) -> Result<Vec<SubjectRow>, StoreError> {
    let columns = [Column::texts(ids.iter().copied())];
    let rows = tx.query_each(&LOCK, &columns, &[Param::Int(tenant.0)]).await?;
    rows.iter().map(SubjectRow::read).collect()
}

/// Whatever is told of a subject makes it exist.
pub(crate) async fn make(tx: &mut Tx<'_>, tenant: TenantId, ids: &[&str]) -> Result<u64, StoreError> {
    let columns = [Column::texts(ids.iter().copied())];
    let now = Param::Time(tx.now());
    tx.execute_each(&MAKE, &columns, &[Param::Int(tenant.0), now]).await
}

const WRITE: Sql = Sql::new(
    &["update subjects set kind = $2, facts = $3, updated_at = $5 where tenant = $4 and id = $1"],
    "update subjects s set kind = n.kind, facts = n.facts, updated_at = $5
     from unnest($1::text[], $2::text[], $3::json[]) as n(id, kind, facts)
     where s.tenant = $4 and s.id = n.id",
);

/// Writes back rows that were locked.
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
