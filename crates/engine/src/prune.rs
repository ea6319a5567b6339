//! Deletes rows that are past their retention, in small batches.
//!
//! Each round compares the clock with the last round. After the clock was set forward, retention is held (`retention_hold`).

use std::sync::Mutex;
use std::time::Duration;

use domain::limits::MAINTENANCE_ROWS;
use store::db::retention_hold::ClockReading;
use store::{Store, StoreError};

use crate::task::{Task, TaskOutcome};

pub(crate) struct Prune {
    /// The clock at the last round.
    pub(crate) last_reading: Mutex<Option<ClockReading>>,
    pub(crate) history_retention_s: i64,
    pub(crate) timeline_retention_s: i64,
    pub(crate) dead_letter_retention_s: i64,
}

impl Prune {
    /// Returns how long nothing may be deleted. Holds retention if the clock was set forward since the last round.
    async fn held_for_s(&self, store: &Store) -> Result<Option<i64>, StoreError> {
        let reading = store.read_clock().await?;
        let last = self.last_reading.lock().expect("lock poisoned").replace(reading);
        if let Some(ahead_ms) = last.and_then(|last| reading.forward_step_ms(&last)) {
            store.hold_retention().await?;
            tracing::error!(ahead_ms, "the clock was set forward; nothing is deleted by age for an hour");
            metrics::counter!("windlass_clock_steps_total").increment(1);
        }
        let until = store.retention_held_until().await?;
        Ok(until.map(|until| until.ms_since(reading.at) / 1_000))
    }
}

/// Collects the results of one round.
#[derive(Default)]
struct Round {
    /// The first error. An error in one group does not prevent the others.
    failed: Option<StoreError>,
}

impl Round {
    fn record<V: Default>(&mut self, result: Result<V, StoreError>) -> V {
        result.unwrap_or_else(|error| {
            self.failed.get_or_insert(error);
            V::default()
        })
    }
}

impl Task for Prune {
    const NAME: &'static str = "prune";
    const EVERY: Duration = Duration::from_secs(30);

    async fn run(&self, store: &Store) -> Result<TaskOutcome, StoreError> {
        if let Some(held_s) = self.held_for_s(store).await? {
            return Ok(TaskOutcome::work(format!("nothing is deleted for {held_s} s: the clock was set forward")));
        }
        let mut round = Round::default();
        round.record(store.prune_sessions().await);
        round.record(store.prune_runtimes().await);
        round.record(store.prune_log_readings().await);
        round.record(store.prune_runs().await);
        let pruned = round.record(store.prune(self.history_retention_s).await);
        let timeline = round.record(store.prune_timeline(self.timeline_retention_s).await);
        metrics::counter!("windlass_pruned_total", "kind" => "timeline").increment(timeline);
        let deliveries = round.record(store.prune_deliveries().await);
        metrics::counter!("windlass_pruned_total", "kind" => "deliveries").increment(deliveries);
        let signals = round.record(store.prune_signals().await);
        let ttfs = round.record(store.prune_ttfs().await);
        let tokens = round.record(store.prune_tokens().await);
        metrics::counter!("windlass_pruned_total", "kind" => "tokens").increment(tokens);
        metrics::counter!("windlass_pruned_total", "kind" => "jobs").increment(pruned.jobs);
        metrics::counter!("windlass_pruned_total", "kind" => "history").increment(pruned.history);
        let letters = round.record(store.prune_dead_letters(self.dead_letter_retention_s).await);
        let events = round.record(store.prune_events().await);
        metrics::counter!("windlass_pruned_total", "kind" => "events").increment(events);
        let runs = round.record(store.prune_trigger_runs().await);
        metrics::counter!("windlass_pruned_total", "kind" => "trigger_runs").increment(runs);
        round.record(store.prune_throughput().await);
        let files = round.record(store.prune_files_and_batches().await);
        metrics::counter!("windlass_pruned_total", "kind" => "files_and_batches").increment(files);
        metrics::counter!("windlass_pruned_total", "kind" => "dead_letters").increment(letters);
        metrics::counter!("windlass_pruned_total", "kind" => "signals").increment(signals.signals);
        metrics::counter!("windlass_pruned_total", "kind" => "ttfs").increment(ttfs);
        if let Some(error) = round.failed {
            return Err(error);
        }
        let nothing = pruned == Default::default() && signals == Default::default();
        let counts = [timeline, deliveries, letters, events, runs, signals.signals, ttfs, tokens];
        if nothing && counts.iter().all(|rows| *rows == 0) {
            return Ok(TaskOutcome::nothing());
        }
        let work = format!(
            "{} jobs, {deliveries} deliveries, {} history rows, {timeline} timeline entries, {} idempotency keys, {} dead \
             workers, {letters} dead letters, {runs} trigger runs, {events} event receipts and slots, {tokens} tokens",
            pruned.jobs, pruned.history, pruned.idempotency, pruned.workers
        );
        let again = pruned.is_full() || counts.into_iter().any(|rows| rows as usize >= MAINTENANCE_ROWS);
        Ok(TaskOutcome { work: Some(work), next_in: again.then_some(Duration::from_millis(50)) })
    }
}

#[cfg(test)]
mod tests {
    use domain::limits::{
        DEAD_LETTER_RETENTION_DEFAULT_S, HISTORY_RETENTION_DEFAULT_S, RETENTION_HOLD_S, TIMELINE_RETENTION_S,
        UNSERVED_IN_DOUBT_MS,
    };
    use store::db::tx::{Operation, Tx};
    use testkit::on_both;

    use super::*;

    struct Fill(String);

    impl Operation for Fill {
        type Output = ();

        async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
            tx.batch(&self.0).await
        }
    }

    struct CountTimeline;

    impl Operation for CountTimeline {
        type Output = i64;

        async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
            tx.query_built("select count(*) from timeline", &[]).await?[0].int(0)
        }
    }

    const RUNS: &str = "insert into trigger_runs (id, tenant, trigger_id, event_id, attempt, outcome, at, log)
         select NEW, 2, NEW, NEW, 1, 'done', OLD, '[]' from NUMBERS";
    const TIMELINE: &str =
        "insert into timeline (tenant, at, event, subject) select 2, OLD, 'created', 's' from NUMBERS";
    const SIGNALS: &str = "insert into signals (job, tenant, updated_at) select LOW, 2, OLD from NUMBERS";
    const TTFS: &str = "insert into ttfs_events (id, tenant, at, surface, event_type, ttfs_ms, cache_hit)
         select NEW, 2, OLD, 'cli', 'signal.start', 1, 1 = 0 from NUMBERS";

    /// Inserts `many` old rows. A low UUIDv7 has an early timestamp.
    fn old_rows(store: &Store, text: &str, many: usize) -> Fill {
        let (id, low, at, numbers) = if store.is_postgres() {
            (
                "gen_random_uuid()",
                "lpad(to_hex(n), 32, '0')::uuid",
                "'epoch'::timestamptz",
                "generate_series(1, MANY) n",
            )
        } else {
            (
                "randomblob(16)",
                "unhex(printf('%032x', n))",
                "0",
                "(with recursive c(n) as (select 1 union all select n + 1 from c where n < MANY) select n from c)",
            )
        };
        let text = text.replace("NEW", id).replace("LOW", low).replace("OLD", at).replace("NUMBERS", numbers);
        Fill(text.replace("MANY", &many.to_string()))
    }

    fn prune() -> Prune {
        Prune {
            last_reading: Mutex::default(),
            history_retention_s: HISTORY_RETENTION_DEFAULT_S,
            timeline_retention_s: TIMELINE_RETENTION_S,
            dead_letter_retention_s: DEAD_LETTER_RETENTION_DEFAULT_S,
        }
    }

    /// Requirement X13.
    #[tokio::test]
    async fn a_full_pruning_batch_of_trigger_runs_is_followed_immediately_by_another() {
        on_both(async |db| {
            db.store.write(old_rows(&db.store, RUNS, MAINTENANCE_ROWS + 1)).await.expect("fills");
            let full = prune().run(&db.store).await.expect("prunes");
            assert!(full.next_in.is_some());
            let rest = prune().run(&db.store).await.expect("prunes");
            assert!(rest.next_in.is_none());
            assert!(rest.work.is_some_and(|work| work.contains("1 trigger runs")));
        })
        .await;
    }

    /// Requirement X13.
    #[tokio::test]
    async fn full_pruning_batches_of_timelines_signals_and_ttfs_continue_immediately() {
        on_both(async |db| {
            for text in [TIMELINE, SIGNALS, TTFS] {
                db.store.write(old_rows(&db.store, text, MAINTENANCE_ROWS + 1)).await.expect("fills");
                let full = prune().run(&db.store).await.expect("prunes");
                assert!(full.next_in.is_some(), "{text}");
                let rest = prune().run(&db.store).await.expect("prunes");
                assert!(rest.next_in.is_none() && rest.work.is_some(), "{text}");
                let none = prune().run(&db.store).await.expect("prunes");
                assert!(none.work.is_none(), "{text}");
            }
        })
        .await;
    }

    /// A clock that is years ahead makes every row look old.
    /// Requirement X13.
    #[tokio::test]
    async fn nothing_is_pruned_until_a_clock_that_was_set_forward_has_proved_stable() {
        on_both(async |db| {
            let (store, far_ms) = (&db.store, 10 * 366 * 24 * 3_600 * 1_000);
            let task = prune();
            task.run(store).await.expect("prunes");
            let now = if store.is_postgres() { "now()" } else { "unixepoch() * 1000000" };
            store.write(old_rows(store, &TIMELINE.replace("OLD", now), 1)).await.expect("fills");
            let rows = async || store.write(CountTimeline).await.expect("counts");
            db.clock.advance_ms(far_ms);
            store.beat().await.expect("beats");
            let held = task.run(store).await.expect("runs");
            assert!(held.work.is_some_and(|work| work.contains("set forward")));
            // Another node has not seen the step, but reads the hold.
            prune().run(store).await.expect("runs");
            assert_eq!(rows().await, 1, "the row is a minute old, whatever the clock says");
            // The clock is corrected: the hold ends at once.
            db.clock.advance_ms(-far_ms);
            store.repair_clock_step().await.expect("repairs");
            assert_eq!(store.retention_held_until().await.expect("reads"), None);
            // The step was right after all: retention continues after an hour.
            let task = prune();
            task.run(store).await.expect("runs");
            db.clock.advance_ms(far_ms);
            task.run(store).await.expect("runs");
            for expected in [1, 0] {
                assert_eq!(rows().await, 1);
                db.clock.advance_ms(RETENTION_HOLD_S * 1_000 / 2 + 1);
                prune().run(store).await.expect("runs");
                assert_eq!(rows().await, expected);
            }
        })
        .await;
    }

    /// Requirement X13.
    #[tokio::test]
    async fn a_start_after_a_day_without_any_node_holds_retention() {
        on_both(async |db| {
            db.store.beat().await.expect("beats");
            db.clock.advance_ms(UNSERVED_IN_DOUBT_MS / 2);
            assert!(!db.store.hold_retention_after_a_gap().await.expect("reads"), "an ordinary outage");
            db.clock.advance_ms(UNSERVED_IN_DOUBT_MS);
            assert!(db.store.hold_retention_after_a_gap().await.expect("holds"));
            assert!(db.store.retention_held_until().await.expect("reads").is_some());
        })
        .await;
    }

    /// Requirement X13.
    #[tokio::test]
    async fn a_failing_pruning_step_does_not_stop_the_others() {
        on_both(async |db| {
            let write = async |text: &str| db.store.write(Fill(text.into())).await.expect("writes");
            db.store.write(old_rows(&db.store, RUNS, 1)).await.expect("fills");
            write("alter table sessions rename to elsewhere").await;
            assert!(prune().run(&db.store).await.is_err());
            write("alter table elsewhere rename to sessions").await;
            let rest = prune().run(&db.store).await.expect("prunes");
            assert!(rest.work.is_none(), "the run was pruned in the first round: {:?}", rest.work);
        })
        .await;
    }
}
