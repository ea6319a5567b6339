//! What stands in the way of jobs on subjects, for the claim: backoffs, and processes that exclude each other (W2, W5).

use std::collections::{BTreeMap, BTreeSet};

use domain::backoff::EVERY_PROCESS;
use domain::{Name, TenantId};

use crate::backoffs;
use crate::error::StoreError;
use crate::jobs::holds::subject_scope;
use crate::processes;
use crate::tx::{Column, Param, Sql, Tx};

/// The subject a job is for, and the process that stands for it: its kind, when it has none.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct OnSubject {
    pub(crate) subject: String,
    pub(crate) process: String,
}

/// For each process, the scopes of a subject that must be free before it may begin.
pub(crate) struct Exclusions(BTreeMap<String, BTreeSet<String>>);

impl Exclusions {
    /// Nobody excludes anybody where no job has a subject.
    pub(crate) async fn load<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        mut jobs: impl Iterator<Item = &'a OnSubject>,
    ) -> Result<Self, StoreError> {
        match jobs.next() {
            Some(_) => processes::exclusions(tx, tenant).await.map(Self),
            None => Ok(Self(BTreeMap::new())),
        }
    }

    pub(crate) fn scopes(&self, on: Option<&OnSubject>) -> Vec<String> {
        let Some(on) = on else { return Vec::new() };
        let others = self.0.get(&on.process).into_iter().flatten().filter(|other| **other != on.process);
        others.map(|other| subject_scope(&on.subject, Some(other), &Name::stored(other))).collect()
    }
}

const HELD_OFF: Sql = Sql::new(
    &["select subject, process from backoffs
       where tenant = $3 and subject = $1 and process in ($2, '*') and (until is null or until > $4)"],
    "select distinct b.subject, b.process from unnest($1::text[], $2::text[]) as n(subject, process)
         join backoffs b on b.tenant = $3 and b.subject = n.subject and b.process in (n.process, '*')
     where b.until is null or b.until > $4",
);
// Whoever removes the backoff waits for this, or has removed it before: then no row comes back and the job is not parked.
const MARK_WAITING: Sql = Sql::new(
    &["update backoffs set waiting = 1 where tenant = $3 and subject = $1 and process = $2
           and (until is null or until > $4)
       returning subject, process"],
    "update backoffs b set waiting = true from unnest($1::text[], $2::text[]) as n(subject, process)
     where b.tenant = $3 and b.subject = n.subject and b.process = n.process and (b.until is null or b.until > $4)
     returning b.subject, b.process",
);

/// The backoffs that hold jobs off now.
#[derive(Debug, Default)]
pub(crate) struct HeldOff(BTreeSet<OnSubject>);

impl HeldOff {
    /// To be asked after the holds were locked: a failure writes its backoff before it gives its holds back.
    pub(crate) async fn load<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        jobs: impl Iterator<Item = &'a OnSubject>,
    ) -> Result<Self, StoreError> {
        let Self(found) = Self::look(tx, tenant, jobs).await?;
        if found.is_empty() {
            return Ok(Self::default());
        }
        Ok(Self(ask(tx, &MARK_WAITING, tenant, &found.iter().collect()).await?))
    }

    /// The same for who parks nothing.
    pub(crate) async fn look<'a>(
        tx: &mut Tx<'_>,
        tenant: TenantId,
        jobs: impl Iterator<Item = &'a OnSubject>,
    ) -> Result<Self, StoreError> {
        let jobs: BTreeSet<&OnSubject> = jobs.collect();
        ask(tx, &HELD_OFF, tenant, &jobs).await.map(Self)
    }

    /// What the job must be parked for.
    pub(crate) fn scope(&self, on: Option<&OnSubject>) -> Option<String> {
        let OnSubject { subject, process } = on?;
        let held = |process: &str| self.0.contains(&OnSubject { subject: subject.clone(), process: process.into() });
        let by = [process.as_str(), EVERY_PROCESS].into_iter().find(|process| held(process))?;
        Some(backoffs::scope(by, subject))
    }
}

async fn ask(
    tx: &mut Tx<'_>,
    sql: &Sql,
    tenant: TenantId,
    jobs: &BTreeSet<&OnSubject>,
) -> Result<BTreeSet<OnSubject>, StoreError> {
    let columns = [
        Column::texts(jobs.iter().map(|on| on.subject.as_str())),
        Column::texts(jobs.iter().map(|on| on.process.as_str())),
    ];
    let now = Param::Time(tx.now());
    let rows = tx.query_each(sql, &columns, &[Param::Int(tenant.0), now]).await?;
    rows.iter().map(|row| Ok(OnSubject { subject: row.text(0)?, process: row.text(1)? })).collect()
}
