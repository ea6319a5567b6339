//! Starts the children of new entries, in the commit that records the entries. `write` calls it.

use std::collections::HashMap;

use domain::{JobId, Label, TenantId};

use super::children::{self, NewChild};
use super::open_journal::OpenJournal;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{Accepted, EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::queue::traces::traces;

/// The jobs of one entry.
pub(super) struct StartedChildren<'a> {
    pub(super) parent: JobId,
    pub(super) tenant: TenantId,
    pub(super) depth: i32,
    pub(super) key: &'a Label,
    pub(super) jobs: &'a [NewJob],
    pub(super) lanes: &'a [i64],
}

/// Enqueues the children of new entries.
pub(super) async fn start_children(
    tx: &mut Tx<'_>,
    journals: &HashMap<JobId, OpenJournal>,
    started: &[StartedChildren<'_>],
) -> Result<Vec<Accepted>, StoreError> {
    if started.is_empty() {
        return Ok(Vec::new());
    }
    let traces = traces(tx, started.iter().map(|started| started.parent)).await?;
    let position = |started: &StartedChildren<'_>| journals[&started.parent].entries[started.key].entry.position;
    let child = |started: &StartedChildren<'_>, job: &NewJob| {
        let mut child = job.clone();
        let extras = child.extras.get_or_insert_default();
        extras.parent = Some(started.parent);
        extras.depth = extras.depth.max(started.depth);
        extras.traceparent = extras.traceparent.take().or_else(|| traces.get(&started.parent).cloned());
        extras.triggered_by = Some(format!("{}{}:{}", children::ORIGIN, started.parent, position(started)));
        child
    };
    let request = |started: &StartedChildren<'_>| {
        let jobs = started.jobs.iter().map(|job| child(started, job)).collect();
        EnqueueRequest::new(started.tenant, jobs, started.lanes.to_vec())
    };
    let enqueue = EnqueueBatch::several(started.iter().map(request).collect());
    let (mut accepted, mut rows) = (Vec::new(), Vec::new());
    for (started, reply) in started.iter().zip(enqueue.run(tx).await?) {
        let EnqueueReply::Accepted(jobs) = reply else {
            return Err(StoreError::unexpected("children have no idempotency key"));
        };
        rows.extend(jobs.iter().zip(1..).map(|(job, number)| NewChild {
            child: job.id,
            tenant: started.tenant.0,
            job: started.parent,
            position: position(started),
            number,
        }));
        accepted.extend(jobs);
    }
    children::insert(tx, &rows).await?;
    Ok(accepted)
}
