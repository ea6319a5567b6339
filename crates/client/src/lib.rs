//! The Rust SDK: a client for the HTTP API and a worker with handlers by kind.
//!
//! `Client` speaks to a server. `Worker` runs handlers on any `Backend`: a `Client`, or an engine in the same process.

mod artifacts;
mod backend;
mod calls;
mod client;
mod dead_letters;
mod deliveries;
mod error;
mod history;
mod jobs;
mod pools;
mod queues;
mod runtimes;
mod signals;
mod subjects;
mod tokens;
mod triggers;
mod worker;
mod workers;

pub use artifacts::Download;
pub use backend::{Backend, BackendError};
pub use client::{Client, ClientBuilder};
pub use dead_letters::DeadLetterPage;
pub use deliveries::DeliveryFilter;
pub use error::ClientError;
pub use history::HistoryFilter;
pub use jobs::JobFilter;
pub use reqwest::Response as Answer;
pub use runtimes::{Operated, RuntimeVerb};
pub use signals::ToldSignal;
pub use wire;
pub use worker::{HandlerError, JobContext, Statistics, Worker, WorkerBuildError, WorkerBuilder, WorkerError};
