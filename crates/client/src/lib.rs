//! The Rust SDK: a client for the HTTP API, and a worker with handlers by kind.
//!
//! `Client` calls a server. `Worker` runs handlers on any `Backend`: a `Client`, or an engine in the same process.
//! `Workflow` is the context of handlers that record their finished steps. `testing` runs handlers without a server.

#![deny(missing_docs)]

pub(crate) mod access;
mod backend;
mod client;
mod error;
pub(crate) mod fleet;
pub(crate) mod queue;
pub(crate) mod runtimes;
mod signals;
pub mod testing;
pub(crate) mod triggers;
pub(crate) mod workflows;

pub use access::history::HistoryFilter;
pub use backend::{Backend, BackendError, HeldClaim};
pub use client::{Client, ClientBuilder};
pub use error::ClientError;
pub use queue::artifacts::Download;
pub use queue::job::Job;
pub use queue::jobs::JobFilter;
#[cfg(feature = "tokio-postgres")]
pub use queue::transactional::enqueue_in;
pub use queue::transactional::{EnqueueStatement, TransactionalError};
pub use queue::worker::{HandlerError, JobContext, Statistics, Worker, WorkerBuildError, WorkerBuilder, WorkerError};
pub use reqwest::Response as ResponseStream;
pub use runtimes::declarations::{OperationResult, RuntimeOperation};
pub use signals::SignalResponse;
pub use triggers::dead_letters::DeadLetterPage;
pub use triggers::deliveries::DeliveryFilter;
pub use wire;
pub use workflows::runs::RunFilter;
pub use workflows::{
    ApprovalWait, ChildOutcome, ChildState, EventWait, Gather, Sleep, Spawn, StartedChild, StartedChildren, Step,
    StepRetry, TimedWait, Workflow,
};
