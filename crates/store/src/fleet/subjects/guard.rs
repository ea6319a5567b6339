//! Checks at claim time whether jobs on subjects may start: unexpired backoffs, and processes that exclude each other.

use std::collections::{BTreeMap, BTreeSet};

use domain::fleet::backoff::EVERY_PROCESS;
use domain::{Name, TenantId};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::processes;
use crate::queue::holds::subject_scope;

/// The subject of a job and its process, or its kind if it has no process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SubjectProcess {
    pub(crate) subject: String,
    pub(crate) process: String,
}

/// For each process, the processes that must not work on the subject at the same time.
pub(crate) struct Exclusions(BTreeMap<String, BTreeSet<String>>);

impl Exclusions {
    /// Loads the exclusions of a tenant. Runs no query if there are no jobs on subjects.
    pub(crate) async fn load<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        mut jobs: impl Iterator<Item = &'a SubjectProcess>,
    ) -> Result<Self, StoreError> {
        match jobs.next() {
            Some(_) => processes::exclusions(tx, tenant).await.map(Self),
            None => Ok(Self(BTreeMap::new())),
        }
    }

    /// Returns the hold scopes that must be free before the job may start.
    pub(crate) fn scopes(&self, job: Option<&SubjectProcess>) -> Vec<String> {
        let Some(job) = job else { return Vec::new() };
        let others = self.0.get(&job.process).into_iter().flatten().filter(|other| **other != job.process);
        others.map(|other| subject_scope(&job.subject, Some(other), &Name::stored(other))).collect()
    }
}

const BLOCKING: Sql = Sql::new(
    &["select subject, process from backoffs
       where tenant = $3 and subject = $1 and process in ($2, '*') and (until is null or until > $4)"],
    "select distinct b.subject, b.process from unnest($1::text[], $2::text[]) as n(subject, process)
         join backoffs b on b.tenant = $3 and b.subject = n.subject and b.process in (n.process, '*')
     where b.until is null or b.until > $4",
);
// The update locks the backoff's row. A concurrent removal waits for it and then unparks the job; if the removal came
// first, no row is returned and the job is not parked.
const MARK_WAITING: Sql = Sql::new(
    &["update backoffs set waiting = 1 where tenant = $3 and subject = $1 and process = $2
           and (until is null or until > $4)
       returning subject, process"],
    "update backoffs b set waiting = true from unnest($1::text[], $2::text[]) as n(subject, process)
     where b.tenant = $3 and b.subject = n.subject and b.process = n.process and (b.until is null or b.until > $4)
     returning b.subject, b.process",
);

/// The unexpired backoffs of some jobs' subjects.
#[derive(Debug, Default)]
pub(crate) struct ActiveBackoffs(BTreeSet<SubjectProcess>);

impl ActiveBackoffs {
    /// Returns the backoffs that block these jobs and marks them as waited for. Must be called after the holds were
    /// locked, because a failure writes its backoff before it releases its holds.
    pub(crate) async fn load<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        jobs: impl Iterator<Item = &'a SubjectProcess>,
    ) -> Result<Self, StoreError> {
        let Self(found) = Self::find(tx, tenant, jobs).await?;
        if found.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self(query_backoffs(tx, &MARK_WAITING, tenant, &found.iter().collect()).await?))
    }

    /// Returns the backoffs that block these jobs without marking them, for callers that park no job.
    pub(crate) async fn find<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        jobs: impl Iterator<Item = &'a SubjectProcess>,
    ) -> Result<Self, StoreError> {
        let jobs: BTreeSet<&SubjectProcess> = jobs.collect();
        query_backoffs(tx, &BLOCKING, tenant, &jobs).await.map(Self)
    }

    /// Returns the scope for which the job must be parked; `None` if no backoff blocks it.
    pub(crate) fn scope(&self, job: Option<&SubjectProcess>) -> Option<String> {
        let SubjectProcess { subject, process } = job?;
        let blocks =
            |process: &str| self.0.contains(&SubjectProcess { subject: subject.clone(), process: process.into() });
        let by = [process.as_str(), EVERY_PROCESS].into_iter().find(|process| blocks(process))?;
        Some(backoffs::scope(by, subject))
    }
}

async fn query_backoffs(
    tx: &mut Tx<'_>,
    sql: &Sql,
    tenant: TenantId,
    jobs: &BTreeSet<&SubjectProcess>,
) -> Result<BTreeSet<SubjectProcess>, StoreError> {
    let columns = [
        Column::texts(jobs.iter().map(|job| job.subject.as_str())),
        Column::texts(jobs.iter().map(|job| job.process.as_str())),
    ];
    let now = Param::Time(tx.now());
    let rows = tx.query_each(sql, &columns, &[Param::Int(tenant.0), now]).await?;
    rows.iter().map(|row| Ok(SubjectProcess { subject: row.text("subject")?, process: row.text("process")? })).collect()
}
