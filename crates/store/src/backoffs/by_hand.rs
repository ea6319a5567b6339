//! A person locks a process, or all of them, out of a subject, and lets it in again (W5).

use domain::{Backoff, Label, TenantId, Time};

use crate::backoffs::{self, StoredBackoff};
use crate::codec::to_json;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::lanes::LaneCache;
use crate::store::Store;
use crate::subjects::{self, standings};
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Tx};

#[derive(Clone, Debug)]
pub struct Lockout {
    pub subject: Label,
    /// The process, or `*`.
    pub process: String,
    pub until: Until,
    pub cause: String,
    pub actor: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Forever,
    Time(Time),
    /// By the database's clock.
    Seconds(i64),
}

impl Store {
    /// Locks out, in place of what held the process off before.
    pub async fn lock_out(&self, tenant: TenantId, lockout: Lockout) -> Result<StoredBackoff, StoreError> {
        self.write(LockOut { tenant, lockout }).await
    }

    /// Removes a backoff, whoever wrote it. Gives whether there was one that still held.
    pub async fn let_in(
        &self,
        tenant: TenantId,
        subject: Label,
        process: String,
        actor: String,
    ) -> Result<bool, StoreError> {
        let (found, effects) =
            self.write(LetIn { tenant, subject, process, actor, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(found)
    }
}

struct LockOut {
    tenant: TenantId,
    lockout: Lockout,
}

impl Operation for LockOut {
    type Output = StoredBackoff;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<StoredBackoff, StoreError> {
        let Lockout { subject, process, until, cause, actor } = &self.lockout;
        let (subject, now) = (subject.as_str(), tx.now());
        // First the subject, then its backoffs, then its standings: the order in which everyone locks.
        if subjects::lock(tx, self.tenant, &[subject]).await?.is_empty() {
            subjects::make(tx, self.tenant, &[subject]).await?;
        }
        let before = backoffs::find(tx, self.tenant, subject, process).await?;
        let until = match until {
            Until::Forever => None,
            Until::Time(at) => Some(*at),
            Until::Seconds(seconds) => Some(now.plus_s(*seconds)),
        };
        let wait_s = before.and_then(|before| before.backoff.wait_s);
        let backoff = Backoff { until, cause: cause.clone(), by: actor.clone(), wait_s, at: now };
        let stored = StoredBackoff { process: process.clone(), backoff, job: None };
        backoffs::write(tx, self.tenant, subject, &stored).await?;
        standings::recompute_ready(tx, self.tenant, subject).await?;
        let entry = Entry {
            process: Some(process),
            actor: Some(actor),
            cause: Some(cause),
            detail: Some(until_detail(until)),
            ..Entry::of_subject(self.tenant, subject, "locked_out")
        };
        timeline::write(tx, &[entry]).await?;
        Ok(stored)
    }
}

/// `{"until_us": …}`, in microseconds as everywhere in the database; null without end.
pub(crate) fn until_detail(until: Option<Time>) -> String {
    to_json(&std::collections::BTreeMap::from([("until_us", until.map(Time::micros))]))
}

struct LetIn {
    tenant: TenantId,
    subject: Label,
    process: String,
    actor: String,
    lanes: LaneCache,
}

impl Operation for LetIn {
    type Output = (bool, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut effects = Effects { scan: true, ..Effects::default() };
        let (subject, process) = (self.subject.as_str(), self.process.as_str());
        subjects::lock(tx, self.tenant, &[subject]).await?;
        let Some(before) = backoffs::find(tx, self.tenant, subject, process).await? else {
            return Ok((false, effects));
        };
        backoffs::remove(tx, &self.lanes, &[(self.tenant, subject, process)], &mut effects).await?;
        standings::recompute_ready(tx, self.tenant, subject).await?;
        let entry = Entry {
            process: Some(process),
            actor: Some(&self.actor),
            cause: Some(&before.backoff.cause),
            ..Entry::of_subject(self.tenant, subject, "let_in")
        };
        timeline::write(tx, &[entry]).await?;
        Ok((before.backoff.holds(tx.now()), effects))
    }
}
