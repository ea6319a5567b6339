//! The JSON contract: what goes over HTTP, as types that the server, the client and the command line share.
//!
//! Requests refuse unknown fields; answers may grow. Times are RFC 3339, names `snake_case`, units come last.

pub mod artifact;
pub mod call;
pub mod dead_letter;
pub mod delivery;
pub mod event;
pub mod failure;
pub mod job;
pub mod page;
pub mod pool;
pub mod problem;
pub mod process;
pub mod queue;
pub mod runtime;
pub mod signal;
pub mod subject;
pub mod task;
pub mod token;
pub mod trigger;
pub mod ttfs;
pub mod worker;

pub use artifact::ArtifactView;
pub use call::{AbandonedView, CallView};
pub use dead_letter::{
    AttemptView, CountView, DeadLetterFilter, DeadLetterView, ReplayManyRequest, ReplayManyView, ReplayRequest,
    ReplayView, ResolveRequest,
};
pub use delivery::{DeliveryAttemptView, DeliveryDetails, DeliveryView};
pub use event::{EventAccepted, KvView, SyncRunView};
pub use failure::{
    FailureView, MatchRequest, MatchView, MergeRequest, ReplayFailures, ReplayedView, SignatureOutcome,
    SignaturePattern, SignatureRequest, SignatureUpdate, SignatureView,
};
pub use job::{
    BatchAccepted, BatchRequest, CancelByKey, CancelView, HistoryItem, JobAccepted, JobError, JobRequest, JobView,
    RetryRequest, RetrySettings, WebhookSettings, WhyView,
};
pub use page::Page;
pub use pool::{HandlerSettings, MemberSettings, MemberView, PoolRequest, PoolView};
pub use problem::{Problem, code};
pub use process::{Condition, EligibleView, ProcessRequest, ProcessView, Selector};
pub use queue::{KindSettings, PauseRequest, QueueCounts, QueueSettings, QueueView};
pub use runtime::{
    MoveRequest, NodeView, OperationAccepted, OperationRequest, OperationView, PlacementSettings, PortSettings,
    ProbeSettings, RuntimeHealth, RuntimeHealthView, RuntimeRequest, RuntimeView, VolumeSettings,
};
pub use signal::{EtaRange, NextAction, SignalUpdate, SignalView};
pub use subject::{
    BackoffRequest, BackoffView, FactView, FactsReport, StandingView, SubjectCredential, SubjectRequest, SubjectView,
    TimelineItem, WorkView,
};
pub use task::{HealthView, PruningView, TaskView, TasksView};
pub use token::{Serves, TenantView, TokenCreated, TokenRequest, TokenView};
pub use trigger::{DryRunView, FireRequest, FireView, TriggerRequest, TriggerRetry, TriggerRunView, TriggerView};
pub use ttfs::{TtfsAccepted, TtfsAlert, TtfsEvent, TtfsEvents, TtfsSlo, TtfsSloHour, TtfsSummary};
pub use worker::{
    ClaimRequest, ClaimView, ClaimedJob, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeRequest, OutcomeStatus,
    OutcomeView, SettleRequest, SettleView, WorkerRegistered, WorkerRequest, WorkerView,
};

pub use jiff::Timestamp;
pub use serde_json::value::RawValue;
