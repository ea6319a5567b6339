//! The rules of Windlass: the job state machine, retries, claim order, selectors, signals and names.
//!
//! Pure functions: this crate does not read a clock, draw random numbers, access a database or know JSON. Callers pass
//! the time and random values, and the same input always gives the same output. The model tests rely on this.

pub mod access;
pub mod address;
pub mod fleet;
pub mod id;
pub mod id_part;
pub mod limits;
pub mod name;
pub mod queue;
pub mod runtimes;
pub mod signals;
pub mod time;
pub mod triggers;
pub mod workflows;

pub use access::principal::PrincipalRights;
pub use access::rights::{Access, AccessError, Right, Rights, Role};
pub use access::token::TokenText;
pub use fleet::backoff::Backoff;
pub use fleet::process::ProcessSettings;
pub use fleet::selector::{Condition, Fact, FactValue, Group, Selector, SubjectFacts, Test};
pub use id::{ClaimId, DeadLetterId, DeliveryId, EventId, JobId, NodeId, TenantId, TokenId, TriggerId, WorkerId};
pub use id_part::IdPart;
pub use name::{Label, Name, NameError};
pub use queue::claim::{Affinity, LaneHead};
pub use queue::job::{Epoch, Job, JobError, JobState, Outcome, Refusal, State};
pub use queue::job_origin::Origin;
pub use queue::retry::RetryPolicy;
pub use queue::settings::{KindSettings, QueueSettings, Webhook};
pub use queue::trace_context::TraceContext;
pub use runtimes::RuntimeName;
pub use signals::signal::SignalKind;
pub use time::Time;
pub use triggers::dead_letter::Resolution;
pub use workflows::journal::JournalOp;
pub use workflows::run::{NeedCondition, NodeDecision, NodeEnd, NodeProgress, OnFailure, RunState};
