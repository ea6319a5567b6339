//! The one loop of a worker. It alone owns the state; handlers and calls to the server are tasks that report back, so
//! nothing here is shared or locked, and claiming, running and settling overlap.

mod calls;
mod overdue;
mod stop;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use tokio::task::{AbortHandle, Id, JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use uuid::Uuid;
use wire::{OutcomeKind, OutcomeRequest, Problem};

use super::context::{BackendUplink, JobContext, Uplink};
use super::handler::{HandlerError, Verdict, guarded};
use super::outcomes::{self, Outcomes};
use super::session::{Backoff, Session, register};
use super::{Worker, WorkerError};
use crate::backend::Backend;
use calls::Answer;
use overdue::{Abandoned, Waiting, after};

/// Unsettled outcomes past which no further job is started: during an outage, memory stays bounded.
const BACKLOG: usize = 10_000;
/// Jobs that are started before answers are looked at again: the next call to the server does not wait for all of them.
const STARTED_AT_ONCE: usize = 64;

pub(super) async fn run<B: Backend>(worker: &Worker<B>, shutdown: CancellationToken) -> Result<(), WorkerError> {
    let Some(session) = register(worker, &shutdown).await? else { return Ok(()) };
    let mut run = Run::new(worker, session);
    loop {
        // First of all: what is answered in the same moment begins nothing any more.
        if shutdown.is_cancelled() && run.deadline().is_none() {
            run.drain();
        }
        // Then all that was answered meanwhile: one answer's jobs must not keep another call from being made.
        while let Some(answer) = run.calls.try_join_next() {
            run.called(answer);
        }
        let more = run.advance();
        if run.is_over() {
            break;
        }
        if run.needs_new_session() {
            run.leave_session().await;
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
                run.joined(joined);
                while let Some(joined) = run.handlers.try_join_next_with_id() {
                    run.joined(joined);
                }
            }
            Some(answer) = run.calls.join_next(), if !run.calls.is_empty() => run.called(answer),
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
    /// Claimed and not yet started, in the order the server gave.
    waiting: VecDeque<Waiting>,
    running: HashMap<Claim, Running>,
    /// Handlers whose claim is lost but which have not stopped yet: they still take up a slot.
    abandoned: HashMap<Id, Abandoned>,
    /// The next moment at which something may be overdue.
    alarm: Option<Instant>,
    /// The affinity that is loaded.
    held: Option<String>,
    /// The task that loads another.
    loading: Option<Id>,
    outcomes: Outcomes,
    /// Jobs the server called off, and whether it has our answer. Kept until a heartbeat that began after the answer, so
    /// that an older one which still names the job does not hit a new attempt of it.
    called_off: HashMap<Uuid, bool>,
    handlers: JoinSet<Ended>,
    calls: JoinSet<Answer>,
    /// The claims that are on their way.
    claiming: Vec<AbortHandle>,
    /// The last claim brought as many jobs as one can: there are more.
    plenty: bool,
    /// The settles that are on their way, by their numbers, with their jobs.
    settling: BTreeMap<u64, Vec<Uuid>>,
    settles: u64,
    beating: bool,
    /// The lease has passed.
    gone: bool,
    /// A claim got no answer, so the server may count jobs as ours that we know nothing of. Nothing more is claimed, and
    /// once all else is done a new registration gives them back.
    suspect: bool,
    refused: Option<Box<Problem>>,
    claim_backoff: Backoff,
    settle_backoff: Backoff,
    beat_backoff: Backoff,
}

#[derive(Clone, Copy, PartialEq)]
enum Stage {
    Working,
    /// Nothing new is started; what runs may end by itself.
    Draining {
        until: Instant,
    },
    /// What still runs was told to stop.
    Stopping {
        until: Instant,
    },
    /// No handler is waited for any more; outcomes are still to be told.
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
    /// The handler's, or that of the load before it.
    task: AbortHandle,
    called_off: bool,
    /// When the task is aborted, once its job was called off.
    abort_at: Option<Instant>,
}

enum Ended {
    Handler { claim: Claim, outcome: Verdict, context: JobContext },
    Loader { context: JobContext, affinity: String, result: Result<(), HandlerError> },
}

impl<'a, B: Backend> Run<'a, B> {
    fn new(worker: &'a Worker<B>, session: Session) -> Self {
        Self {
            worker,
            uplink: Arc::new(BackendUplink { backend: worker.backend.clone(), tasks: TaskTracker::new() }),
            session,
            stage: Stage::Working,
            waiting: VecDeque::new(),
            running: HashMap::new(),
            abandoned: HashMap::new(),
            alarm: None,
            held: None,
            loading: None,
            outcomes: Outcomes::default(),
            called_off: HashMap::new(),
            handlers: JoinSet::new(),
            calls: JoinSet::new(),
            claiming: Vec::new(),
            plenty: false,
            settling: BTreeMap::new(),
            settles: 0,
            beating: false,
            gone: false,
            suspect: false,
            refused: None,
            claim_backoff: Backoff::new(),
            settle_backoff: Backoff::new(),
            beat_backoff: Backoff::new(),
        }
    }

    /// Starts what can be started now: calls first, so that the server has something to do while jobs start here. Gives whether
    /// there is more.
    fn advance(&mut self) -> bool {
        if self.gone {
            return false;
        }
        self.look_for_overdue();
        self.settle();
        self.claim(Duration::ZERO);
        let more = self.start_jobs();
        self.beat(Duration::ZERO);
        let handlers_done = self.running.is_empty() && self.waiting.is_empty();
        if handlers_done && matches!(self.stage, Stage::Draining { .. } | Stage::Stopping { .. }) {
            self.stage = Stage::Settling { until: after(self.session.lease) };
        }
        more
    }

    fn is_being_settled(&self, job: Uuid) -> bool {
        self.settling.values().flatten().any(|settled| *settled == job)
    }

    fn is_settled(&self) -> bool {
        self.outcomes.is_empty() && self.settling.is_empty()
    }

    fn is_over(&self) -> bool {
        match self.stage {
            Stage::Working => false,
            Stage::Draining { .. } | Stage::Stopping { .. } => self.gone,
            Stage::Settling { until } => self.gone || self.is_settled() || until <= Instant::now(),
        }
    }

    fn has_room(&self) -> bool {
        self.stage == Stage::Working
            && self.loading.is_none()
            && self.outcomes.len() < BACKLOG
            && self.running.len() + self.abandoned.len() < self.worker.settings.concurrency
    }

    /// Starts some of those that wait. Gives whether there are more.
    fn start_jobs(&mut self) -> bool {
        for _ in 0..STARTED_AT_ONCE {
            if !self.has_room() {
                return false;
            }
            let Some(Waiting { job, .. }) = self.waiting.front() else { return false };
            let swap = job.affinity.is_some() && job.affinity != self.held;
            let is_idle = self.running.is_empty() && self.abandoned.is_empty();
            if swap && self.worker.handlers.loader.is_some() && !is_idle {
                // What runs needs the affinity that is held.
                return false;
            }
            let Some(Waiting { job, .. }) = self.waiting.pop_front() else { return false };
            let cancellation = CancellationToken::new();
            let claim = Claim { job: job.id, epoch: job.epoch };
            let affinity = job.affinity.clone();
            let context = JobContext::new(job, cancellation.clone(), self.uplink.clone());
            let task = match affinity {
                Some(affinity) if swap => self.swap(context, affinity),
                _ => self.start(context),
            };
            self.running.insert(claim, Running { cancellation, task, called_off: false, abort_at: None });
        }
        self.has_room() && !self.waiting.is_empty()
    }

    fn swap(&mut self, context: JobContext, affinity: String) -> AbortHandle {
        let Some(loader) = self.worker.handlers.loader.clone() else {
            // The handler brings it up by itself.
            self.held = Some(affinity);
            return self.start(context);
        };
        self.held = None;
        let task = self.handlers.spawn(async move {
            context.refine(|signal| signal.state = Some("loading".into()));
            let result = guarded(async { loader(affinity.clone()).await }).await;
            Ended::Loader { context, affinity, result }
        });
        self.loading = Some(task.id());
        task
    }

    fn start(&mut self, context: JobContext) -> AbortHandle {
        let claim = Claim { job: context.id(), epoch: context.job().epoch };
        let handler = self.worker.handlers.of(context.job());
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
            Ended::Handler { claim, outcome, context }
        })
    }

    fn called(&mut self, answer: Result<Answer, JoinError>) {
        match answer {
            Ok(answer) => self.answered(answer),
            Err(error) if error.is_panic() => std::panic::resume_unwind(error.into_panic()),
            // A claim that a drain called back.
            Err(_) => {}
        }
    }

    fn joined(&mut self, joined: Result<(Id, Ended), JoinError>) {
        let task = match &joined {
            Ok((task, _)) => *task,
            Err(error) => error.id(),
        };
        self.loading = self.loading.filter(|loader| *loader != task);
        if let Ok((_, Ended::Loader { affinity, result: Ok(()), .. })) = &joined {
            self.held = Some(affinity.clone());
        }
        if self.abandoned.remove(&task).is_some() {
            return;
        }
        match joined {
            Ok((_, ended)) => self.ended(ended),
            // Panics are caught inside the tasks.
            Err(_) => self.aborted(task),
        }
    }

    fn ended(&mut self, ended: Ended) {
        match ended {
            Ended::Handler { claim, outcome, context } => self.handler_ended(claim, outcome, &context),
            Ended::Loader { context, affinity, result } => {
                let claim = Claim { job: context.id(), epoch: context.job().epoch };
                match result {
                    Ok(()) if !context.cancellation().is_cancelled() => {
                        context.refine(|signal| signal.state = Some("working".into()));
                        let task = self.start(context);
                        if let Some(running) = self.running.get_mut(&claim) {
                            running.task = task;
                        }
                    }
                    // Called off, or told to stop, before its handler began.
                    Ok(()) => self.handler_ended(claim, Err(HandlerError::cancel()), &context),
                    Err(error) => {
                        self.handler_ended(claim, Err(error), &context);
                        self.release_needing(&affinity);
                    }
                }
            }
        }
    }

    fn handler_ended(&mut self, claim: Claim, verdict: Verdict, context: &JobContext) {
        let Some(running) = self.running.remove(&claim) else { return };
        context.has_ended();
        let Claim { job, epoch } = claim;
        let stopped = matches!(self.stage, Stage::Stopping { .. }) && verdict.is_err();
        self.outcomes.push(if running.called_off {
            outcomes::plain(job, epoch, OutcomeKind::Cancel)
        } else if stopped {
            outcomes::plain(job, epoch, OutcomeKind::Release)
        } else {
            let facts = if verdict.is_ok() { context.take_facts() } else { None };
            OutcomeRequest { facts, ..outcomes::of_verdict(job, epoch, verdict) }
        });
    }
}
