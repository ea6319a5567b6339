//! Limits of triggers, scripts, expressions, events, deliveries and mail.

/// Default retention of resolved dead letters. Unresolved ones are never pruned.
pub const DEAD_LETTER_RETENTION_DEFAULT_S: i64 = 30 * 24 * 3_600;
/// Dead letters in one replay by ids or by filter.
pub const REPLAY_DEAD_LETTERS: usize = 10_000;
/// Attempts in the event of a dead letter, the newest ones. The letter itself has all of them.
pub const DEAD_LETTER_EVENT_ATTEMPTS: usize = 100;
/// Default timeout of one delivery attempt, from the first packet to the last.
pub const DELIVERY_TIMEOUT_MS: i64 = 10_000;
pub const DELIVERY_TIMEOUT_MAX_S: i64 = 120;
pub const DELIVERY_ATTEMPTS: i32 = 12;
/// A delivery that was never attempted, because its receiver's circuit was open all the time, fails after this long.
pub const DELIVERY_GIVE_UP_S: i64 = 3 * 24 * 3_600;
/// No delivery is given up until the service has been up for this long: deliveries from before the start must be
/// attempted first.
pub const GIVE_UP_GRACE_S: i64 = 3_600;
/// How much longer than a delivery's timeout the sending node's lease on it lasts.
pub const DELIVERY_LEASE_MARGIN_MS: i64 = 10_000;
pub const DELIVERY_RETENTION_S: i64 = 7 * 24 * 3_600;
pub const FAILED_DELIVERY_RETENTION_S: i64 = 30 * 24 * 3_600;
/// Deliveries that one node has in flight.
pub const DELIVERIES_IN_FLIGHT: usize = 128;
/// Concurrent deliveries from one node to one endpoint: the initial value and minimum of adaptive concurrency.
pub const ENDPOINT_CONCURRENCY: usize = 4;
/// The maximum of adaptive concurrency per endpoint.
pub const ENDPOINT_CONCURRENCY_MAX: usize = 64;
/// Deliveries in flight beyond the first `ENDPOINT_CONCURRENCY` of their endpoints. If a fast endpoint starts to hang,
/// the other endpoints still get capacity.
pub const DELIVERIES_ABOVE_BASE: usize = 64;
/// Deliveries in flight to endpoints that failed the last attempt. The other slots are kept for endpoints that answer.
pub const FAILING_DELIVERIES: usize = DELIVERIES_IN_FLIGHT / 2;
/// Endpoints with due deliveries that one round considers.
pub const ENDPOINTS_PER_ROUND: usize = 1_000;
/// Endpoints of one tenant among them.
pub const ENDPOINTS_PER_TENANT: usize = 200;
/// Consecutive failures after which a receiver's circuit opens.
pub const CIRCUIT_FAILURES: u32 = 5;
/// The circuit's first pause. It doubles with each further failure.
pub const CIRCUIT_PAUSE_S: i64 = 10;
pub const CIRCUIT_PAUSE_MAX_S: i64 = 300;
/// Source text of a script.
pub const SCRIPT_BYTES: usize = 64 << 10;
pub const SCRIPT_OPERATIONS: u64 = 1_000_000;
/// Nesting of expressions and of function calls in a script.
pub const SCRIPT_DEPTH: usize = 32;
pub const SCRIPT_VARIABLES: usize = 128;
pub const SCRIPT_STRING_BYTES: usize = 256 << 10;
/// Elements of one array or map, including nested ones.
pub const SCRIPT_ITEMS: usize = 10_000;
pub const SCRIPT_TIME_MS: u64 = 10_000;
/// Host calls of one script run: jobs, keys, events, requests.
pub const SCRIPT_CALLS: usize = 100;
pub const SCRIPT_LOG_LINES: usize = 1_000;
pub const SCRIPT_LOG_BYTES: usize = 64 << 10;
pub const SCRIPT_OUTPUT_BYTES: usize = 64 << 10;
/// Scripts that one node runs concurrently.
pub const CONCURRENT_SCRIPTS: usize = 4;
/// Scripts that wait on one node for a permit. When the queue is full, further work stays in the outbox.
pub const QUEUED_SCRIPTS: usize = 500;
pub const QUEUED_SCRIPTS_PER_TENANT: usize = QUEUED_SCRIPTS / 2;
/// Reruns of a script after write conflicts on its keys. The next conflict is a failure.
pub const SCRIPT_CONFLICTS: u32 = 50;
/// Longest pause before such a rerun.
pub const SCRIPT_CONFLICT_PAUSE_MS: u64 = 128;
/// Jobs of one queue that a queue trigger runs concurrently, on each node. It exceeds the trigger depth limit, so that
/// a queue that feeds itself does not wait for its own permits.
pub const QUEUE_TRIGGER_JOBS: usize = 32;
/// Retention of the records and logs of script runs and awaited trigger runs.
pub const TRIGGER_RUN_RETENTION_S: i64 = 7 * 24 * 3_600;
/// Size of one inbound mail.
pub const SMTP_MESSAGE_BYTES: usize = 1 << 20;
/// Length of one SMTP command line.
pub const SMTP_LINE_BYTES: usize = 2 << 10;
pub const SMTP_RECIPIENTS: usize = 50;
/// Protocol errors after which an SMTP session is closed.
pub const SMTP_ERRORS: usize = 10;
pub const SMTP_IDLE_S: u64 = 60;
/// Longest duration of one SMTP session.
pub const SMTP_SESSION_S: u64 = 600;
/// Concurrent SMTP sessions.
pub const SMTP_SESSIONS: usize = 64;
pub const SMTP_SESSIONS_PER_PEER: usize = 8;
/// Messages that one peer may send per minute.
pub const SMTP_MESSAGES_PER_MINUTE: usize = 60;
/// Peers with tracked counts of sessions and messages.
pub const SMTP_PEERS: usize = 10_000;
/// A larger result goes into a webhook as a link.
pub const WEBHOOK_RESULT_BYTES: usize = 64 << 10;
pub const WEBHOOK_SECRETS: usize = 4;
/// The part of a receiver's response that is read and stored.
pub const RESPONSE_EXCERPT_BYTES: usize = 2 << 10;
/// Longest delay that a receiver's `Retry-After` can impose.
pub const RETRY_AFTER_MAX_S: i64 = 24 * 3_600;
/// An HTTP response that a script or a trigger reads.
pub const OUTBOUND_RESPONSE_BYTES: usize = 256 << 10;
/// Evaluation steps of one trigger expression.
pub const EXPRESSION_FUEL: u64 = 20_000;
/// Cost of one evaluation: bytes read, times the tokens of the expression. It takes about 50 ms.
pub const EXPRESSION_COST: u64 = 512 << 20;
/// Deadline of one evaluation, on a machine so busy that the cost alone does not bound the time.
pub const EXPRESSION_DEADLINE_MS: u64 = 2_000;
/// Tokens of one expression. Each may add one level of nesting.
pub const EXPRESSION_TOKENS: usize = 1_000;
/// Upper bound of the value that an expression can produce from the largest payload.
pub const EXPRESSION_VALUE_BYTES: u64 = 64 << 20;
/// Text of one expression or mapping.
pub const EXPRESSION_BYTES: usize = 16 << 10;
pub const TRIGGERS_PER_TENANT: usize = 1_000;
/// Default maximum length of a chain in which one trigger causes the next. A longer chain counts as a loop.
pub const TRIGGER_DEPTH_DEFAULT: i32 = 16;
/// Outbox rows that one transaction writes for its events. Further rows are written by the dispatcher, in parts of this size.
pub const FAN_OUT_ROWS: usize = 1_000;
/// Data of events up to this size is copied to each of their outbox rows. Larger data is stored once.
pub const SHARED_EVENT_BYTES: usize = 1 << 10;
/// How long the data of an event with several runs is kept at least.
pub const SHARED_EVENT_RETENTION_S: i64 = 60;
/// Outbox rows that a dispatcher claims at a time.
pub const DISPATCH_ROWS: usize = 500;
/// Bytes of the events of the outbox rows that a dispatcher claims at a time. A larger event is claimed alone.
pub const DISPATCH_BYTES: usize = 8 << 20;
/// Tenants that a dispatcher considers at a time.
pub const DISPATCH_TENANTS: usize = 500;
/// How long the expressions of one tenant may take per batch of a dispatcher. Its other rows wait for the next batch.
pub const DISPATCH_TENANT_MS: u64 = 1_000;
/// A dispatcher's lease on the outbox rows that it claimed. The rows of a crashed dispatcher become claimable after it.
pub const DISPATCH_LEASE_MS: i64 = 30_000;
/// Missed slots of one schedule that `catch_up` fires.
pub const CATCH_UP_SLOTS: usize = 100;
/// Events in one batch of CloudEvents.
pub const BATCH_EVENTS: usize = 1_000;
/// Maximum difference between the timestamp of a signed hook and the server's clock.
pub const HOOK_TOLERANCE_S: i64 = 300;
/// A schedule slot that is found later than this counts as missed.
pub const MISSED_AFTER_MS: i64 = 60_000;
/// Retention of the record of fired schedule slots.
pub const SCHEDULE_SLOT_RETENTION_S: i64 = 7 * 24 * 3_600;
