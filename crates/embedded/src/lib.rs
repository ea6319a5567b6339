//! The engine embedded in the user's own process, on either database, without a server. Handlers and guarantees are the
//! same.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! use embedded::{Embedded, JobBuilder};
//!
//! let engine = Embedded::open("sqlite:app.db").await?;
//! engine.enqueue(JobBuilder::new("mail", "welcome")?.payload(&"ada@example.org")?).await?;
//! # Ok(()) }
//! ```

mod backend;
mod engine;
mod job;
mod journal;

pub use backend::Backend;
pub use client::{HandlerError, JobContext, Statistics, Worker, Workflow};
pub use engine::{Embedded, EmbeddedError};
pub use job::JobBuilder;
