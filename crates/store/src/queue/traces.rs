//! Trace contexts of jobs. Claims, children and webhooks pass them on.

use std::collections::HashMap;

use domain::{JobId, TraceContext};

use crate::db::tx::{Column, Sql, Tx};
use crate::error::StoreError;

const TRACES: Sql = Sql::new(
    &["select job, traceparent from job_options where job = $1 and traceparent is not null"],
    "select job, traceparent from job_options where job = any($1::uuid[]) and traceparent is not null",
);

/// The trace contexts of those jobs that have one.
pub(crate) async fn traces(
    tx: &mut Tx<'_>,
    jobs: impl Iterator<Item = JobId>,
) -> Result<HashMap<JobId, TraceContext>, StoreError> {
    let rows = tx.query_each(&TRACES, &[Column::jobs(jobs)], &[]).await?;
    let mut found = HashMap::with_capacity(rows.len());
    for row in rows {
        if let Some(context) = TraceContext::parse(&row.text("traceparent")?) {
            found.insert(row.job("job")?, context);
        }
    }
    Ok(found)
}
