//! Processes: what is to be done to which subjects (W1). The scan that makes their jobs is in `scan`.

pub(crate) mod codec;
pub mod delete;
pub mod eligible;
pub mod get;
pub mod put;
pub mod scan;

use std::collections::{BTreeMap, BTreeSet};

use domain::TenantId;

use crate::codec::from_json;
use crate::error::StoreError;
use crate::tx::{Param, Sql, Tx};

const EXCLUSIONS: Sql = Sql::both(&["select name, excludes from processes
     where tenant = $1 and excludes is not null and dropped_at is null"]);

/// Which processes may not be on a subject together. It goes both ways, whichever of the two declared it.
pub(crate) async fn exclusions(
    tx: &mut Tx<'_>,
    tenant: TenantId,
) -> Result<BTreeMap<String, BTreeSet<String>>, StoreError> {
    let mut exclusions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in tx.query(&EXCLUSIONS, &[Param::Int(tenant.0)]).await? {
        let name = row.text(0)?;
        for other in from_json::<Vec<String>>(&row.text(1)?)? {
            exclusions.entry(other.clone()).or_default().insert(name.clone());
            exclusions.entry(name.clone()).or_default().insert(other);
        }
    }
    Ok(exclusions)
}
