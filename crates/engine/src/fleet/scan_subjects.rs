//! Creates the jobs of processes for eligible subjects: immediately when a fact changes, and at the due time when an
//! age condition becomes true.

use std::time::Duration;

use store::db::notifier::Topic;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct ScanSubjects;

impl Task for ScanSubjects {
    const NAME: &'static str = "scan_subjects";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Scan);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        let scanned = store.scan().await?;
        metrics::counter!("windlass_process_jobs_made_total").increment(scanned.jobs as u64);
        metrics::counter!("windlass_subjects_judged_total").increment(scanned.evaluated as u64);
        let next_in = match scanned.next_in_ms {
            _ if scanned.more => Some(Duration::ZERO),
            next => next.map(|ms| Duration::from_millis(ms as u64)),
        };
        let has_work = scanned.jobs + scanned.evaluated + scanned.unparked > 0;
        let work = has_work.then(|| {
            let store::fleet::processes::scan::Scanned { jobs, evaluated, unparked, .. } = scanned;
            format!("{jobs} jobs created, {evaluated} subjects evaluated, {unparked} jobs unparked")
        });
        Ok(TaskOutcome { work, next_in })
    }
}
