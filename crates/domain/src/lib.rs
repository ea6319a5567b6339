//! The rules of Windlass: what a job may do next, how long it waits, which job a worker gets, what a name may be.
//!
//! Nothing here reads a clock, draws a random number, talks to a database or knows JSON. Callers bring the time and
//! the dice; every function answers the same for the same input, which is what the model tests rely on.

pub mod access;
pub mod address;
pub mod backoff;
pub mod call;
pub mod circuit;
pub mod claim;
pub mod dead_letter;
pub mod eta;
pub mod failure;
pub mod id;
pub mod job;
pub mod lease;
pub mod limits;
pub mod line;
pub mod name;
pub mod origin;
pub mod pool;
pub mod principal;
pub mod process;
pub mod queue;
pub mod retry;
pub mod runtime;
pub mod selector;
pub mod signal;
pub mod signature;
pub mod sketch;
pub mod time;
pub mod token;
pub mod trigger;
pub mod ttfs;
pub mod why;

pub use access::{Access, AccessError, Right, Rights, Role};
pub use backoff::Backoff;
pub use claim::{Affinity, LaneHead};
pub use dead_letter::Resolution;
pub use id::{ClaimId, DeadLetterId, DeliveryId, EventId, JobId, NodeId, TenantId, TokenId, TriggerId, WorkerId};
pub use job::{Epoch, Job, JobError, JobState, Outcome, Refusal, State};
pub use name::{Label, Name, NameError};
pub use origin::Origin;
pub use principal::Standing;
pub use process::ProcessSettings;
pub use queue::{KindSettings, QueueSettings, Webhook};
pub use retry::RetryPolicy;
pub use runtime::RuntimeName;
pub use selector::{Condition, Fact, FactValue, Facts, Selector, Test};
pub use signal::SignalKind;
pub use time::Time;
pub use token::TokenText;
