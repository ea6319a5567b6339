//! Tests of handlers and workflows without a server.
//!
//! `TestServer` keeps jobs and journals in memory and is the backend of a worker. Its time is virtual: sleeps, timeouts and
//! delays of retries take no time.
//!
//! ```
//! use std::time::Duration;
//!
//! use client::testing::TestServer;
//! use client::{HandlerError, Workflow};
//!
//! async fn remind(workflow: Workflow) -> Result<String, HandlerError> {
//!     workflow.sleep(Duration::from_secs(3 * 24 * 3_600)).await?;
//!     Ok("reminded".to_owned())
//! }
//!
//! # tokio_test(async {
//! let server = TestServer::new();
//! let job = server.push("mail", "remind", &())?;
//! server.run(server.worker().queue("mail").workflow("remind", remind)).await?;
//! assert_eq!(server.result::<String>(job)?, "reminded");
//! # Ok::<(), Box<dyn std::error::Error>>(()) });
//! # fn tokio_test(test: impl Future<Output = Result<(), Box<dyn std::error::Error>>>) {
//! #     tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test).unwrap()
//! # }
//! ```

mod backend;
mod journal;
mod server;
mod state;
#[cfg(test)]
mod tests;

pub use server::{TestJob, TestJobState, TestServer, TestServerError};
