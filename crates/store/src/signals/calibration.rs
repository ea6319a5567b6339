//! How long each kind of work takes, and how often what was said of it held (S9).

use domain::TenantId;
use domain::eta::Calibration;

use super::figures::decode;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

#[derive(Clone, Debug)]
pub struct Calibrated {
    pub kind: String,
    pub affinity: String,
    pub run_p50_s: Option<f64>,
    pub run_p95_s: Option<f64>,
    pub calibration: Calibration,
}

impl Store {
    /// The kinds of work that ended last, at most `limit`.
    pub async fn calibrations(&self, tenant: TenantId, limit: usize) -> Result<Vec<Calibrated>, StoreError> {
        self.read(Read { tenant, limit }).await
    }
}

struct Read {
    tenant: TenantId,
    limit: usize,
}

const READ: Sql = Sql::both(&["select kind, affinity, run, answers, within_p50, within_p90 from figures
     where tenant = $1 order by updated_at desc, kind, affinity limit $2"]);

impl Operation for Read {
    type Output = Vec<Calibrated>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Calibrated>, StoreError> {
        let rows = tx.query(&READ, &[Param::Int(self.tenant.0), Param::Int(self.limit as i64)]).await?;
        rows.iter()
            .map(|row| {
                let run = decode(row.opt_text(2)?.as_deref())?;
                Ok(Calibrated {
                    kind: row.text(0)?,
                    affinity: row.text(1)?,
                    run_p50_s: run.quantile(0.5),
                    run_p95_s: run.quantile(0.95),
                    calibration: Calibration {
                        answers: row.opt_real(3)?.unwrap_or(0.0),
                        within_p50: row.opt_real(4)?.unwrap_or(0.0),
                        within_p90: row.opt_real(5)?.unwrap_or(0.0),
                    },
                })
            })
            .collect()
    }
}
