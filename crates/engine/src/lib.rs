//! The engine: background tasks on a store (sweeps, promotion, dispatch, delivery, pruning), container runtimes, and
//! the long polls of clients.

mod engine;
pub(crate) mod fleet;
pub(crate) mod heartbeat;
pub mod outbound;
pub(crate) mod prune;
pub mod queue;
pub mod runtimes;
pub(crate) mod signals;
mod task;
pub mod trace_spans;
pub mod triggers;
pub(crate) mod workflows;

pub use engine::{Engine, EngineOptions};
pub use queue::relay::{Relay, RelaySubscription};
pub use task::TaskStatus;
