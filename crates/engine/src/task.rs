//! Runs background tasks: on a timer and on a wake-up, never concurrently with themselves, with a status that a page
//! shows.
//!
//! A task takes no input and is idempotent. The wake-up is a hint; the scan is authoritative.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::Time;
use futures_util::FutureExt;
use store::db::notifier::{Subscription, Topic};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

/// The status of a task on this node.
#[derive(Clone, Debug, Default)]
pub struct TaskStatus {
    pub name: &'static str,
    pub every_ms: u64,
    pub last_run_at: Option<Time>,
    /// The last successful run. Before the first one, the start of the task.
    pub last_success_at: Time,
    /// The same on the monotonic clock, which no clock step affects.
    pub last_success: Option<Instant>,
    pub last_took_ms: Option<u64>,
    pub runs: u64,
    pub errors: u64,
    pub last_error: Option<String>,
    /// A description of the last run that changed something.
    pub last_work: Option<String>,
    pub last_work_at: Option<Time>,
}

/// The result of one run.
pub(crate) struct TaskOutcome {
    /// A description of the work, if there was any.
    pub(crate) work: Option<String>,
    /// When to run again, if sooner than the timer.
    pub(crate) next_in: Option<Duration>,
}

impl TaskOutcome {
    pub(crate) fn nothing() -> Self {
        Self { work: None, next_in: None }
    }

    pub(crate) fn work(text: String) -> Self {
        Self { work: Some(text), next_in: None }
    }
}

pub(crate) trait Task: Send + Sync + 'static {
    const NAME: &'static str;
    const EVERY: Duration;
    /// The topic that wakes the task before its timer.
    const WAKE: Option<Topic> = None;

    fn run(&self, store: &Store) -> impl Future<Output = Result<TaskOutcome, StoreError>> + Send;
}

/// How often a repeated failure is logged. All tasks need the database, which can be unavailable for hours.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// A failure that persists over several runs.
struct RepeatedFailure {
    error: String,
    /// Consecutive failed runs.
    runs: u64,
    logged_at: Instant,
}

impl RepeatedFailure {
    /// Records another failed run, and logs it if the error is new or was last logged long ago.
    fn record(before: Option<Self>, task: &str, error: String) -> Self {
        let runs = before.as_ref().map_or(0, |before| before.runs) + 1;
        let logged = before.filter(|before| before.error == error && before.logged_at.elapsed() < LOG_INTERVAL);
        let logged_at = logged.map_or_else(
            || {
                tracing::warn!(task, error, runs, "a task failed; it will run again");
                Instant::now()
            },
            |logged| logged.logged_at,
        );
        Self { error, runs, logged_at }
    }
}

/// Runs the task until `stop`. An error or a panic is recorded in the status, and the next run tries again.
pub(crate) async fn run_until<T: Task>(task: T, store: Store, status: Arc<Mutex<TaskStatus>>, stop: CancellationToken) {
    let subscription = T::WAKE.map(|topic| store.notifier().subscribe([topic]));
    let mut failure: Option<RepeatedFailure> = None;
    loop {
        let started = Instant::now();
        let result = once(&task, &store).await;
        let mut wait = T::EVERY;
        {
            let mut status = status.lock().expect("lock poisoned");
            status.runs += 1;
            let now = store.clock().now();
            status.last_run_at = Some(now);
            status.last_took_ms = Some(started.elapsed().as_millis() as u64);
            match &result {
                Ok(done) => {
                    wait = done.next_in.unwrap_or(wait).min(wait);
                    status.last_error = None;
                    status.last_success_at = now;
                    status.last_success = Some(Instant::now());
                    if done.work.is_some() {
                        status.last_work.clone_from(&done.work);
                        status.last_work_at = status.last_run_at;
                    }
                }
                Err(error) => {
                    status.errors += 1;
                    status.last_error = Some(error.clone());
                }
            }
        }
        match result {
            Err(error) => {
                metrics::counter!("windlass_task_errors_total", "task" => T::NAME).increment(1);
                failure = Some(RepeatedFailure::record(failure.take(), T::NAME, error));
                wait = wait.max(Duration::from_millis(250));
            }
            Ok(_) => {
                if let Some(RepeatedFailure { runs, .. }) = failure.take() {
                    tracing::info!(task = T::NAME, runs, "a task recovered");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = woken(subscription.as_ref()) => {}
        }
    }
}

/// Runs the task once and describes an error or a panic. A panic ends the run, not the task.
async fn once<T: Task>(task: &T, store: &Store) -> Result<TaskOutcome, String> {
    match AssertUnwindSafe(task.run(store)).catch_unwind().await {
        Ok(result) => result.map_err(|error| describe(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!("panicked: {}", text.unwrap_or("no message")))
        }
    }
}

async fn woken(subscription: Option<&Subscription>) {
    match subscription {
        Some(subscription) => subscription.notified().await,
        None => std::future::pending().await,
    }
}

fn describe(error: &StoreError) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use testkit::Database;
    use tokio::sync::Notify;
    use tokio::task::JoinSet;

    use super::*;

    /// Panics in its first run.
    #[derive(Default)]
    struct PanicsOnce {
        runs: AtomicUsize,
        ran_again: Arc<Notify>,
    }

    impl Task for PanicsOnce {
        const NAME: &'static str = "panics_once";
        const EVERY: Duration = Duration::from_millis(1);

        async fn run(&self, _: &Store) -> Result<TaskOutcome, StoreError> {
            assert!(self.runs.fetch_add(1, Ordering::SeqCst) > 0, "an unexpected row");
            self.ran_again.notify_one();
            Ok(TaskOutcome::nothing())
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_reports_an_error_and_runs_again() {
        let db = Database::sqlite().await;
        let error = once(&PanicsOnce::default(), &db.store).await.err();
        assert_eq!(error.as_deref(), Some("panicked: an unexpected row"));

        let (task, status, stop) =
            (PanicsOnce::default(), Arc::<Mutex<TaskStatus>>::default(), CancellationToken::new());
        let ran_again = task.ran_again.clone();
        let mut running = JoinSet::new();
        running.spawn(run_until(task, db.store.clone(), status.clone(), stop.clone()));
        tokio::select! {
            () = ran_again.notified() => {}
            ended = running.join_next() => panic!("the task ended: {ended:?}"),
        }
        stop.cancel();
        running.join_all().await;
        assert_eq!(status.lock().unwrap().errors, 1);
    }
}
