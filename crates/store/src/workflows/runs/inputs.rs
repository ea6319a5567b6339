//! The inputs of claimed jobs: the results of the jobs that they need.

use std::collections::HashMap;

use domain::JobId;
use domain::limits::{CLAIM_INPUTS_BYTES, INPUT_INLINE_BYTES, INPUTS_BYTES};

use crate::db::tx::{Column, Param, Row, Sql, Tx};
use crate::error::StoreError;

/// The result of a needed job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// JSON. `null` if the job has no result, or did not succeed.
    Inline(String),
    /// The result is too large to be sent with the claim.
    Reference { job: JobId, size: i64 },
}

// Results in the order of the names, as long as their sum per job stays within `$3`, and the sum of all within `$4`.
const INPUTS: Sql = Sql::new(
    &["select node, need, name, size, case when size <= $2 and total <= $3 and total <= $4 then result end as result from (
           select e.node, e.need, n.name, x.result, coalesce(length(cast(x.result as blob)), 0) as size,
               sum(case when length(cast(x.result as blob)) <= $2 then length(cast(x.result as blob)) else 0 end)
                   over (partition by e.node order by n.name) as total
           from run_needs e join run_nodes n on n.job = e.need left join ended x on x.id = e.need where e.node = $1)"],
    "select node, need, name, size,
         case when size <= $2 and total <= $3::bigint and total_of_claim <= $4::bigint then result end as result
     from (select node, need, name, result, size,
               sum(case when size <= $2 then size else 0 end) over (partition by node order by name) as total,
               sum(case when size <= $2 then size else 0 end) over (order by node, name) as total_of_claim
           from (select e.node, e.need, n.name, x.result, coalesce(octet_length(x.result::text), 0)::bigint as size
                 from run_needs e join run_nodes n on n.job = e.need left join ended x on x.id = e.need
                 where e.node = any($1::uuid[])) needed) sized",
);

/// Returns the inputs of these jobs by the names of the needed nodes, in the order of the names.
pub(crate) async fn inputs(
    tx: &mut Tx<'_>,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, Vec<(String, Input)>>, StoreError> {
    let jobs: Vec<JobId> = jobs.collect();
    // SQLite runs the statement once per job, so each gets what the jobs before it have left.
    let parts = if tx.is_postgres() { jobs.len() } else { 1 };
    let mut bytes_left = CLAIM_INPUTS_BYTES;
    let mut inputs: HashMap<JobId, Vec<(String, Input)>> = HashMap::new();
    for part in jobs.chunks(parts.max(1)) {
        let limits = [INPUT_INLINE_BYTES, INPUTS_BYTES, bytes_left].map(Param::Int);
        let rows = tx.query_each(&INPUTS, &[Column::jobs(part.iter().copied())], &limits).await?;
        bytes_left -= read(&rows, &mut inputs)?;
    }
    inputs.values_mut().for_each(|inputs| inputs.sort_by(|(one, _), (other, _)| one.cmp(other)));
    Ok(inputs)
}

/// Adds the rows to the inputs of their jobs, and returns the size of their results.
fn read(rows: &[Row], inputs: &mut HashMap<JobId, Vec<(String, Input)>>) -> Result<i64, StoreError> {
    let mut bytes = 0;
    for row in rows {
        let size = row.int("size")?;
        let input = match row.opt_text("result")? {
            Some(result) => {
                bytes += size;
                Input::Inline(result)
            }
            None if size == 0 => Input::Inline("null".into()),
            None => Input::Reference { job: row.job("need")?, size },
        };
        inputs.entry(row.job("node")?).or_default().push((row.text("name")?, input));
    }
    Ok(bytes)
}
