//! Computes the ETAs of a few unfinished jobs in the background, so that estimates are compared with the real ends, and
//! corrected, without a reader. `serve` runs it. Enqueue and claim do nothing for it.

use std::collections::VecDeque;
use std::time::Duration;

use domain::limits::{SAMPLE_INTERVAL_MS, SAMPLED_AGAIN_JOBS, SAMPLED_JOBS, SAMPLED_NEW_JOBS};
use domain::{JobId, TenantId};
use store::{Store, StoreError};

use crate::signals::view;

pub struct AnswerSampler {
    store: Store,
    /// Jobs that had not ended when they were sampled. The first one is sampled next.
    sampled: VecDeque<(TenantId, JobId)>,
}

impl AnswerSampler {
    pub fn new(store: Store) -> Self {
        Self { store, sampled: VecDeque::new() }
    }

    /// Samples until dropped.
    pub async fn run(mut self) {
        loop {
            tokio::time::sleep(Duration::from_millis(SAMPLE_INTERVAL_MS)).await;
            if let Err(error) = self.sample().await {
                tracing::debug!(%error, "cannot sample estimates");
            }
        }
    }

    /// Computes the ETAs of the newest jobs, and again those of jobs that were sampled before: an ETA is scored once for
    /// each phase of a job, and the phases differ in how accurate they are.
    pub async fn sample(&mut self) -> Result<(), StoreError> {
        let again = self.sampled.len().min(SAMPLED_AGAIN_JOBS);
        let mut jobs: Vec<(TenantId, JobId)> = self.sampled.drain(..again).collect();
        for newest in self.store.newest_unfinished_jobs(SAMPLED_NEW_JOBS).await? {
            if !self.sampled.contains(&newest) && !jobs.contains(&newest) {
                jobs.push(newest);
            }
        }
        for (tenant, id) in jobs {
            let Some(job) = self.store.job(tenant, id).await?.filter(|job| !job.state.is_terminal()) else { continue };
            view::sample_answer(&self.store, tenant, &job).await?;
            if self.sampled.len() >= SAMPLED_JOBS {
                self.sampled.pop_front();
            }
            self.sampled.push_back((tenant, id));
        }
        Ok(())
    }
}
