//! Forgets what is past its retention, in small batches (X13, Q14).

use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::{Store, StoreError};

use crate::task::{Done, Task};

pub(crate) struct Prune {
    pub(crate) history_retention_s: i64,
    pub(crate) dead_letter_retention_s: i64,
}

impl Task for Prune {
    const NAME: &'static str = "prune";
    const EVERY: Duration = Duration::from_secs(30);

    async fn run(&self, store: &Store) -> Result<Done, StoreError> {
        store.prune_sessions().await?;
        store.prune_runtimes().await?;
        let pruned = store.prune(self.history_retention_s).await?;
        let deliveries = store.prune_deliveries().await?;
        metrics::counter!("windlass_pruned_total", "kind" => "deliveries").increment(deliveries);
        let signals = store.prune_signals().await?;
        let ttfs = store.prune_ttfs().await?;
        metrics::counter!("windlass_pruned_total", "kind" => "jobs").increment(pruned.jobs);
        metrics::counter!("windlass_pruned_total", "kind" => "history").increment(pruned.history);
        let letters = store.prune_dead_letters(self.dead_letter_retention_s).await?;
        store.prune_events().await?;
        let runs = store.prune_trigger_runs().await?;
        metrics::counter!("windlass_pruned_total", "kind" => "trigger_runs").increment(runs);
        store.prune_throughput().await?;
        let files = store.prune_files_and_batches().await?;
        metrics::counter!("windlass_pruned_total", "kind" => "files_and_batches").increment(files);
        metrics::counter!("windlass_pruned_total", "kind" => "dead_letters").increment(letters);
        metrics::counter!("windlass_pruned_total", "kind" => "signals").increment(signals.signals);
        metrics::counter!("windlass_pruned_total", "kind" => "ttfs").increment(ttfs);
        let nothing = pruned == Default::default() && signals == Default::default();
        if nothing && deliveries == 0 && letters == 0 && ttfs == 0 {
            return Ok(Done::nothing());
        }
        let work = format!(
            "{} jobs, {deliveries} deliveries, {} rows of history, {} idempotency keys, {} dead workers, {letters} dead letters",
            pruned.jobs, pruned.history, pruned.idempotency, pruned.workers
        );
        let again = pruned.jobs as usize >= MAINTENANCE_ROWS
            || pruned.history as usize >= MAINTENANCE_ROWS
            || deliveries as usize >= MAINTENANCE_ROWS;
        Ok(Done { work: Some(work), again_in: again.then_some(Duration::from_millis(50)) })
    }
}
