//! Reads run-time quantiles and the ETA accuracy of each kind of work. Called by the dashboard.

use domain::TenantId;
use domain::signals::eta::calibration::Calibration;

use super::estimator;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Run times and ETA accuracy of one kind of work with one affinity.
#[derive(Clone, Debug)]
pub struct KindCalibration {
    pub kind: String,
    pub affinity: String,
    pub run_p50_s: Option<f64>,
    pub run_p95_s: Option<f64>,
    /// Median distance between the p50 and the p90 that were shown.
    pub width_s: Option<f64>,
    pub calibration: Calibration,
}

impl Store {
    /// Returns up to `limit` kinds of work, the most recently ended first.
    pub async fn calibrations(&self, tenant: TenantId, limit: usize) -> Result<Vec<KindCalibration>, StoreError> {
        self.read(ListCalibrations { tenant, limit }).await
    }
}

struct ListCalibrations {
    tenant: TenantId,
    limit: usize,
}

const READ: Sql =
    Sql::both(&["select kind, affinity, run, load, wait, answers, within_p50, within_p90, estimator from figures
     where tenant = $1 order by updated_at desc, kind, affinity limit $2"]);

impl Operation for ListCalibrations {
    type Output = Vec<KindCalibration>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<KindCalibration>, StoreError> {
        let rows = tx.query(&READ, &[Param::Int(self.tenant.0), Param::Int(self.limit as i64)]).await?;
        rows.iter()
            .map(|row| {
                let history = estimator::read(row)?;
                let run = &history.run.sketch;
                Ok(KindCalibration {
                    kind: row.text("kind")?,
                    affinity: row.text("affinity")?,
                    run_p50_s: run.quantile(0.5),
                    run_p95_s: run.quantile(0.95),
                    width_s: history.calibration.widths.quantile(0.5),
                    calibration: history.calibration,
                })
            })
            .collect()
    }
}
