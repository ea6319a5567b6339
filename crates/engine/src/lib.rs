//! What runs by itself: the tasks that sweep, promote, fold and prune, and the waiting that long-polls share.

mod engine;
pub mod openai;
pub mod outbound;
mod pool;
mod relay;
pub mod runtime;
pub mod scripting;
mod task;
mod tasks;
pub mod trigger;
pub mod waiting;

pub use engine::{Engine, EngineOptions};
pub use relay::{Hearing, Relay};
pub use task::TaskStatus;
