//! Wait times per queue, from stored statistics. No job is read.

use std::collections::BTreeMap;

use domain::signals::sketch::Sketch;
use domain::{Name, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::signals::estimator;
use crate::store::Store;

/// Quantiles of the time before a job starts, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub p50_s: f64,
    pub p95_s: f64,
}

impl Store {
    /// Returns the wait times of each queue whose kinds have statistics. A kind that two queues share counts for both.
    pub async fn waits(&self, tenant: TenantId) -> Result<BTreeMap<Name, Wait>, StoreError> {
        self.read(ReadWaits { tenant }).await
    }
}

struct ReadWaits {
    tenant: TenantId,
}

const WAITS: Sql = Sql::both(&["select l.queue, f.wait
     from (select distinct tenant, queue, kind, affinity from lanes where tenant = $1) l
     join figures f on f.tenant = l.tenant and f.kind = l.kind and f.affinity = l.affinity"]);

impl Operation for ReadWaits {
    type Output = BTreeMap<Name, Wait>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut sketches: BTreeMap<Name, Sketch> = BTreeMap::new();
        for row in tx.query(&WAITS, &[Param::Int(self.tenant.0)]).await? {
            let sketch = estimator::sketch(row.opt_text("wait")?.as_deref())?;
            sketches.entry(Name::stored(&row.text("queue")?)).or_default().merge(&sketch);
        }
        let wait = |sketch: &Sketch| Some(Wait { p50_s: sketch.quantile(0.5)?, p95_s: sketch.quantile(0.95)? });
        Ok(sketches.into_iter().filter_map(|(queue, sketch)| Some((queue, wait(&sketch)?))).collect())
    }
}
