//! A worker: handlers by kind, run on the jobs of some queues.
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

mod bounds;
mod context;
mod handler;
mod outcomes;
mod run;
mod session;
mod statistics;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::num::NonZero;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio_util::sync::CancellationToken;
use wire::{ClaimedJob, Problem, WorkerRequest};

use crate::backend::Backend;
use handler::{Handler, Loader};
use statistics::Counters;

pub use context::JobContext;
pub use handler::HandlerError;
pub use statistics::Statistics;

pub struct Worker<B> {
    backend: Arc<B>,
    settings: Settings,
    handlers: Handlers,
    counters: Arc<Counters>,
}

#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    #[error("the worker was refused: {}", .0.detail)]
    Refused(Box<Problem>),
}

#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum WorkerBuildError {
    #[error("a worker needs at least one queue")]
    NoQueue,
    #[error("a worker needs at least one handler")]
    NoHandler,
}

impl<B: Backend> Worker<B> {
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
        }
    }

    /// Works until `shutdown` is cancelled or the server asks to drain, then hands back what it has and deregisters.
    ///
    /// An outage is waited out. A lease that passed is answered with a new registration. Only a refusal ends the run
    /// with an error: a revoked token, none where one is wanted now, a queue that this token may not serve.
    pub async fn run(&self, shutdown: CancellationToken) -> Result<Statistics, WorkerError> {
        run::run(self, shutdown).await?;
        Ok(self.statistics())
    }

    /// Counts since the worker was built; may be read while it runs.
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
    fn of(&self, job: &ClaimedJob) -> Option<Handler> {
        self.by_kind.get(&job.kind).or(self.any.as_ref()).cloned()
    }
}

pub struct WorkerBuilder<B> {
    backend: B,
    request: WorkerRequest,
    concurrency: usize,
    prefetch: Option<usize>,
    drain_grace: Duration,
    stop_grace: Duration,
    handlers: Handlers,
}

impl<B: Backend> WorkerBuilder<B> {
    /// What people see; it need not be unique.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.request.name = name.into();
        self
    }

    pub fn queue(mut self, queue: impl Into<String>) -> Self {
        self.request.queues.push(queue.into());
        self
    }

    pub fn queues(mut self, queues: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.queues.extend(queues.into_iter().map(Into::into));
        self
    }

    /// Affinities this worker can bring up; all unless set.
    pub fn affinities(mut self, affinities: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.affinities = Some(affinities.into_iter().map(Into::into).collect());
        self
    }

    /// Kinds to take for `handle_any`; all unless set.
    pub fn kinds(mut self, kinds: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.request.kinds = Some(kinds.into_iter().map(Into::into).collect());
        self
    }

    /// Jobs that run at once; the number of cores unless set.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency.max(1);
        self
    }

    /// Jobs claimed ahead of those that run; as many as run unless set. Set it to 0 where jobs take long: what one
    /// worker has claimed ahead, no other can run, and a job's timeout counts from its claim. One that has waited here
    /// for half of its timeout is not started any more: it goes back to its queue, which costs no attempt.
    pub fn prefetch(mut self, prefetch: usize) -> Self {
        self.prefetch = Some(prefetch);
        self
    }

    /// Seconds of silence after which the jobs go to others.
    pub fn lease_s(mut self, lease_s: i64) -> Self {
        self.request.lease_s = Some(lease_s);
        self
    }

    /// How long running handlers may go on once the worker is to stop.
    pub fn drain_grace(mut self, grace: Duration) -> Self {
        self.drain_grace = grace;
        self
    }

    /// How long handlers may take to stop once they are told by their cancellation token: after the drain, and whenever
    /// a job is called off, times out or goes to another worker. Then they are aborted at their next `await`.
    pub fn stop_grace(mut self, grace: Duration) -> Self {
        self.stop_grace = grace;
        self
    }

    /// Runs `handler` on jobs of this kind. What it returns may have up to 1 MiB as JSON; more fails the job.
    pub fn handle<F, Fut, T>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + 'static,
    {
        self.handlers.by_kind.insert(kind.into(), handler::handler(handler));
        self
    }

    /// Runs `handler` on jobs of every kind that has no handler of its own.
    pub fn handle_any<F, Fut, T>(mut self, handler: F) -> Self
    where
        F: Fn(JobContext) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<T, HandlerError>> + Send + 'static,
        T: Serialize + 'static,
    {
        self.handlers.any = Some(handler::handler(handler));
        self
    }

    /// Brings up an affinity, say a model, before a job that needs another one than is held. Nothing else runs
    /// meanwhile. An error fails that job; the others that were claimed for the same affinity go back to their queues.
    pub fn loader<F, Fut>(mut self, loader: F) -> Self
    where
        F: Fn(String) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<(), HandlerError>> + Send + 'static,
    {
        self.handlers.loader = Some(Arc::new(move |affinity| Box::pin(loader(affinity))));
        self
    }

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
        Ok(Worker { backend: Arc::new(self.backend), settings, handlers: self.handlers, counters })
    }
}
