//! Every bound of the program, in one place. A loop, queue, body, page or retry without a limit here is a bug.

/// Payload of one job, in bytes of JSON, unless configured.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// Result of one job, in bytes of JSON.
pub const RESULT_BYTES: usize = 1 << 20;
/// A whole request body that carries jobs or outcomes.
pub const BODY_BYTES: usize = 16 << 20;
/// JSON nesting. Below what either database and any common parser can take.
pub const JSON_DEPTH: usize = 100;
/// Jobs in one bulk enqueue.
pub const BATCH_JOBS: usize = 10_000;
/// Jobs one `claim` may hand out.
pub const CLAIM_JOBS: usize = 2_000;
/// Of the workers of a node that wait for the same, so many look at once when they are told.
pub const LOOKS_AT_ONCE: usize = 8;
/// And so many more while they find something.
pub const LOOKS_MORE: usize = 56;
/// Outcomes in one `settle`.
pub const SETTLE_OUTCOMES: usize = 4_000;
/// Queue, kind and process names, in bytes.
pub const NAME_BYTES: usize = 128;
/// Affinities, subjects, runs, tags and keys, in bytes.
pub const LABEL_BYTES: usize = 256;
pub const TAGS: usize = 32;
pub const WORKER_QUEUES: usize = 100;
pub const WORKER_KINDS: usize = 100;
pub const WORKER_AFFINITIES: usize = 100;
/// Error messages are cut to this, at a character, so that a worker's stack trace never loses its outcome.
pub const ERROR_MESSAGE_BYTES: usize = 16 << 10;
pub const ERROR_CODE_BYTES: usize = 128;
pub const REASON_BYTES: usize = 1 << 10;
pub const PRIORITY_MIN: i64 = -32_768;
pub const PRIORITY_MAX: i64 = 32_767;
pub const MAX_ATTEMPTS: i64 = 1_000;
pub const DEFAULT_MAX_ATTEMPTS: i32 = 3;
pub const LEASE_S_MIN: i64 = 1;
pub const LEASE_S_MAX: i64 = 3_600;
pub const LEASE_S_DEFAULT: i64 = 30;
/// Longest wait between two attempts when the policy names no maximum.
pub const RETRY_MAXIMUM_S: i64 = 24 * 3_600;
/// Longest wait any policy, snooze or schedule may ask for.
pub const WAIT_S_MAX: i64 = 10 * 366 * 24 * 3_600;
pub const TIMEOUT_S_MAX: i64 = 30 * 24 * 3_600;
/// Longest long-poll; the caller asks again.
pub const LONG_POLL_S: u64 = 60;
pub const PAGE_ITEMS: usize = 500;
pub const PAGE_ITEMS_DEFAULT: usize = 50;
/// Rows a filter without an index may look at for one page; past it the page says `partial`.
pub const SCAN_ROWS: usize = 5_000;
/// Counts of what may be many stop here and say so.
pub const COUNTED: usize = 10_000;
/// Rows a page reads at first; each further look reads four times as many.
pub const PAGE_ROWS_FIRST_LOOK: usize = 100;
/// Lanes a listing asks one by one; with more it looks at the newest rows of all.
pub const LISTED_LANES: usize = 512;
/// Tags, error codes or kinds with one prefix that a listing asks one by one.
pub const LISTED_PREFIXES: usize = 100;
/// Lanes (queue, kind, priority, affinity) one claim or listing looks at.
pub const LANES: usize = 10_000;
pub const IDEMPOTENCY_KEEP_S: i64 = 24 * 3_600;
/// How long other affinities may be passed over before the oldest of them wins, unless the queue says otherwise.
pub const STARVATION_S_DEFAULT: i64 = 300;
pub const CONCURRENCY_MAX: i64 = 100_000;
/// Ended jobs are kept this long unless their queue says otherwise.
pub const RETENTION_S_DEFAULT: i64 = 7 * 24 * 3_600;
pub const HISTORY_RETENTION_S_DEFAULT: i64 = 90 * 24 * 3_600;
/// The timelines of subjects and runtimes, unless configured, and what is kept of operations and healths.
pub const TIMELINE_RETENTION_S: i64 = 366 * 24 * 3_600;
/// What a subject's own agent says of a fact that nobody selects by is told on the timeline at most this often.
pub const AGENT_FACT_TOLD_S: i64 = 60;
/// Entries of a timeline that are looked through for what was told lately.
pub const LATELY_TOLD: usize = 20;
/// Rows one maintenance step touches in one transaction.
pub const MAINTENANCE_ROWS: usize = 1_000;
/// Parts of so many rows that a look for what is past its retention passes over at a time: it may be kept for another reason.
pub const MAINTENANCE_PARTS: usize = 20;
/// Callers that share one commit.
pub const SHARED_COMMIT_REQUESTS: usize = 4_096;
pub const SHARED_COMMIT_JOBS: usize = 10_000;
/// How long the SQLite writer may hold its transaction open while it takes more work in. What is left for the next one then is at
/// hand while those who are answered make up their minds.
pub const SQLITE_HOLD_MS: u64 = 6;
/// Artifacts up to this size live in the database; larger ones in the blob store.
pub const ARTIFACT_INLINE_BYTES: usize = 64 << 10;
pub const ARTIFACT_BYTES: u64 = 10 << 30;
pub const ARTIFACTS_PER_JOB: usize = 1_000;
/// Blobs that one node deletes at once.
pub const BLOBS_DELETED_AT_ONCE: usize = 16;
/// Silence of every node after which leases are given one more full term: an outage of ours burns nobody's attempts.
pub const OUTAGE_MS: i64 = 3_000;
/// How long after such a silence, or a start, no attempt is timed out: what ended meanwhile must be able to tell.
pub const TIME_OUT_GRACE_MS: i64 = 15_000;
pub const SERVICE_BEAT_MS: i64 = 1_000;
/// The same for a node that starts: a beat that is overdue, because a lease may be shorter than the silence above.
pub const OUTAGE_AT_START_MS: i64 = SERVICE_BEAT_MS + 500;
/// How long after an outage or a start a fact that nobody could renew does not count as old; or as long as the age that is
/// asked for, if that is less.
pub const FACT_GRACE_S: i64 = 300;
/// How long every node must have been silent before a schema is taken down under them.
pub const STOPPED_AFTER_MS: i64 = 15_000;
/// A last beat that is further ahead than this was made by a clock that has come back since.
pub const CLOCK_STEP_MS: i64 = 60_000;
/// How far ahead of now a fact may have been told: the clock of another transaction.
pub const FACT_AHEAD_MS: i64 = 10_000;
/// Resolved dead letters are kept this long; unresolved ones stay.
pub const DEAD_LETTER_RETENTION_S_DEFAULT: i64 = 30 * 24 * 3_600;
/// Dead letters that one replay by ids or by filter takes.
pub const REPLAY_LETTERS: usize = 10_000;
/// Letters and digits of a token that are drawn at random: 256 bits.
pub const TOKEN_RANDOM: usize = 43;
/// Queues a token may be narrowed to, and tenants it may serve.
pub const TOKEN_SCOPE: usize = 100;
/// Living tokens of one tenant.
pub const TOKENS_PER_TENANT: usize = 10_000;
/// How long it can be told of a token that was revoked or has expired: a year.
pub const ENDED_TOKEN_RETENTION_S: i64 = 366 * 24 * 3_600;
pub const TENANTS: usize = 10_000;
/// Tokens a node remembers between requests.
pub const TOKENS_CACHED: usize = 10_000;
/// How long a node may go by what it knows of tokens without asking the database. Whoever revokes one waits this long
/// before it says that it is done, so that from then on no node takes the token.
pub const TOKEN_TRUST_MS: u64 = 250;
/// Before that is over, a node that is being asked looks ahead.
pub const TOKEN_LOOK_AHEAD_MS: u64 = 100;
/// One attempt of a delivery, from the first packet to the last, unless its target says otherwise.
pub const DELIVERY_TIMEOUT_MS: i64 = 10_000;
pub const DELIVERY_TIMEOUT_S_MAX: i64 = 120;
pub const DELIVERY_ATTEMPTS: i32 = 12;
/// A delivery that could not even be tried, because its receiver was down all the while, is given up after this.
pub const DELIVERY_GIVE_UP_S: i64 = 3 * 24 * 3_600;
/// Nothing is given up before service has been up for so long: what waited for us has not been tried yet.
pub const GIVE_UP_GRACE_S: i64 = 3_600;
/// How much longer than its time-out a delivery belongs to the node that took it.
pub const DELIVERY_LEASE_MARGIN_MS: i64 = 10_000;
pub const DELIVERY_RETENTION_S: i64 = 7 * 24 * 3_600;
pub const FAILED_DELIVERY_RETENTION_S: i64 = 30 * 24 * 3_600;
/// Deliveries one node has under way, and those of them to one endpoint: at first, and at most when it keeps up.
pub const DELIVERIES_UNDER_WAY: usize = 128;
pub const ENDPOINT_CONCURRENCY: usize = 4;
pub const ENDPOINT_CONCURRENCY_MAX: usize = 64;
/// Of all those under way, how many may be beyond the first few of their endpoints: one that kept up and then hangs holds no
/// place that others begin with.
pub const DELIVERIES_BEYOND: usize = 64;
/// Endpoints with something due that one round looks at.
pub const ENDPOINTS_PER_ROUND: usize = 1_000;
/// Failures in a row after which a receiver is left alone, and for how long at first and at most.
pub const CIRCUIT_FAILURES: u32 = 5;
pub const CIRCUIT_PAUSE_S: i64 = 10;
pub const CIRCUIT_PAUSE_MAX_S: i64 = 300;
/// How long a synchronous call waits, unless it says so, and at most.
pub const CALL_TIMEOUT_S_DEFAULT: i64 = 30;
pub const CALL_TIMEOUT_S_MAX: i64 = 300;
/// How much longer than its caller a call's handler may take: what it answers then is kept.
pub const CALL_LATE_ANSWER_S: i64 = 60;
/// How long after its time a call is taken for abandoned: its node may be about to say otherwise.
pub const CALL_GRACE_MS: i64 = 5_000;
pub const ABANDONED_RETENTION_S_DEFAULT: i64 = 7 * 24 * 3_600;
/// One run of a script: its source, its operations, how deep it may nest, what it may hold, say and give.
pub const SCRIPT_BYTES: usize = 64 << 10;
pub const SCRIPT_OPERATIONS: u64 = 1_000_000;
pub const SCRIPT_DEPTH: usize = 32;
pub const SCRIPT_VARIABLES: usize = 128;
pub const SCRIPT_STRING_BYTES: usize = 256 << 10;
pub const SCRIPT_ITEMS: usize = 10_000;
pub const SCRIPT_TIME_MS: u64 = 10_000;
/// Calls of a script to the world outside: jobs, keys, events, requests.
pub const SCRIPT_CALLS: usize = 100;
pub const SCRIPT_LOG_LINES: usize = 1_000;
pub const SCRIPT_LOG_BYTES: usize = 64 << 10;
pub const SCRIPT_OUTPUT_BYTES: usize = 64 << 10;
/// Scripts that one node runs at once, and those that wait for their turn there; past them the outbox waits.
pub const SCRIPTS_AT_ONCE: usize = 4;
pub const SCRIPTS_WAITING: usize = 500;
/// Of those, how many may be one tenant's.
pub const SCRIPTS_WAITING_OF_TENANT: usize = SCRIPTS_WAITING / 2;
/// How often a script whose keys were changed under it is run again before that is a failure, and the longest pause before.
pub const SCRIPT_CONFLICTS: u32 = 50;
pub const SCRIPT_CONFLICT_PAUSE_MS: u64 = 128;
/// Jobs of a queue that the trigger which works them runs at once, on each node: more than one may lead to another before
/// that is a loop, so that a queue which is worked into itself does not wait for its own places.
pub const QUEUE_TRIGGER_JOBS: usize = 32;
/// How runs of scripts and of triggers that are waited for went is kept this long, with their logs.
pub const TRIGGER_RUNS_KEEP_S: i64 = 7 * 24 * 3_600;
/// Inbound mail: one message, one line that is a command, one conversation.
pub const SMTP_MESSAGE_BYTES: usize = 1 << 20;
pub const SMTP_LINE_BYTES: usize = 2 << 10;
pub const SMTP_RECIPIENTS: usize = 50;
pub const SMTP_MISTAKES: usize = 10;
pub const SMTP_SILENCE_S: u64 = 60;
pub const SMTP_SESSION_S: u64 = 600;
/// Conversations at once, those of one peer among them, and messages of one peer in a minute.
pub const SMTP_SESSIONS: usize = 64;
pub const SMTP_SESSIONS_PER_PEER: usize = 8;
pub const SMTP_MESSAGES_PER_MINUTE: usize = 60;
/// Peers whose figures are kept.
pub const SMTP_PEERS: usize = 10_000;
/// A result above this goes into a webhook as a link.
pub const WEBHOOK_RESULT_BYTES: usize = 64 << 10;
pub const WEBHOOK_SECRETS: usize = 4;
/// What is kept of a receiver's answer, and read of it at all.
pub const RESPONSE_EXCERPT_BYTES: usize = 2 << 10;
/// The longest a receiver's `Retry-After` is obeyed.
pub const RETRY_AFTER_S_MAX: i64 = 24 * 3_600;
/// An answer that a script or a trigger reads.
pub const OUTBOUND_ANSWER_BYTES: usize = 256 << 10;
/// Facts one subject may have.
pub const SUBJECT_FACTS: usize = 256;
/// One fact's value, in bytes of JSON.
pub const FACT_BYTES: usize = 16 << 10;
/// A fact's new value as the timeline shows it; what is longer is left out there.
pub const TIMELINE_FACT_BYTES: usize = 1 << 10;
/// Conditions of one selector.
pub const SELECTOR_CONDITIONS: usize = 64;
/// Processes of one tenant: every change of a fact is held against each of their selectors.
pub const PROCESSES: usize = 500;
pub const PROCESS_EXCLUDES: usize = 50;
/// How soon a process looks again at a subject that its job left eligible, unless it says otherwise.
pub const PROCESS_EVERY_S_DEFAULT: i64 = 60;
/// Jobs one step of the scan makes, subjects it judges.
pub const SCAN_ROWS_AT_ONCE: usize = 500;
/// Figures of a process are counted up to this.
pub const FIGURE_ROWS: usize = 100_000;
/// Jobs that wait for one subject and are let look again when it is free: those that exclude each other wait together.
pub const SUBJECT_UNPARKED: i64 = 100;
/// Steps one expression of a trigger may take.
pub const EXPRESSION_FUEL: u64 = 20_000;
/// Words and signs of one expression: each may nest one deeper.
pub const EXPRESSION_TOKENS: usize = 1_000;
/// What an expression could make of the largest payload, in bytes.
pub const EXPRESSION_VALUE_BYTES: u64 = 64 << 20;
/// Text of one expression or mapping, in bytes.
pub const EXPRESSION_BYTES: usize = 16 << 10;
pub const TRIGGERS_PER_TENANT: usize = 1_000;
/// How often one thing may lead to another before it is taken for a loop.
pub const TRIGGER_DEPTH_DEFAULT: i32 = 16;
/// Outbox rows that a dispatcher takes at a time.
pub const DISPATCH_ROWS: usize = 500;
/// How long a dispatcher keeps the rows it took; those of one that died come back after it.
pub const DISPATCH_LEASE_MS: i64 = 30_000;
/// Missed slots of one schedule that `catch_up` fires.
pub const CATCH_UP_SLOTS: usize = 100;
/// Events in one batch of CloudEvents.
pub const BATCH_EVENTS: usize = 1_000;
/// A signed hook may be this old, or this much ahead of our clock.
pub const HOOK_TOLERANCE_S: i64 = 300;
/// A slot of a schedule that is found later than this was missed.
pub const MISSED_AFTER_MS: i64 = 60_000;
/// Fired slots of schedules are remembered this long.
pub const SLOTS_KEEP_S: i64 = 7 * 24 * 3_600;
/// What surrounds a queue's jobs is read at most this often for their signals.
pub const SURROUNDINGS_MS: u64 = 1_000;
/// Queues whose surroundings are kept at once.
pub const SURROUNDINGS_KEPT: usize = 1_000;
/// Jobs of a queue that are looked at for places in its line; past them a place is worked out from kept counts.
pub const SURROUNDINGS_LINE: usize = 1_000;
pub const SURROUNDINGS_WORKERS: usize = 10_000;
/// Jobs with the same key that are looked at for what happened last.
pub const PREVIOUS_JOBS: usize = 5;
/// A normalised error message.
pub const FAILURE_PATTERN_BYTES: usize = 256;
pub const FAILURE_PATTERN_TOKENS: usize = 64;
/// A signature's regular expression as written, and once compiled.
pub const SIGNATURE_PATTERN_BYTES: usize = 512;
pub const SIGNATURE_PROGRAM_BYTES: usize = 64 << 10;
/// How often a signature's regular expression may repeat something: PostgreSQL's own bound.
pub const SIGNATURE_REPEATS: u32 = 255;
/// What of a subject or image a signature looks at.
pub const SIGNATURE_SUBJECT_BYTES: usize = 512;
/// Failures that are grouped in one transaction, and unrepaired ones that are looked at in one.
pub const FAILURES_AT_ONCE: usize = 200;
/// A group of failures proposes a signature after so many samples.
pub const SIGNATURE_AFTER_SAMPLES: u64 = 3;
/// Signatures of one tenant.
pub const SIGNATURES: usize = 1_000;
/// Repair times kept for one group, and the longest that is waited for.
pub const REPAIR_SAMPLES: usize = 100;
pub const REPAIR_S_MAX: i64 = 7 * 24 * 3_600;
/// Subjects of a failure group that are shown.
pub const FAILURE_SUBJECTS_SHOWN: usize = 10;
pub const FAILURES_KEPT_S: i64 = 90 * 24 * 3_600;
pub const FAILURE_HOURS_KEPT_S: i64 = 7 * 24 * 3_600;
/// Jobs that one replay of a failure group makes.
pub const REPLAY_JOBS: usize = 500;
/// What was said of a job is kept this long after its end.
pub const SIGNAL_KEPT_S: i64 = 24 * 3_600;
/// A signature less sure than this, untouched for so long, is disabled.
pub const SIGNATURE_DOUBTFUL: f64 = 0.3;
pub const SIGNATURE_UNTOUCHED_S: i64 = 30 * 24 * 3_600;
/// Ends that one node looks at for its figures between two folds.
pub const FIGURE_SAMPLES: usize = 256;
/// Answers on running and waiting jobs that one node remembers, to see whether they hold.
pub const FIGURE_ANSWERS: usize = 10_000;
/// Kinds of work whose figures are kept in memory, and for how long.
pub const FIGURES_KEPT: usize = 10_000;
pub const FIGURES_MS: u64 = 2_000;
/// Streams of single jobs that one node keeps open.
pub const STREAMS: usize = 20_000;
/// Jobs that a filtered stream looks at.
pub const STREAM_WINDOW: usize = 200;
/// Time to first signal: events in one request, their bounds, and how long rollups reach back.
pub const TTFS_EVENTS: usize = 1_000;
pub const TTFS_MS_MAX: i64 = 24 * 3_600 * 1_000;
pub const TTFS_METADATA_BYTES: usize = 64 << 10;
pub const TTFS_DAYS: i64 = 90;
pub const TTFS_HOURS: i64 = 7 * 24;
pub const TTFS_SLO_HOURS: i64 = 24;
/// Connections served at once.
pub const CONNECTIONS: usize = 8_192;
/// How long a connection may take to say the head of a request, and to say nothing between two.
pub const HEAD_S: u64 = 60;
pub const HEAD_BYTES: usize = 64 << 10;
pub const HEAD_FIELDS: usize = 100;
/// How long a body may say nothing before it counts as broken off.
pub const BODY_IDLE_S: u64 = 30;
/// How long a page session lasts without being used, how old its secret may get, and how long an old one still holds.
pub const SESSION_S: i64 = 12 * 3_600;
pub const SESSION_ROTATE_S: i64 = 3_600;
pub const SESSION_GRACE_S: i64 = 60;
pub const SESSIONS_PER_TOKEN: usize = 100;
/// Throughput by the minute: how long it is kept, and how far back pages look.
pub const THROUGHPUT_S: i64 = 24 * 3_600;
pub const THROUGHPUT_MINUTES: i64 = 60;
/// What the overview looks at: queues, workers, runtimes, deliveries of a state and groups of failures; the wait that it
/// calls long, and how long ago a delivery that failed is still told.
pub const OVERVIEW_QUEUES: usize = 200;
pub const OVERVIEW_WORKERS: usize = 500;
pub const OVERVIEW_RUNTIMES: usize = 100;
pub const OVERVIEW_DELIVERIES: usize = 100;
pub const OVERVIEW_FAILURES: usize = 5;
pub const OVERVIEW_OLD_S: i64 = 300;
pub const OVERVIEW_FAILED_S: i64 = 3_600;
/// Workers that the page of a job names.
pub const JOB_PAGE_WORKERS: usize = 8;
/// What the page of affinities looks at: lanes of queues that have some, and jobs counted in each.
pub const AFFINITY_LANES: usize = 512;
pub const AFFINITY_COUNTED: usize = 200;
/// Jobs counted for each member of a pool: SQLite looks up every one of them.
pub const BACKLOG_COUNTED: usize = 1_000;
/// Changes of a runtime's health that its strip is drawn from.
pub const HEALTH_STRIP: usize = 100;
/// Subjects on a page of the fleet: each is read whole, with how it stands with every process.
pub const FLEET_ITEMS: usize = 30;
/// A runtime's name is part of its container's name and of a path.
pub const RUNTIME_NAME_BYTES: usize = 63;
pub const IMAGE_REF_BYTES: usize = 512;
pub const RUNTIME_ARGUMENTS: usize = 256;
pub const RUNTIME_ENV: usize = 256;
pub const RUNTIME_PORTS: usize = 32;
pub const RUNTIME_VOLUMES: usize = 32;
/// One argument, or one variable of the environment.
pub const RUNTIME_TEXT_BYTES: usize = 32 << 10;
pub const VOLUME_PATH_BYTES: usize = 255;
pub const PROBE_PATH_BYTES: usize = 1 << 10;
pub const PORT_MAX: u16 = u16::MAX;
/// The engine starts no container with less.
pub const RUNTIME_MEMORY_MB_MIN: i64 = 6;
pub const RUNTIME_MEMORY_MB_MAX: i64 = 16 << 20;
pub const RUNTIME_CPUS_MAX: f64 = 1_024.0;
/// Processes in one container.
pub const RUNTIME_PIDS: i64 = 4_096;
/// Runtimes of one tenant.
pub const RUNTIMES_PER_TENANT: usize = 1_000;
/// How long a container gets to end by itself, unless its spec says so, and at most.
pub const STOP_GRACE_S: i64 = 10;
pub const STOP_GRACE_S_MAX: i64 = 600;
/// A call to the engine other than a pull, a stop or a stream.
pub const DOCKER_CALL_S: u64 = 30;
/// A pull of an image, at most.
pub const IMAGE_PULL_S: u64 = 3_600;
/// Tries of an operation while the engine is away, and the waits between them.
pub const OPERATION_ATTEMPTS: i32 = 1_000;
pub const OPERATION_RETRY_S: u64 = 1;
pub const OPERATION_RETRY_MAX_S: u64 = 60;
/// Operations one node has under way at once.
pub const OPERATIONS_UNDER_WAY: usize = 16;
/// How long an operation belongs to a node that does not say that it lives.
pub const OPERATION_LEASE_MS: i64 = 6_000;
/// R4: how often a runtime is probed and inspected, how long a probe waits, and how many failures count.
pub const PROBE_EVERY_S: u64 = 15;
pub const PROBE_TIMEOUT_S: u64 = 2;
pub const PROBE_FAILURES: u32 = 3;
pub const INSPECT_EVERY_S: u64 = 30;
/// R5: how often containers and records are compared, and how long a stopped container is kept.
pub const RECONCILE_EVERY_S: u64 = 300;
pub const STOPPED_CONTAINER_KEPT_S: i64 = 30 * 24 * 3_600;
/// Lines of a runtime's log that are shown unless said, and at most.
pub const LOG_LINES_DEFAULT: i64 = 200;
pub const LOG_LINES_MAX: i64 = 100_000;
/// Logs that one node reads for others at once, of them for one tenant, how much of one is passed on at a time, and how many such
/// parts wait for who reads them.
pub const LOG_READINGS: usize = 32;
pub const LOG_READINGS_OF_TENANT: usize = LOG_READINGS / 2;
pub const LOG_PART_BYTES: usize = 64 << 10;
pub const LOG_PARTS_AHEAD: i64 = 16;
/// How long a node may take to begin with a log that it was asked for.
pub const LOG_BEGIN_S: u64 = 5;
/// Whoever reads a log, or tells it, is gone when nothing was heard for so long; what both forgot is forgotten after a minute.
pub const LOG_SILENCE_S: i64 = 15;
pub const LOG_READING_KEPT_S: i64 = 60;
/// A node that drives an engine says so this often; silent for three times as long, it is taken for lost.
pub const NODE_BEAT_S: i64 = 5;
/// Labels that a runtime may ask of its node, and that a node may have.
pub const PLACEMENT_LABELS: usize = 32;
/// Slots that a node may say it has.
pub const NODE_SLOTS_MAX: i64 = 10_000;
/// How long a node has been silent before what may be moved is started on another, unless its nodes say otherwise.
pub const MOVE_AFTER_S: i64 = 60;
/// Pools of one tenant, the members of one, and the runtimes that may be up in one at once.
pub const POOLS_PER_TENANT: usize = 100;
pub const POOL_MEMBERS: usize = 100;
pub const POOL_SLOTS: u32 = 64;
/// Jobs that one slot has under way.
pub const POOL_AT_ONCE_MAX: u32 = 256;
pub const HANDLER_TIMEOUT_S_DEFAULT: i64 = 300;
pub const HANDLER_TIMEOUT_S_MAX: i64 = 24 * 3_600;
/// How long a pool belongs to a node that does not say that it lives.
pub const POOL_LEASE_MS: i64 = 10_000;
/// How long a runtime may take until it is well, from its start.
pub const RUNTIME_LOAD_S: u64 = 1_800;
/// A model that cannot be brought up is left alone for so long, doubling.
pub const MODEL_BACKOFF_S: i64 = 5;
pub const MODEL_BACKOFF_MAX_S: i64 = 600;
/// A file of the OpenAI-compatible face, and what its batches write: every line's result, with what stands around it.
pub const FILE_BYTES: u64 = 200 << 20;
pub const BATCH_OUTPUT_BYTES: u64 = BATCH_LINES as u64 * (RESULT_BYTES as u64 + 4_096);
/// How long a file may be asked to be kept, in seconds.
pub const FILE_KEPT_S: std::ops::RangeInclusive<i64> = 3_600..=2_592_000;
/// Lines of a batch, faults of it that are told, jobs that one transaction makes, jobs that are called
/// off at once, and results that are read at once.
pub const BATCH_LINES: usize = 50_000;
pub const BATCH_FAULTS: usize = 100;
pub const BATCH_JOBS_AT_ONCE: usize = 1_000;
pub const BATCH_CANCELS_AT_ONCE: usize = 16;
pub const BATCH_RESULTS_AT_ONCE: usize = 100;
pub const BATCH_WINDOW_H: std::ops::RangeInclusive<i64> = 1..=720;
/// How long an ended batch is remembered; its files are kept until they are deleted or expire.
pub const BATCH_RETENTION_S: i64 = 30 * 86_400;
pub const METADATA_MEMBERS: usize = 16;
pub const METADATA_KEY_BYTES: usize = 64;
pub const METADATA_VALUE_BYTES: usize = 512;
/// Pieces of an answer that may wait for whoever hears it, and how long they wait before it is taken to be gone.
pub const RELAY_PIECES: usize = 64;
pub const RELAY_PATIENCE_S: u64 = 30;
