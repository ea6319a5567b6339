//! Manual backoffs: an operator locks one process, or all of them, out of a subject, and removes the lockout again.
//! Called by the API.

use domain::{Backoff, Label, TenantId, Time};

use crate::db::codec::to_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::fleet::backoffs;
use crate::fleet::backoffs::StoredBackoff;
use crate::fleet::subjects;
use crate::fleet::subjects::eligibility;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::queue::lanes::LaneCache;
use crate::store::Store;

/// A manual backoff to write.
#[derive(Clone, Debug)]
pub struct Lockout {
    pub subject: Label,
    /// The process, or `*` for every process.
    pub process: String,
    pub until: Until,
    pub cause: String,
    pub actor: String,
}

/// When a lockout ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Until {
    Forever,
    Time(Time),
    /// This long from now, by the database clock.
    Seconds(i64),
}

impl Store {
    /// Writes a manual backoff. It replaces any backoff of the same subject and process.
    pub async fn lock_out(&self, tenant: TenantId, lockout: Lockout) -> Result<StoredBackoff, StoreError> {
        self.write(PutLockout { tenant, lockout }).await
    }

    /// Removes a backoff, manual or not. Returns true if the backoff was still in force.
    pub async fn let_in(
        &self,
        tenant: TenantId,
        subject: Label,
        process: String,
        actor: String,
    ) -> Result<bool, StoreError> {
        let (found, effects) =
            self.write(RemoveLockout { tenant, subject, process, actor, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(found)
    }
}

struct PutLockout {
    tenant: TenantId,
    lockout: Lockout,
}

impl Operation for PutLockout {
    type Output = StoredBackoff;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<StoredBackoff, StoreError> {
        let Lockout { subject, process, until, cause, actor } = &self.lockout;
        let (subject, now) = (subject.as_str(), tx.now());
        // Lock order everywhere: the subject, then its backoffs, then its rows in `standings`.
        if subjects::lock(tx, self.tenant, &[subject]).await?.is_empty() {
            subjects::insert_missing(tx, self.tenant, &[subject]).await?;
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
        eligibility::recompute_ready(tx, self.tenant, subject).await?;
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

/// Returns the timeline detail `{"until_us": …}`: microseconds since 1970, or null for a backoff without an end.
pub(crate) fn until_detail(until: Option<Time>) -> String {
    to_json(&std::collections::BTreeMap::from([("until_us", until.map(Time::micros))]))
}

struct RemoveLockout {
    tenant: TenantId,
    subject: Label,
    process: String,
    actor: String,
    lanes: LaneCache,
}

impl Operation for RemoveLockout {
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
        eligibility::recompute_ready(tx, self.tenant, subject).await?;
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
