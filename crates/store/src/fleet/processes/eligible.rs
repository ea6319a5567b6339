//! Lists the subjects for which a process may get a job now, in the order in which the scan takes them.

use domain::{Name, TenantId, Time};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EligibleSubject {
    pub subject: String,
    /// Since when a job may be made for it. The list is ordered by this time.
    pub ready_at: Time,
    /// Since when its facts match the selector.
    pub since: Time,
}

impl Store {
    /// Returns up to `limit` eligible subjects after the cursor `after`.
    pub async fn eligible_subjects(
        &self,
        tenant: TenantId,
        process: Name,
        after: Option<(Time, String)>,
        limit: usize,
    ) -> Result<Vec<EligibleSubject>, StoreError> {
        self.read(ListEligible { tenant, process, after: after.unwrap_or_default(), limit }).await
    }
}

struct ListEligible {
    tenant: TenantId,
    process: Name,
    after: (Time, String),
    limit: usize,
}

// The condition must stay identical to that of `CANDIDATES` in `scan.rs`.
const ELIGIBLE: Sql = Sql::both(&["select s.subject, s.ready_at, s.since from processes p
         join standings s on s.tenant = p.tenant and s.process = p.name and s.job is null and s.ready_at <= $3
             and (s.check_at is null or s.check_at > $3) and (p.swept_to is null or s.subject <= p.swept_to)
     where p.tenant = $1 and p.name = $2 and p.dropped_at is null
         and s.ready_at >= $5 and (s.ready_at > $5 or s.subject > $6)
     order by s.ready_at, s.subject limit $4"]);

impl Operation for ListEligible {
    type Output = Vec<EligibleSubject>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EligibleSubject>, StoreError> {
        let params = [
            Param::Int(self.tenant.0),
            Param::Text(self.process.as_str()),
            Param::Time(tx.now()),
            Param::Int(self.limit as i64),
            Param::Time(self.after.0),
            Param::Text(&self.after.1),
        ];
        let rows = tx.query(&ELIGIBLE, &params).await?;
        rows.iter()
            .map(|row| {
                Ok(EligibleSubject {
                    subject: row.text("subject")?,
                    ready_at: row.time("ready_at")?,
                    since: row.time("since")?,
                })
            })
            .collect()
    }
}
