//! How a background task runs: on a timer and on a wake, never twice at once, with a status that a page shows.
//!
//! A task takes no input and is idempotent. The wake is a hint, the scan is the truth.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use domain::Time;
use futures_util::FutureExt;
use store::hints::{Listener, Topic};
use store::{Store, StoreError};
use tokio_util::sync::CancellationToken;

/// What a task did last.
#[derive(Clone, Debug, Default)]
pub struct TaskStatus {
    pub name: &'static str,
    pub every_ms: u64,
    pub last_run_at: Option<Time>,
    /// When a run last succeeded; until one does, when the task was begun.
    pub last_success_at: Time,
    pub last_took_ms: Option<u64>,
    pub runs: u64,
    pub errors: u64,
    pub last_error: Option<String>,
    /// What the last run that did something did, in words.
    pub last_work: Option<String>,
    pub last_work_at: Option<Time>,
}

/// What one run found to do.
pub(crate) struct Done {
    /// In words, when there was anything.
    pub(crate) work: Option<String>,
    /// When to come again, if sooner than the timer.
    pub(crate) again_in: Option<Duration>,
}

impl Done {
    pub(crate) fn nothing() -> Self {
        Self { work: None, again_in: None }
    }

    pub(crate) fn work(text: String) -> Self {
        Self { work: Some(text), again_in: None }
    }
}

pub(crate) trait Task: Send + Sync + 'static {
    const NAME: &'static str;
    const EVERY: Duration;
    /// What wakes it before its time.
    const WAKE: Option<Topic> = None;

    fn run(&self, store: &Store) -> impl Future<Output = Result<Done, StoreError>> + Send;
}

/// How often a failure that stays the same is told: the database may be away for hours, and every task needs it.
const TOLD_EVERY: Duration = Duration::from_secs(60);

/// A failure that goes on.
struct Trouble {
    error: String,
    /// That failed in a row.
    runs: u64,
    told_at: Instant,
}

impl Trouble {
    /// Another run of the task has failed.
    fn again(before: Option<Self>, task: &str, error: String) -> Self {
        let runs = before.as_ref().map_or(0, |before| before.runs) + 1;
        let told = before.filter(|before| before.error == error && before.told_at.elapsed() < TOLD_EVERY);
        let told_at = told.map_or_else(
            || {
                tracing::warn!(task, error, runs, "a task failed and will run again");
                Instant::now()
            },
            |told| told.told_at,
        );
        Self { error, runs, told_at }
    }
}

/// Runs the task until told to stop. An error, or a panic, is written down and the next run tries again.
pub(crate) async fn run_until<T: Task>(task: T, store: Store, status: Arc<Mutex<TaskStatus>>, stop: CancellationToken) {
    let listener = T::WAKE.map(|topic| store.hints().listen([topic]));
    let mut trouble: Option<Trouble> = None;
    loop {
        let started = Instant::now();
        let result = once(&task, &store).await;
        let mut wait = T::EVERY;
        {
            let mut status = status.lock().expect("nobody panics with a status in hand");
            status.runs += 1;
            let now = store.clock().now();
            status.last_run_at = Some(now);
            status.last_took_ms = Some(started.elapsed().as_millis() as u64);
            match &result {
                Ok(done) => {
                    wait = done.again_in.unwrap_or(wait).min(wait);
                    status.last_error = None;
                    status.last_success_at = now;
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
                trouble = Some(Trouble::again(trouble.take(), T::NAME, error));
                wait = wait.max(Duration::from_millis(250));
            }
            Ok(_) => {
                if let Some(Trouble { runs, .. }) = trouble.take() {
                    tracing::info!(task = T::NAME, runs, "a task works again");
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(wait) => {}
            () = woken(listener.as_ref()) => {}
        }
    }
}

/// One run; what went wrong in words. A panic ends the run and not the task.
async fn once<T: Task>(task: &T, store: &Store) -> Result<Done, String> {
    match AssertUnwindSafe(task.run(store)).catch_unwind().await {
        Ok(result) => result.map_err(|error| describe(&error)),
        Err(panic) => {
            let text = panic.downcast_ref::<&str>().copied();
            let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
            Err(format!("it panicked: {}", text.unwrap_or("without a word")))
        }
    }
}

async fn woken(listener: Option<&Listener>) {
    match listener {
        Some(listener) => listener.hint().await,
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
    struct Stumbles {
        runs: AtomicUsize,
        went_on: Arc<Notify>,
    }

    impl Task for Stumbles {
        const NAME: &'static str = "stumbles";
        const EVERY: Duration = Duration::from_millis(1);

        async fn run(&self, _: &Store) -> Result<Done, StoreError> {
            assert!(self.runs.fetch_add(1, Ordering::SeqCst) > 0, "a row that nobody foresaw");
            self.went_on.notify_one();
            Ok(Done::nothing())
        }
    }

    #[tokio::test]
    async fn a_task_that_panics_says_so_and_goes_on() {
        let db = Database::sqlite().await;
        let told = once(&Stumbles::default(), &db.store).await.err();
        assert_eq!(told.as_deref(), Some("it panicked: a row that nobody foresaw"));

        let (task, status, stop) = (Stumbles::default(), Arc::<Mutex<TaskStatus>>::default(), CancellationToken::new());
        let went_on = task.went_on.clone();
        let mut running = JoinSet::new();
        running.spawn(run_until(task, db.store.clone(), status.clone(), stop.clone()));
        tokio::select! {
            () = went_on.notified() => {}
            ended = running.join_next() => panic!("the task is gone: {ended:?}"),
        }
        stop.cancel();
        running.join_all().await;
        assert_eq!(status.lock().unwrap().errors, 1);
    }
}
