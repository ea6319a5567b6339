//! A worker: runs handlers by kind on the jobs of some queues.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use client::{Client, HandlerError, JobContext, Worker};
//!
//! async fn greet(job: JobContext) -> Result<String, HandlerError> {
//!     let name: String = job.payload()?;
//!     job.phase("report");
//!     Ok(format!("Hello, {name}!"))
//! }
//!
//! let worker = Worker::builder(Client::new("http://127.0.0.1:7717")?).queue("default").handle("greet", greet).build()?;
//! worker.run(tokio_util::sync::CancellationToken::new()).await?;
//! # Ok(()) }
//! ```

pub(crate) mod bounds;
mod context;
pub(crate) mod handler;
mod outcomes;
mod run;
pub(crate) mod session;
mod shared_states;
mod statistics;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use serde::Serialize;
use tokio_util::sync::CancellationToken;
use wire::{ClaimedJob, Problem, WorkerRequest};

use crate::backend::Backend;
use crate::queue::job::Job;
use crate::workflows::Workflow;
use handler::{Handler, Loader};
use shared_states::SharedStates;
use statistics::Counters;

pub use context::JobContext;
pub use handler::HandlerError;
pub use statistics::Statistics;

/// Claims jobs and runs handlers on them.
pub struct Worker<B> {
    backend: Arc<B>,
    settings: Settings,
    handlers: Handlers,
    states: Arc<SharedStates>,
    counters: Arc<Counters>,
}

/// Why a worker ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerError {
    /// The server rejected the worker: a revoked token, or a queue that the token may not use.
    #[error("the worker was rejected: {}", .0.detail)]
    Refused(Box<Problem>),
}

/// Why a worker cannot be built.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WorkerBuildError {
    /// No queue was set.
    #[error("a worker needs at least one queue")]
    NoQueue,
    /// No handler was set.
    #[error("a worker needs at least one handler")]
    NoHandler,
}

impl<B: Backend> Worker<B> {
    /// Starts to build a worker on this backend.
    pub fn builder(backend: B) -> WorkerBuilder<B> {
        let concurrency = std::thread::available_parallelism().map_or(1, NonZero::get);
        WorkerBuilder {
            backend,
            request: WorkerRequest { name: format!("worker-{}", std::process::id()), ..WorkerRequest::default() },
            concurrency,
            prefetch: None,
            drain_grace: Duration::from_secs(30),
            stop_grace: Duration::from_secs(5),
            handlers: Handlers { by_kind: HashMap::new(), any: None, loader: None },
            is_strict: false,
            states: SharedStates::default(),
        }
    }

    /// Claims and runs jobs until `shutdown` is cancelled or the server requests a drain, then releases what it has and
    /// deregisters.
    ///
    /// Outages are retried. After an expired lease the worker registers again. Only a rejection ends the run with an
    /// error: a revoked or missing token, or a queue that the token may not use.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<Statistics, WorkerError> {
        run::run(self, shutdown).await?;
        Ok(self.statistics())
    }

    /// Counters since the worker was built; can be read while it runs.
    pub fn statistics(&self) -> Statistics {
        self.counters.read()
    }
}

struct Settings {
    request: WorkerRequest,
    concurrency: usize,
    prefetch: usize,
    drain_grace: Duration,
    stop_grace: Duration,
}

struct Handlers {
    by_kind: HashMap<String, Handler>,
    any: Option<Handler>,
    loader: Option<Loader>,
}

impl Handlers {
    fn handler_for(&self, job: &ClaimedJob) -> Option<Handler> {
        self.by_kind.get(&job.kind).or(self.any.as_ref()).cloned()
    }
}

fn workflow_handler<F, Fut, T>(workflow: F, is_strict: bool) -> Handler
where
    F: Fn(Workflow) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
    T: Serialize + Send + 'static,
{
    let workflow = Arc::new(workflow);
    Arc::new(move |job| -> BoxFuture<'static, _> { Box::pin(crate::workflows::run(workflow.clone(), job, is_strict)) })
}

/// Builds a worker.
pub struct WorkerBuilder<B> {
    backend: B,
    request: WorkerRequest,
    concurrency: usize,
    prefetch: Option<usize>,
    drain_grace: Duration,
    stop_grace: Duration,
    handlers: Handlers,
    is_strict: bool,
    states: SharedStates,
}

impl<B: Backend> WorkerBuilder<B> {
    /// Sets the name shown to users; it need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.request.name = name.into();
        self
    }

    /// Adds a queue to claim from.
    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.request.queues.push(queue.into());
        self
    }

    /// Adds queues to claim from.
    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.queues.extend(queues.into_iter().map(Into::into));
        self
    }

    /// Sets the affinities that this worker can load [default: all].
    pub fn affinities(mut self, affinities: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.affinities = Some(affinities.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the kinds to claim for `handle_any` [default: all].
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.kinds = Some(kinds.into_iter().map(Into::into).collect());
        self
    }

    /// Sets the maximum number of jobs that run at the same time [default: the number of cores].
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Sets the number of jobs claimed ahead of the running ones [default: the concurrency]. Set it to 0 for long jobs:
    /// no other worker can run a prefetched job, and a job's timeout counts from its claim. A job that has waited for
    /// half of its timeout is not started here; it returns to its queue without using up an attempt.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Sets the seconds without a heartbeat after which the jobs are given to other workers [default: 30].
    pub fn lease_s(mut self, lease_s: i64) -> Self {
        self.request.lease_s = Some(lease_s);
        self
    }

    /// Sets how long running handlers may continue when the worker stops [default: 30 s].
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.drain_grace = grace;
        self
    }

    /// Sets how long handlers may continue after their cancellation token is cancelled: after a drain, or when a job is
    /// canceled, times out or is claimed by another worker. Then they are aborted at their next `await` [default: 5 s].
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = grace;
        self
    }

    /// Shares a value with all handlers, for example a connection pool. `JobContext::state` returns it by its type.
    pub fn state<S: Send + Sync + 'static>(mut self, state: S) -> Self {
        self.states.insert(state);
        self
    }

    /// Runs `handler` on jobs of this kind. A result may have up to 1 MiB of JSON; a larger one fails the job.
    pub fn handle<F, Fut, T>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + 'static,
    {
        self.handlers.by_kind.insert(kind.into(), handler::handler(handler));
        self
    }

    /// Runs `handler` on jobs of every kind without a handler of its own.
    pub fn handle_any<F, Fut, T>(mut self, handler: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + 'static,
    {
        self.handlers.any = Some(handler::handler(handler));
        self
    }

    /// Runs jobs of this type with `handler`, and claims from their queue.
    pub fn job<J, F, Fut>(self, handler: F) -> Self
    where
        J: Job,
        F: Fn(J, JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Output, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        self.queue_once(J::QUEUE).handle(J::KIND, move |context: JobContext| {
            let handler = handler.clone();
            async move { handler(context.payload()?, context).await }
        })
    }

    /// Runs `workflow` on jobs of this kind: a handler that records its finished steps.
    pub fn workflow<F, Fut, T>(mut self, kind: impl Into<String>, workflow: F) -> Self
    where
        F: Fn(Workflow) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        self.handlers.by_kind.insert(kind.into(), workflow_handler(workflow, self.is_strict));
        self
    }

    /// Runs `workflow` on jobs of every kind without a handler of its own.
    pub fn workflow_any<F, Fut, T>(mut self, workflow: F) -> Self
    where
        F: Fn(Workflow) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + Send + 'static,
    {
        self.handlers.any = Some(workflow_handler(workflow, self.is_strict));
        self
    }

    /// Runs jobs of this type with `workflow`, and claims from their queue.
    pub fn workflow_job<J, F, Fut>(self, workflow: F) -> Self
    where
        J: Job,
        F: Fn(J, Workflow) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<J::Output, HandlerError>> + Send + 'static,
    {
        let handler = Arc::new(workflow);
        self.queue_once(J::QUEUE).workflow(J::KIND, move |workflow: Workflow| {
            let handler = handler.clone();
            async move { handler(workflow.payload()?, workflow).await }
        })
    }

    /// Fails a workflow with `workflow_drift` if its handler does not match its journal. Default: a warning in the signal
    /// of the job. Applies to the workflows that are added after this call.
    pub fn strict_workflows(mut self) -> Self {
        self.is_strict = true;
        self
    }

    fn queue_once(self, queue: &str) -> Self {
        if self.request.queues.iter().any(|known| known == queue) { self } else { self.queue(queue) }
    }

    /// Sets a function that loads an affinity, such as a model, before a job that needs another one than is loaded. No
    /// job runs during a load. An error fails that job; other claimed jobs with the same affinity return to their
    /// queues.
    pub fn loader<F, Fut>(mut self, loader: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.handlers.loader = Some(Arc::new(move |affinity| Box::pin(loader(affinity))));
        self
    }

    /// Builds the worker.
    pub fn build(mut self) -> Result<Worker<B>, WorkerBuildError> {
        if self.request.queues.is_empty() {
            return Err(WorkerBuildError::NoQueue);
        }
        if self.handlers.any.is_none() {
            if self.handlers.by_kind.is_empty() {
                return Err(WorkerBuildError::NoHandler);
            }
            let mut kinds: Vec<_> = self.handlers.by_kind.keys().cloned().collect();
            kinds.sort();
            self.request.kinds = Some(kinds);
        } else if let Some(kinds) = &mut self.request.kinds {
            kinds.extend(self.handlers.by_kind.keys().cloned());
            kinds.sort();
            kinds.dedup();
        }
        let settings = Settings {
            request: self.request,
            concurrency: self.concurrency,
            prefetch: self.prefetch.unwrap_or(self.concurrency),
            drain_grace: self.drain_grace,
            stop_grace: self.stop_grace,
        };
        let counters = Arc::default();
        let states = Arc::new(self.states);
        Ok(Worker { backend: Arc::new(self.backend), settings, handlers: self.handlers, states, counters })
    }
}
