//! Makes the jobs of processes for the subjects that are eligible (W1): at once when a fact changed, at its due time when
//! an age does.

use std::time::Duration;

use store::hints::Topic;
use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct ScanSubjects;

impl Task for ScanSubjects {
    const NAME: &'static str = "scan_subjects";
    const EVERY: Duration = Duration::from_millis(500);
    const WAKE: Option<Topic> = Some(Topic::Scan);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        let scanned = store.scan().await?;
        metrics::counter!("windlass_process_jobs_made_total").increment(scanned.jobs as u64);
        metrics::counter!("windlass_subjects_judged_total").increment(scanned.judged as u64);
        let again_in = match scanned.next_in_ms {
            _ if scanned.more => Some(Duration::ZERO),
            next => next.map(|ms| Duration::from_millis(ms as u64)),
        };
        let did = scanned.jobs + scanned.judged + scanned.unparked > 0;
        let work = did.then(|| {
            let store::processes::scan::Scanned { jobs, judged, unparked, .. } = scanned;
            format!("{jobs} jobs made, {judged} subjects judged, {unparked} jobs past their backoff")
        });
        Ok(Done { work, again_in })
    }
}
