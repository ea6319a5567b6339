//! The inputs of claimed jobs: the results of the jobs that they need.

use std::collections::HashMap;

use domain::JobId;
use domain::limits::{INPUT_INLINE_BYTES, INPUTS_BYTES};

use crate::db::tx::{Column, Param, Sql, Tx};
use crate::error::StoreError;

/// The result of a needed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// JSON. `null` if the job has no result, or did not succeed.
    Inline(String),
    /// The result is too large to be sent with the claim.
    Reference { job: JobId, size: i64 },
}

// Results in the order of the names, as long as their sum stays within the limit.
const INPUTS: Sql = Sql::new(
    &["select node, need, name, size, case when size <= $2 and total <= $3 then result end as result from (
           select e.node, e.need, n.name, x.result, coalesce(length(cast(x.result as blob)), 0) as size,
               sum(case when length(cast(x.result as blob)) <= $2 then length(cast(x.result as blob)) else 0 end)
                   over (partition by e.node order by n.name) as total
           from run_needs e join run_nodes n on n.job = e.need left join ended x on x.id = e.need where e.node = $1)"],
    "select node, need, name, size, case when size <= $2 and total <= $3 then result end as result from (
         select e.node, e.need, n.name, x.result, coalesce(octet_length(x.result::text), 0)::bigint as size,
             sum(case when octet_length(x.result::text) <= $2 then octet_length(x.result::text) else 0 end)
                 over (partition by e.node order by n.name) as total
         from run_needs e join run_nodes n on n.job = e.need left join ended x on x.id = e.need
         where e.node = any($1::uuid[])) needed",
);

/// Returns the inputs of these jobs by the names of the needed nodes, in the order of the names.
pub(crate) async fn inputs(
    tx: &mut Tx<'_>,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, Vec<(String, Input)>>, StoreError> {
    let limits = [Param::Int(INPUT_INLINE_BYTES), Param::Int(INPUTS_BYTES)];
    let mut inputs: HashMap<JobId, Vec<(String, Input)>> = HashMap::new();
    for row in tx.query_each(&INPUTS, &[Column::jobs(jobs)], &limits).await? {
        let size = row.int("size")?;
        let input = match row.opt_text("result")? {
            Some(result) => Input::Inline(result),
            None if size == 0 => Input::Inline("null".into()),
            None => Input::Reference { job: row.job("need")?, size },
        };
        inputs.entry(row.job("node")?).or_default().push((row.text("name")?, input));
    }
    inputs.values_mut().for_each(|inputs| inputs.sort_by(|(one, _), (other, _)| one.cmp(other)));
    Ok(inputs)
}
