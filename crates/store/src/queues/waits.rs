//! How long work waits in each queue, from what is kept of it (S9). No job is read.

use std::collections::BTreeMap;

use domain::sketch::Sketch;
use domain::{Name, TenantId};

use crate::error::StoreError;
use crate::signals::figures::decode;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// Quantiles of the wait before a job begins, in seconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Wait {
    pub p50_s: f64,
    pub p95_s: f64,
}

impl Store {
    /// Of each queue whose kinds of work are known. Kinds that two queues share count for both.
    pub async fn waits(&self, tenant: TenantId) -> Result<BTreeMap<Name, Wait>, StoreError> {
        self.read(Waits { tenant }).await
    }
}

struct Waits {
    tenant: TenantId,
}

const WAITS: Sql = Sql::both(&["select l.queue, f.wait
     from (select distinct tenant, queue, kind, affinity from lanes where tenant = $1) l
     join figures f on f.tenant = l.tenant and f.kind = l.kind and f.affinity = l.affinity"]);

impl Operation for Waits {
    type Output = BTreeMap<Name, Wait>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let mut sketches: BTreeMap<Name, Sketch> = BTreeMap::new();
        for row in tx.query(&WAITS, &[Param::Int(self.tenant.0)]).await? {
            let sketch = decode(row.opt_text(1)?.as_deref())?;
            sketches.entry(Name::stored(&row.text(0)?)).or_default().merge(&sketch);
        }
        let wait = |sketch: &Sketch| Some(Wait { p50_s: sketch.quantile(0.5)?, p95_s: sketch.quantile(0.95)? });
        Ok(sketches.into_iter().filter_map(|(queue, sketch)| Some((queue, wait(&sketch)?))).collect())
    }
}
