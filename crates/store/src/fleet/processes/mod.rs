//! Processes declare which job to run on which subjects. `scan` makes the jobs; the other modules are operations on the
//! declarations.

pub(crate) mod codec;
pub mod delete;
pub mod eligible;
pub mod get;
pub mod put;
pub mod scan;

use std::collections::{BTreeMap, BTreeSet};

use domain::TenantId;

use crate::db::codec::from_json;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;

const EXCLUSIONS: Sql = Sql::both(&["select name, excludes from processes
     where tenant = $1 and excludes is not null and dropped_at is null"]);

/// Returns, for each process, the processes that must not work on a subject at the same time. An exclusion is
/// symmetric, whichever of the two processes declared it.
pub(crate) async fn exclusions(
    tx: &mut Tx<'_>,
    tenant: TenantId,
) -> Result<BTreeMap<String, BTreeSet<String>>, StoreError> {
    let mut exclusions: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for row in tx.query(&EXCLUSIONS, &[Param::Int(tenant.0)]).await? {
        let name = row.text("name")?;
        for other in from_json::<Vec<String>>(&row.text("excludes")?)? {
            exclusions.entry(other.clone()).or_default().insert(name.clone());
            exclusions.entry(name.clone()).or_default().insert(other);
        }
    }
    Ok(exclusions)
}
