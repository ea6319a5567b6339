//! Runs the handler of a workflow until it returns, or until everything that it awaits is an open entry of the journal:
//! then the handler is dropped, and the job is given back until one of the entries is resolved.

use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use serde::Serialize;

use super::replay::{Progress, Replay};
use super::undo;
use super::workflow::Workflow;
use crate::queue::worker::JobContext;
use crate::queue::worker::handler::{HandlerError, Verdict, guarded, verdict_of};

/// Maximum number of entries that wake a job, equal to the server's limit.
const WAKE_KEYS: usize = 1_000;

/// Runs one attempt of a workflow.
pub(crate) async fn run<F, Fut, T>(handler: Arc<F>, job: JobContext, strict: bool) -> Verdict
where
    F: Fn(Workflow) -> Fut,
    Fut: Future<Output = Result<T, HandlerError>>,
    T: Serialize,
{
    let replay = Replay::load(job, strict).await;
    let stopped = replay.lock().stopped();
    if let Some(error) = stopped {
        return Err(error);
    }
    let work = guarded(async { handler(Workflow::new(replay.clone())).await });
    let driven = drive(&replay, work).await;
    if replay.is_compensating() {
        return Err(compensate(&replay).await);
    }
    let result = driven.into_result()?;
    match result {
        Err(error) if undo::is_due(&replay, &error) => {
            let undone = drive(&replay, undo::run(&replay)).await.into_result()?;
            Err(undo::explain(error, undone))
        }
        result => verdict_of(result),
    }
}

/// Undoes the recorded steps of a canceled job.
async fn compensate(replay: &Arc<Replay>) -> HandlerError {
    let stopped = replay.lock().stopped();
    if let Some(error) = stopped {
        return error;
    }
    replay.begin_undo();
    match drive(replay, undo::run(replay)).await.into_result() {
        Ok(_logged) => HandlerError::cancel(),
        Err(error) => error,
    }
}

/// How a run of the handler ended.
enum Driven<T> {
    Returned(T),
    Suspended(Vec<String>),
    Stopped(HandlerError),
}

impl<T> Driven<T> {
    /// The returned value. A suspend is an error, which ends the attempt like any other.
    fn into_result(self) -> Result<T, HandlerError> {
        match self {
            Self::Returned(value) => Ok(value),
            Self::Suspended(mut keys) => {
                keys.truncate(WAKE_KEYS);
                Err(HandlerError::suspend(keys))
            }
            Self::Stopped(error) => Err(error),
        }
    }
}

async fn drive<T>(replay: &Arc<Replay>, work: impl Future<Output = T>) -> Driven<T> {
    let mut work = pin!(work);
    let mut canceled = pin!(replay.job.cancellation().cancelled());
    let observer =
        Arc::new(WakeObserver { was_woken: AtomicBool::new(false), task: Mutex::new(Waker::noop().clone()) });
    let waker = Waker::from(observer.clone());
    let mut returned = None;
    std::future::poll_fn(|context| {
        observer.observe(context.waker());
        replay.lock().set_driver(context.waker());
        // Polled for its wake-up.
        let is_canceled = canceled.as_mut().poll(context).is_ready() || replay.is_halted();
        loop {
            if returned.is_none()
                && let Poll::Ready(value) = work.as_mut().poll(&mut Context::from_waker(&waker))
            {
                returned = Some(value);
            }
            let mut journal = replay.lock();
            // The outcome must not overtake writes in flight, for example that of a branch that lost.
            if let Some(value) = returned.take_if(|_| !journal.is_active()) {
                return Poll::Ready(Driven::Returned(value));
            }
            if returned.is_some() {
                return match journal.stopped() {
                    Some(error) => Poll::Ready(Driven::Stopped(error)),
                    None => Poll::Pending,
                };
            }
            if observer.was_woken.swap(false, Ordering::SeqCst) {
                return Poll::Pending;
            }
            match journal.advance(is_canceled) {
                Progress::Wait if observer.was_woken.swap(false, Ordering::SeqCst) => {}
                Progress::Wait => return Poll::Pending,
                Progress::Refresh => {
                    drop(journal);
                    replay.job.uplink().tasks().spawn(replay.clone().refresh());
                    return Poll::Pending;
                }
                Progress::Suspend(keys) => return Poll::Ready(Driven::Suspended(keys)),
                Progress::Stop(error) => return Poll::Ready(Driven::Stopped(error)),
            }
        }
    })
    .await
}

/// Observes whether anything woke the handler since its last poll: then it can continue, for example because a
/// combinator has more branches to poll.
struct WakeObserver {
    was_woken: AtomicBool,
    task: Mutex<Waker>,
}

impl WakeObserver {
    fn observe(&self, task: &Waker) {
        self.was_woken.store(false, Ordering::SeqCst);
        self.task.lock().unwrap_or_else(PoisonError::into_inner).clone_from(task);
    }
}

impl Wake for WakeObserver {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.was_woken.store(true, Ordering::SeqCst);
        self.task.lock().unwrap_or_else(PoisonError::into_inner).wake_by_ref();
    }
}
