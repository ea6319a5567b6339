//! The timeline: an append-only log of what was done to subjects, runtimes and settings.
//!
//! The transaction that makes a change appends its rows. They remain after the subject or runtime is deleted.

pub mod list;
pub mod prune;

use domain::{JobId, TenantId, WorkerId};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

/// A row to append.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry<'a> {
    pub(crate) tenant: i64,
    pub(crate) event: &'a str,
    pub(crate) subject: Option<&'a str>,
    pub(crate) runtime: Option<&'a str>,
    pub(crate) process: Option<&'a str>,
    pub(crate) job: Option<JobId>,
    pub(crate) attempt: Option<i32>,
    pub(crate) worker: Option<WorkerId>,
    pub(crate) actor: Option<&'a str>,
    pub(crate) cause: Option<&'a str>,
    /// JSON.
    pub(crate) detail: Option<String>,
}

impl<'a> Entry<'a> {
    /// An administrative action by `actor` on a token, queue, trigger and so on. `detail` is JSON and names the object.
    pub(crate) fn by(tenant: TenantId, actor: &'a str, event: &'a str, detail: String) -> Self {
        Self { tenant: tenant.0, event, actor: Some(actor), detail: Some(detail), ..Self::default() }
    }

    pub(crate) fn of_subject(tenant: TenantId, subject: &'a str, event: &'a str) -> Self {
        Self { tenant: tenant.0, event, subject: Some(subject), ..Self::default() }
    }
}

const INSERT: Sql = Sql::new(
    &["insert into timeline (tenant, event, subject, runtime, process, job, attempt, worker, actor, cause, detail, at)
       values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)"],
    "insert into timeline (tenant, event, subject, runtime, process, job, attempt, worker, actor, cause, detail, at)
     select t, e, s, r, p, j, a, w, who, c, d, $12
     from unnest($1::bigint[], $2::text[], $3::text[], $4::text[], $5::text[], $6::uuid[], $7::bigint[], $8::uuid[],
         $9::text[], $10::text[], $11::json[]) with ordinality as n(t, e, s, r, p, j, a, w, who, c, d, place)
     order by place",
);

/// Appends entries in their order, all with the transaction's time.
pub(crate) async fn write(tx: &mut Tx<'_>, entries: &[Entry<'_>]) -> Result<(), StoreError> {
    let rows = || entries.iter();
    let columns = [
        Column::ints(rows().map(|entry| entry.tenant)),
        Column::texts(rows().map(|entry| entry.event)),
        Column::Text(rows().map(|entry| entry.subject).collect()),
        Column::Text(rows().map(|entry| entry.runtime).collect()),
        Column::Text(rows().map(|entry| entry.process).collect()),
        Column::Uuid(rows().map(|entry| entry.job.map(JobId::uuid)).collect()),
        Column::Int(rows().map(|entry| entry.attempt.map(i64::from)).collect()),
        Column::Uuid(rows().map(|entry| entry.worker.map(WorkerId::uuid)).collect()),
        Column::Text(rows().map(|entry| entry.actor).collect()),
        Column::Text(rows().map(|entry| entry.cause).collect()),
        Column::Json(rows().map(|entry| entry.detail.as_deref()).collect()),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&INSERT, &columns, &[now]).await.map(|_| ())
}
