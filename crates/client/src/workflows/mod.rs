//! Runs, and durable workflows.
//!
//! `workflow` is what handlers use. `driver` runs a handler, `replay` reveals recorded results to it, and
//! `journal_writer` sends new ones.

mod children;
pub(crate) mod digest;
mod driver;
pub(crate) mod journal_writer;
mod large_result;
mod replay;
pub(crate) mod runs;
mod step;
mod undo;
mod wait;
mod workflow;

pub use children::{ChildOutcome, ChildState, Gather, Spawn, StartedChild, StartedChildren};
pub(crate) use driver::run;
pub use step::{Step, StepRetry};
pub use wait::{ApprovalWait, EventWait, Sleep, TimedWait};
pub use workflow::Workflow;
