//! The event loop of a worker. It alone owns the state. Handlers and calls to the server are tasks that report back, so
//! that claiming, running and settling overlap without locks.

mod calls;
mod overdue;
mod stop;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;
use wire::{OutcomeKind, OutcomeRequest, Problem};

use super::context::{BackendUplink, JobContext, Uplink};
use super::handler::{HandlerError, Verdict, guarded};
use super::outcomes::{self, Outcomes};
use super::session::{Backoff, Session, register};
use super::{Worker, WorkerError};
use crate::backend::Backend;
use calls::CallResult;
use overdue::{AbandonedTask, WaitingJob, after};

/// Limit for unsettled outcomes, beyond which no further job is started, so that memory stays bounded during an outage.
const MAX_UNSETTLED: usize = 10_000;
/// Jobs started before the loop handles call results again, so that the next call does not wait for all of them.
const START_BATCH: usize = 64;

pub(super) async fn run<B: Backend>(worker: &Worker<B>, shutdown: CancellationToken) -> Result<(), WorkerError> {
    let Some(session) = register(worker, &shutdown).await? else { return Ok(()) };
    let mut run = Run::new(worker, session);
    loop {
        // Check for shutdown first, so that results that arrive at the same moment start nothing new.
        if shutdown.is_cancelled() && run.deadline().is_none() {
            run.drain();
        }
        // Then handle all call results, so that starting one claim's jobs does not delay the next call.
        while let Some(result) = run.calls.try_join_next() {
            run.on_call_joined(result);
        }
        let more = run.advance();
        if run.is_over() {
            break;
        }
        if run.needs_new_session() {
            run.end_session().await;
            match register(worker, &shutdown).await? {
                Some(session) => run.session = session,
                None => return Ok(()),
            }
            continue;
        }
        if more {
            tokio::task::yield_now().await;
            continue;
        }
        let (deadline, alarm) = (run.deadline(), run.alarm);
        tokio::select! {
            Some(joined) = run.handlers.join_next_with_id(), if !run.handlers.is_empty() => {
                run.on_task_joined(joined);
                while let Some(joined) = run.handlers.try_join_next_with_id() {
                    run.on_task_joined(joined);
                }
            }
            Some(result) = run.calls.join_next(), if !run.calls.is_empty() => run.on_call_joined(result),
            () = shutdown.cancelled(), if deadline.is_none() => {}
            () = async { sleep_until(deadline.expect("checked before")).await }, if deadline.is_some() => {
                run.deadline_passed();
            }
            () = async { sleep_until(alarm.expect("checked before")).await }, if alarm.is_some() => {}
        }
    }
    run.close().await
}

struct Run<'a, B> {
    worker: &'a Worker<B>,
    uplink: Arc<dyn Uplink>,
    session: Session,
    stage: Stage,
    /// Claimed jobs that have not started, in the server's order.
    waiting: VecDeque<WaitingJob>,
    running: HashMap<Claim, Running>,
    /// Handlers that lost their claim and have not stopped yet. They still occupy a slot.
    abandoned: HashMap<Id, AbandonedTask>,
    /// The next time at which something may be overdue.
    alarm: Option<Instant>,
    /// The affinity that is loaded.
    loaded_affinity: Option<String>,
    /// The task that is loading another affinity.
    loading: Option<Id>,
    outcomes: Outcomes,
    /// Jobs that the server canceled, and whether our outcome was confirmed. An entry is retained until a heartbeat
    /// that started after the confirmation, because an older heartbeat may still name the job and would cancel a new
    /// attempt of it.
    canceled: HashMap<Uuid, bool>,
    handlers: JoinSet<TaskResult>,
    calls: JoinSet<CallResult>,
    /// Claims in flight.
    claims_in_flight: Vec<AbortHandle>,
    /// The last claim returned as many jobs as requested, so there are probably more.
    last_claim_was_full: bool,
    /// Settles in flight, by number, with their jobs.
    settles_in_flight: BTreeMap<u64, Vec<Uuid>>,
    settle_count: u64,
    heartbeat_in_flight: bool,
    /// The lease has expired.
    lease_expired: bool,
    /// A claim got no response, so the server may have assigned jobs to this worker that it does not know. No more jobs
    /// are claimed, and once everything else is done, a new registration returns them to the queue.
    claim_response_lost: bool,
    refused: Option<Box<Problem>>,
    claim_backoff: Backoff,
    settle_backoff: Backoff,
    heartbeat_backoff: Backoff,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Working,
    /// No new jobs are started; running ones may finish.
    Draining {
        until: Instant,
    },
    /// Running handlers were cancelled.
    Stopping {
        until: Instant,
    },
    /// Handlers are no longer waited for; remaining outcomes are sent.
    Settling {
        until: Instant,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Claim {
    job: Uuid,
    epoch: i64,
}

struct Running {
    cancellation: CancellationToken,
    /// The handler's task, or that of the preceding load.
    task: AbortHandle,
    canceled: bool,
    /// When the task is aborted after a cancellation of its job.
    abort_at: Option<Instant>,
}

enum TaskResult {
    Handler { claim: Claim, outcome: Verdict, context: JobContext },
    Loader { context: JobContext, affinity: String, result: Result<(), HandlerError> },
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(worker: &'a Worker<B>, session: Session) -> Self {
        Self {
            worker,
            uplink: Arc::new(BackendUplink::new(worker.backend.clone())),
            session,
            stage: Stage::Working,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            abandoned: HashMap::new(),
            alarm: None,
            loaded_affinity: None,
            loading: None,
            outcomes: Outcomes::default(),
            canceled: HashMap::new(),
            handlers: JoinSet::new(),
            calls: JoinSet::new(),
            claims_in_flight: Vec::new(),
            last_claim_was_full: false,
            settles_in_flight: BTreeMap::new(),
            settle_count: 0,
            heartbeat_in_flight: false,
            lease_expired: false,
            claim_response_lost: false,
            refused: None,
            claim_backoff: Backoff::new(),
            settle_backoff: Backoff::new(),
            heartbeat_backoff: Backoff::new(),
        }
    }

    /// Starts everything that can be started now. Calls go first, so that the server works while jobs start here.
    /// Returns true if more jobs can be started.
    fn advance(&mut self) -> bool {
        if self.lease_expired {
            return false;
        }
        self.handle_overdue();
        self.settle();
        self.claim(Duration::ZERO);
        let more = self.start_jobs();
        self.send_heartbeat(Duration::ZERO);
        let handlers_done = self.running.is_empty() && self.waiting.is_empty();
        if handlers_done && matches!(self.stage, Stage::Draining { .. } | Stage::Stopping { .. }) {
            self.stage = Stage::Settling { until: after(self.session.lease) };
        }
        more
    }

    fn is_being_settled(&self, job: Uuid) -> bool {
        self.settles_in_flight.values().flatten().any(|settled| *settled == job)
    }

    fn is_settled(&self) -> bool {
        self.outcomes.is_empty() && self.settles_in_flight.is_empty()
    }

    fn is_over(&self) -> bool {
        match self.stage {
            Stage::Working => false,
            Stage::Draining { .. } | Stage::Stopping { .. } => self.lease_expired,
            Stage::Settling { until } => self.lease_expired || self.is_settled() || until <= Instant::now(),
        }
    }

    fn has_free_slot(&self) -> bool {
        self.stage == Stage::Working
            && self.loading.is_none()
            && self.outcomes.len() < MAX_UNSETTLED
            && self.running.len() + self.abandoned.len() < self.worker.settings.concurrency
    }

    /// Starts up to `START_BATCH` waiting jobs. Returns true if more can be started.
    fn start_jobs(&mut self) -> bool {
        for _ in 0..START_BATCH {
            if !self.has_free_slot() {
                return false;
            }
            let Some(WaitingJob { job, .. }) = self.waiting.front() else { return false };
            let swap = job.affinity.is_some() && job.affinity != self.loaded_affinity;
            let is_idle = self.running.is_empty() && self.abandoned.is_empty();
            if swap && self.worker.handlers.loader.is_some() && !is_idle {
                // Running jobs need the affinity that is loaded.
                return false;
            }
            let Some(WaitingJob { job, .. }) = self.waiting.pop_front() else { return false };
            let cancellation = CancellationToken::new();
            let claim = Claim { job: job.id, epoch: job.epoch };
            let affinity = job.affinity.clone();
            let context = JobContext::new(
                job,
                self.session.id,
                self.worker.states.clone(),
                cancellation.clone(),
                self.uplink.clone(),
            );
            let task = match affinity {
                Some(affinity) if swap => self.swap(context, affinity),
                _ => self.start(context),
            };
            self.running.insert(claim, Running { cancellation, task, canceled: false, abort_at: None });
        }
        self.has_free_slot() && !self.waiting.is_empty()
    }

    fn swap(&mut self, context: JobContext, affinity: String) -> AbortHandle {
        let Some(loader) = self.worker.handlers.loader.clone() else {
            // Without a loader, the handler itself loads the affinity.
            self.loaded_affinity = Some(affinity);
            return self.start(context);
        };
        self.loaded_affinity = None;
        let task = self.handlers.spawn(async move {
            context.refine(|signal| signal.state = Some("loading".into()));
            let result = guarded(async { loader(affinity.clone()).await }).await;
            TaskResult::Loader { context, affinity, result }
        });
        self.loading = Some(task.id());
        task
    }

    fn start(&mut self, context: JobContext) -> AbortHandle {
        let claim = Claim { job: context.id(), epoch: context.job().epoch };
        if context.job().state == "loading" {
            context.refine(|signal| signal.state = Some("working".into()));
        }
        let handler = self.worker.handlers.handler_for(context.job());
        self.handlers.spawn(async move {
            let work = async {
                let Some(handler) = handler else {
                    let message = format!("This worker has no handler for kind {:?}.", context.kind());
                    return Err(HandlerError::retryable("no_handler", message));
                };
                let verdict = guarded(async { handler(context.clone()).await }).await;
                context.flush().await;
                verdict
            };
            let outcome = guarded(work).await;
            TaskResult::Handler { claim, outcome, context }
        })
    }

    fn on_call_joined(&mut self, result: Result<CallResult, JoinError>) {
        match result {
            Ok(result) => self.on_call_result(result),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // A claim that a drain aborted.
            Err(_) => {}
        }
    }

    fn on_task_joined(&mut self, joined: Result<(Id, TaskResult), JoinError>) {
        let task = match &joined {
            Ok((task, _)) => *task,
            Err(error) => error.id(),
        };
        self.loading = self.loading.filter(|loader| *loader != task);
        if let Ok((_, TaskResult::Loader { affinity, result: Ok(()), .. })) = &joined {
            self.loaded_affinity = Some(affinity.clone());
        }
        if self.abandoned.remove(&task).is_some() {
            return;
        }
        match joined {
            Ok((_, result)) => self.on_task_ended(result),
            // Panics are caught inside the tasks.
            Err(_) => self.on_aborted(task),
        }
    }

    fn on_task_ended(&mut self, result: TaskResult) {
        match result {
            TaskResult::Handler { claim, outcome, context } => self.on_handler_ended(claim, outcome, &context),
            TaskResult::Loader { context, affinity, result } => {
                let claim = Claim { job: context.id(), epoch: context.job().epoch };
                match result {
                    Ok(()) if !context.cancellation().is_cancelled() => {
                        context.refine(|signal| signal.state = Some("working".into()));
                        let task = self.start(context);
                        if let Some(running) = self.running.get_mut(&claim) {
                            running.task = task;
                        }
                    }
                    // Canceled or stopped before its handler started.
                    Ok(()) => self.on_handler_ended(claim, Err(HandlerError::cancel()), &context),
                    Err(error) => {
                        self.on_handler_ended(claim, Err(error), &context);
                        self.release_needing(&affinity);
                    }
                }
            }
        }
    }

    fn on_handler_ended(&mut self, claim: Claim, verdict: Verdict, context: &JobContext) {
        let Some(running) = self.running.remove(&claim) else { return };
        context.has_ended();
        let Claim { job, epoch } = claim;
        let stopped = matches!(self.stage, Stage::Stopping { .. }) && verdict.is_err();
        self.outcomes.push(if running.canceled {
            outcomes::plain(job, epoch, OutcomeKind::Cancel)
        } else if stopped {
            outcomes::plain(job, epoch, OutcomeKind::Release)
        } else {
            let facts = if verdict.is_ok() { context.take_facts() } else { None };
            OutcomeRequest { facts, ..outcomes::of_verdict(job, epoch, verdict) }
        });
    }
}
