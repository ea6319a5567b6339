//! The JSON contract of the HTTP API, as types that the server, the client and the command line share.
//!
//! Requests reject unknown fields; responses may gain fields. Times are RFC 3339, names are `snake_case`, and units are
//! suffixes (`lease_s`).

pub mod access;
pub mod fleet;
pub mod page;
pub mod problem;
pub mod queue;
pub mod runtimes;
pub mod signals;
pub mod task;
pub mod triggers;
pub mod workflows;

pub use access::token::{Serves, TenantView, TokenCreated, TokenRequest, TokenView};
pub use fleet::process::{Condition, EligibleView, ProcessRequest, ProcessView, Selector};
pub use fleet::subject::{
    BackoffRequest, BackoffView, FactView, FactsReport, StandingView, SubjectCredential, SubjectRequest, SubjectView,
    TimelineItem, WorkView,
};
pub use page::Page;
pub use problem::{Problem, code};
pub use queue::artifact::ArtifactView;
pub use queue::call::{AbandonedView, CallView};
pub use queue::job::{
    BatchAccepted, BatchRequest, BatchSettings, CancelByKey, CancelRequest, CancelView, DebounceSettings, HistoryItem,
    JobAccepted, JobError, JobRequest, JobView, RetryRequest, RetrySettings, WebhookSettings, WhyView,
};
pub use queue::queues::{KindSettings, PauseRequest, PruneRequest, PruneView, QueueCounts, QueueSettings, QueueView};
pub use queue::worker::{
    ClaimRequest, ClaimView, ClaimedJob, HeartbeatRequest, HeartbeatView, OutcomeKind, OutcomeRequest, OutcomeStatus,
    OutcomeView, SettleRequest, SettleView, WorkerRegistered, WorkerRequest, WorkerView,
};
pub use runtimes::pool::{HandlerSettings, MemberSettings, MemberView, PoolRequest, PoolView};
pub use runtimes::runtime::{
    MoveRequest, NoFields, NodeView, OperationAccepted, OperationRequest, OperationView, PlacementSettings,
    PortSettings, ProbeSettings, RuntimeHealth, RuntimeHealthView, RuntimeRequest, RuntimeView, VolumeSettings,
};
pub use signals::failure::{
    FailureView, MatchRequest, MatchView, MergeRequest, ReplayFailures, ReplayedView, SignatureOutcome,
    SignaturePattern, SignatureRequest, SignatureUpdate, SignatureView,
};
pub use signals::signal::{EstimateView, EtaBasis, EtaRange, NextAction, SignalUpdate, SignalView};
pub use signals::ttfs::{TtfsAccepted, TtfsAlert, TtfsEvent, TtfsEvents, TtfsSlo, TtfsSloHour, TtfsSummary};
pub use task::{HealthView, PruningView, TaskView, TasksView};
pub use triggers::dead_letter::{
    AttemptView, CountView, DeadLetterFilter, DeadLetterView, HandlerView, ReplayManyRequest, ReplayManyView,
    ReplayRequest, ReplayView, ResolveRequest,
};
pub use triggers::delivery::{DeliveryAttemptView, DeliveryDetails, DeliveryView};
pub use triggers::event::{EventAccepted, KvView, SyncRunView};
pub use triggers::trigger::{
    DryRunView, FireRequest, FireView, TriggerRequest, TriggerRetry, TriggerRunView, TriggerView,
};
pub use workflows::journal::{
    ApprovalRequest, ApprovalView, ClaimedJournal, EventsSince, ForkRequest, JournalAttempt, JournalEntry, JournalOp,
    JournalOperation, JournalRequest, JournalResult, JournalView, JournalWrite, JournalWritten, WakeRequest,
};

pub use workflows::run::{
    NodeRequest, NodesRequest, RunAccepted, RunCounts, RunNodeView, RunRequest, RunSignalView, RunView,
};

pub use jiff::Timestamp;
pub use serde_json::value::RawValue;
