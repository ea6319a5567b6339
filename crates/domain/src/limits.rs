//! Every limit of the program, in one place: sizes, counts, timeouts, retention periods and their defaults.
//!
//! A loop, queue, body, page or retry without a limit here is a bug. Names end with the unit: `_BYTES`, `_S`, `_MS`, or
//! what is counted. `_DEFAULT_` marks a value that a request or the configuration can replace.

/// Default maximum size of a job's payload, as JSON.
pub const PAYLOAD_BYTES: usize = 1 << 20;
/// Maximum size of a job's result, as JSON.
pub const RESULT_BYTES: usize = 1 << 20;
/// Maximum size of a request body that carries jobs or outcomes.
pub const BODY_BYTES: usize = 16 << 20;
/// Maximum JSON nesting depth. Both databases and all common parsers accept more.
pub const JSON_DEPTH: usize = 100;
/// Jobs in one bulk enqueue.
pub const BATCH_JOBS: usize = 10_000;
/// Nodes of one run.
pub const RUN_NODES: usize = 10_000;
/// Needs of the nodes of one request.
pub const RUN_NEEDS: usize = 100_000;
/// Largest result that a claimed job carries in its `inputs`. A larger one is a reference.
pub const INPUT_INLINE_BYTES: i64 = 64 << 10;
/// Results in the `inputs` of one claimed job. Results beyond that are references.
pub const INPUTS_BYTES: i64 = 4 << 20;
/// Spans of attempts in progress that a node holds for a collector of traces.
pub const ATTEMPT_SPANS: usize = 10_000;
/// Payloads of one batched job.
pub const BATCH_PAYLOADS: i64 = 10_000;
/// Longest delay of a debounced or batched job.
pub const GATHER_MAX_S: i64 = 7 * 24 * 3_600;
/// Simulated ends of a run in one forecast, and simulated nodes in all of them.
pub const RUN_FORECAST_ROUNDS: usize = 200;
pub const RUN_FORECAST_NODES: usize = 100_000;
/// The forecast of a run reads the workers of at most this many queues. A run with more queues has no forecast.
pub const RUN_FORECAST_QUEUES: usize = 20;
/// Needs that `why` follows from a waiting job.
pub const WHY_NEEDS: usize = 16;
/// Jobs that one `claim` may return.
pub const CLAIM_JOBS: usize = 2_000;
/// Payloads of the jobs that one `claim` returns. A claim stops with the job that reaches it.
pub const CLAIM_BYTES: usize = 16 << 20;
/// Results in the `inputs` of all jobs that one `claim` returns. Results beyond that are references.
pub const CLAIM_INPUTS_BYTES: i64 = 16 << 20;
/// Claim attempts that run concurrently on one node for workers that wait for the same lanes (thundering-herd control).
pub const CLAIM_GATE_PERMITS: usize = 8;
/// Additional concurrent claim attempts while attempts find jobs.
pub const CLAIM_GATE_EXTRA_PERMITS: usize = 56;
/// Outcomes in one `settle`.
pub const SETTLE_OUTCOMES: usize = 4_000;
/// Writes in one journal request.
pub const JOURNAL_WRITES: usize = 1_000;
/// Operations in one journal request.
pub const JOURNAL_OPS: usize = 1_000;
/// Entries of one journal.
pub const JOURNAL_ENTRIES: i64 = 10_000;
/// Size of one journal.
pub const JOURNAL_BYTES: i64 = 64 << 20;
/// A fuller journal has a warning in the signal of its job, in percent of either limit.
pub const JOURNAL_WARNING_PERCENT: i64 = 80;
/// Failed attempts that an entry of a journal keeps.
pub const JOURNAL_ATTEMPTS: usize = 10;
/// The error message of such an attempt. Longer ones are truncated.
pub const JOURNAL_ATTEMPT_MESSAGE_BYTES: usize = 1 << 10;
/// Digest of an operation.
pub const JOURNAL_HASH_BYTES: usize = 128;
/// Jobs that one operation `child` starts.
pub const JOURNAL_CHILDREN: usize = 10_000;
/// Keys of entries that wake a suspended job.
pub const WAKE_KEYS: usize = 1_000;
/// Members of the data that an awaited event must have.
pub const EVENT_MATCHES: usize = 16;
/// Signal events of one job that no operation has got.
pub const JOB_EVENTS: usize = 1_000;
/// Data of one signal event.
pub const JOB_EVENT_BYTES: usize = 64 << 10;
/// Title of an approval. Its detail and the note of an answer may have `REASON_BYTES`.
pub const APPROVAL_TITLE_BYTES: usize = 256;
/// The result of one child in the entry that started it. A larger one is read from the child.
pub const CHILD_RESULT_BYTES: usize = 64 << 10;
/// The results of all children of one entry.
pub const CHILD_RESULTS_BYTES: usize = 1 << 20;
/// Longest duration that a worker may report for a step.
pub const MAX_STEP_DURATION_MS: i64 = 366 * 24 * 3_600 * 1_000;
/// Recorded results in one response, and results of all journals that one claim returns.
pub const JOURNAL_PAGE_BYTES: i64 = 8 << 20;
/// Entries that one claim returns for one journal.
pub const JOURNAL_CLAIM_ENTRIES: usize = 1_000;
/// Names of queues, kinds and processes.
pub const NAME_BYTES: usize = 128;
/// Affinities, subjects, runs, tags and keys.
pub const LABEL_BYTES: usize = 256;
/// Tags of one job.
pub const TAGS: usize = 32;
pub const WORKER_QUEUES: usize = 100;
pub const WORKER_KINDS: usize = 100;
pub const WORKER_AFFINITIES: usize = 100;
/// Longer error messages are truncated at a character boundary, so that a long stack trace never makes an outcome
/// invalid.
pub const ERROR_MESSAGE_BYTES: usize = 16 << 10;
pub const ERROR_CODE_BYTES: usize = 128;
pub const REASON_BYTES: usize = 1 << 10;
pub const PRIORITY_MIN: i64 = -32_768;
pub const PRIORITY_MAX: i64 = 32_767;
pub const MAX_ATTEMPTS: i64 = 1_000;
pub const DEFAULT_MAX_ATTEMPTS: i32 = 3;
pub const LEASE_MIN_S: i64 = 1;
pub const LEASE_MAX_S: i64 = 3_600;
pub const LEASE_DEFAULT_S: i64 = 30;
/// Default maximum delay between two attempts, for a retry policy that sets none.
pub const RETRY_MAX_S: i64 = 24 * 3_600;
/// Longest delay that any retry policy, snooze or schedule may request.
pub const WAIT_MAX_S: i64 = 10 * 366 * 24 * 3_600;
/// Longest execution timeout of a job.
pub const TIMEOUT_MAX_S: i64 = 30 * 24 * 3_600;
/// Longest long poll. The caller polls again after it.
pub const LONG_POLL_S: u64 = 60;
pub const PAGE_ITEMS: usize = 500;
pub const PAGE_DEFAULT_ITEMS: usize = 50;
/// Fewest digits of an id by which a job is found: 24 random bits of a suffix tell a few thousand jobs apart.
pub const ID_PART_DIGITS: usize = 6;
/// Rows that a filter without an index may scan for one page. A page that hits this limit is marked `partial`.
pub const SCAN_ROWS: usize = 5_000;
/// Counts of potentially large sets stop here and are marked as lower bounds.
pub const MAX_COUNTED_ROWS: usize = 10_000;
/// Rows that the first scan for a page reads. Each further scan reads four times as many.
pub const PAGE_FIRST_SCAN_ROWS: usize = 100;
/// Lanes that a listing queries one by one. With more lanes it scans the newest rows of all lanes instead.
pub const LISTED_LANES: usize = 512;
/// Tags, error codes or kinds with a common prefix that a listing queries one by one.
pub const LISTED_PREFIXES: usize = 100;
/// Lanes (queue, kind, priority, affinity) that one claim or listing considers.
pub const LANES: usize = 10_000;
/// Retention of idempotency keys.
pub const IDEMPOTENCY_RETENTION_S: i64 = 24 * 3_600;
/// Default starvation bound of a queue: how long jobs of other affinities may be passed over before the oldest of them
/// wins.
pub const STARVATION_DEFAULT_S: i64 = 300;
pub const CONCURRENCY_MAX: i64 = 100_000;
/// Default retention of ended jobs.
pub const RETENTION_DEFAULT_S: i64 = 7 * 24 * 3_600;
/// Default retention of the history of jobs.
pub const HISTORY_RETENTION_DEFAULT_S: i64 = 90 * 24 * 3_600;
/// Default retention of the timelines of subjects and runtimes, of operations and of health records.
pub const TIMELINE_RETENTION_S: i64 = 366 * 24 * 3_600;
/// Minimum interval between timeline entries for a numeric fact that a subject's own agent reports and no selector uses.
pub const AGENT_FACT_TIMELINE_INTERVAL_S: i64 = 60;
/// Most recent timeline entries that are searched for a duplicate before an entry is added.
pub const TIMELINE_DEDUP_ENTRIES: usize = 20;
/// Rows that one maintenance step changes in one transaction.
pub const MAINTENANCE_ROWS: usize = 1_000;
/// Batches of `MAINTENANCE_ROWS` rows that one prune step scans. Rows past their retention may be retained for another
/// reason, so a batch can contain nothing to delete.
pub const MAINTENANCE_BATCHES: usize = 20;
/// Rounds of one request that prunes a queue. Each scans and deletes a bounded number of jobs.
pub const QUEUE_PRUNE_ROUNDS: usize = 50;
/// Requests that share one group commit.
pub const SHARED_COMMIT_REQUESTS: usize = 4_096;
/// Jobs that share one group commit.
pub const SHARED_COMMIT_JOBS: usize = 10_000;
/// Bytes of payloads or results that share one group commit. A larger request commits alone.
pub const SHARED_COMMIT_BYTES: usize = 64 * 1024 * 1024;
/// Bytes of payloads or results that wait for a group commit. Beyond that, requests get 503.
pub const PENDING_COMMIT_BYTES: usize = 256 * 1024 * 1024;
/// How long the SQLite writer keeps a transaction open to add more operations to it. Operations that arrive later are
/// already queued for the next transaction while the clients of this one process their responses.
pub const SQLITE_COALESCE_MS: u64 = 6;
/// Artifacts up to this size are stored in the database; larger ones in the blob store.
pub const ARTIFACT_INLINE_BYTES: usize = 64 << 10;
pub const ARTIFACT_BYTES: u64 = 10 << 30;
pub const ARTIFACTS_PER_JOB: usize = 1_000;
/// Blobs that one node deletes concurrently.
pub const CONCURRENT_BLOB_DELETES: usize = 16;
/// If no node has sent a heartbeat for this long, the service was down. Leases then get one more full term, so that
/// downtime of the service does not consume attempts.
pub const OUTAGE_MS: i64 = 3_000;
/// No attempt times out for this long after an outage or a start, so that workers can report the attempts that ended
/// meanwhile.
pub const TIMEOUT_GRACE_MS: i64 = 15_000;
/// Interval of the heartbeat that each node writes.
pub const SERVICE_HEARTBEAT_MS: i64 = 1_000;
/// Age of the last successful heartbeat from which a node is not ready: its writes do not complete.
pub const READY_WRITE_AGE_MS: i64 = 3_000;
/// Time limit of the query of a readiness probe. Together with `READY_WRITE_AGE_MS`, a probe fails within 5 s.
pub const READY_QUERY_MS: i64 = 2_000;
/// The outage threshold of a node that starts: one overdue heartbeat, because a lease may be shorter than `OUTAGE_MS`.
pub const OUTAGE_AT_START_MS: i64 = SERVICE_HEARTBEAT_MS + 500;
/// For this long after an outage or a start, a fact that could not be renewed meanwhile does not count as old. If the
/// requested maximum age is shorter, that age applies instead.
pub const FACT_GRACE_S: i64 = 300;
/// How long all nodes must have been without a heartbeat before a down migration may run.
pub const STOPPED_AFTER_MS: i64 = 15_000;
/// A last heartbeat further in the future than this was written by a clock that has since been set back.
pub const CLOCK_STEP_MS: i64 = 60_000;
/// Keys that one query finds for the deletion of a tenant.
pub const TENANT_DELETE_KEYS: usize = 50_000;
/// Rows that one transaction deletes for the deletion of a tenant.
pub const TENANT_DELETE_ROWS: usize = 500;
/// How long nothing is deleted by age after the clock was set forward by more than `CLOCK_STEP_MS`.
pub const RETENTION_HOLD_S: i64 = 3_600;
/// A node that starts after a longer time without any heartbeat cannot tell an outage from a clock that was set forward.
pub const UNSERVED_IN_DOUBT_MS: i64 = 24 * 3_600 * 1_000;
/// How far in the future the time of a fact may lie. Another transaction's clock may be slightly ahead.
pub const FACT_AHEAD_MS: i64 = 10_000;
/// Default retention of resolved dead letters. Unresolved ones are never pruned.
pub const DEAD_LETTER_RETENTION_DEFAULT_S: i64 = 30 * 24 * 3_600;
/// Dead letters in one replay by ids or by filter.
pub const REPLAY_DEAD_LETTERS: usize = 10_000;
/// Unresolved dead letters, the newest ones, that the dashboard groups.
pub const GROUPED_DEAD_LETTERS: usize = 5_000;
/// Groups of dead letters on the page, the largest ones.
pub const DEAD_LETTER_GROUPS: usize = 50;
/// Attempts in the event of a dead letter, the newest ones. The letter itself has all of them.
pub const DEAD_LETTER_EVENT_ATTEMPTS: usize = 100;
/// Random letters and digits in a token: 256 bits.
pub const TOKEN_RANDOM_CHARS: usize = 43;
/// Queues that a token can be restricted to, and tenants that it can serve.
pub const TOKEN_SCOPE_ITEMS: usize = 100;
/// Active tokens of one tenant.
pub const TOKENS_PER_TENANT: usize = 10_000;
/// How long revoked and expired tokens stay listed.
pub const ENDED_TOKEN_RETENTION_S: i64 = 366 * 24 * 3_600;
pub const TENANTS: usize = 10_000;
/// Tokens that one node caches.
pub const TOKENS_CACHED: usize = 10_000;
/// How long a node uses its token cache without asking the database. A revocation waits this long before it returns, so
/// that no node accepts the token afterwards.
pub const TOKEN_CACHE_TTL_MS: u64 = 250;
/// Age at which a request refreshes the token cache in the background, before it expires.
pub const TOKEN_CACHE_REFRESH_AFTER_MS: u64 = 100;
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
/// Deliveries in flight to endpoints whose last attempt failed. The other slots are kept for endpoints that answer.
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
/// Default timeout of a synchronous call.
pub const CALL_TIMEOUT_DEFAULT_S: i64 = 30;
pub const CALL_TIMEOUT_MAX_S: i64 = 300;
/// How much longer than its caller waits a call's handler may run. A result that arrives in this time is stored.
pub const CALL_LATE_RESULT_S: i64 = 60;
/// How long after its timeout a call counts as abandoned. Until then its own node may still record the end.
pub const CALL_GRACE_MS: i64 = 5_000;
/// Default retention of abandoned calls.
pub const ABANDONED_RETENTION_DEFAULT_S: i64 = 7 * 24 * 3_600;
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
/// Peers whose session and message counts are tracked.
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
/// Facts of one subject.
pub const SUBJECT_FACTS: usize = 256;
/// One fact's value, as JSON.
pub const FACT_BYTES: usize = 16 << 10;
/// A fact's new value on the timeline. Longer values are omitted there.
pub const TIMELINE_FACT_BYTES: usize = 1 << 10;
/// Conditions of one selector.
pub const SELECTOR_CONDITIONS: usize = 64;
/// Levels of groups in a selector.
pub const SELECTOR_DEPTH: usize = 4;
/// Processes of one tenant. Each change of a fact is evaluated against every process's selector.
pub const PROCESSES: usize = 500;
pub const PROCESS_EXCLUDES: usize = 50;
/// Default delay before a process considers a subject again that is still eligible after its job.
pub const PROCESS_EVERY_DEFAULT_S: i64 = 60;
/// Jobs that one scan step creates, and subjects that it evaluates.
pub const PROCESS_SCAN_ROWS: usize = 500;
/// The counts of a process stop here.
pub const PROCESS_COUNT_ROWS: usize = 100_000;
/// Parked jobs of one subject that are released together when it becomes free. Jobs that exclude each other park
/// together.
pub const SUBJECT_UNPARK_JOBS: i64 = 100;
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
/// Tenants whose outbox rows a dispatcher considers at a time.
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
/// How long a snapshot of a queue (positions, workers) is cached for the signals of its jobs.
pub const QUEUE_SNAPSHOT_TTL_MS: u64 = 1_000;
/// Queue snapshots that are cached.
pub const QUEUE_SNAPSHOTS_CACHED: usize = 1_000;
/// Jobs of a queue that a snapshot reads. Positions beyond are estimated from the maintained counters.
pub const QUEUE_SNAPSHOT_JOBS: usize = 1_000;
pub const QUEUE_SNAPSHOT_WORKERS: usize = 10_000;
/// Earlier jobs with the same key that are read for a prediction.
pub const PREVIOUS_JOBS: usize = 5;
/// A normalized error message.
pub const FAILURE_PATTERN_BYTES: usize = 256;
pub const FAILURE_PATTERN_TOKENS: usize = 64;
/// A signature's regular expression, as text.
pub const SIGNATURE_PATTERN_BYTES: usize = 512;
/// A signature's regular expression, compiled.
pub const SIGNATURE_PROGRAM_BYTES: usize = 64 << 10;
/// Largest repetition count in a signature's regular expression. PostgreSQL has the same limit.
pub const SIGNATURE_REPEATS: u32 = 255;
/// The part of a subject or image that a signature is matched against.
pub const SIGNATURE_SUBJECT_BYTES: usize = 512;
/// Failures that one transaction groups, and unrepaired failures that one transaction checks.
pub const FAILURE_BATCH_ROWS: usize = 200;
/// Samples after which a failure group proposes a signature.
pub const SIGNATURE_AFTER_SAMPLES: u64 = 3;
/// Signatures of one tenant.
pub const SIGNATURES: usize = 1_000;
/// Repair times stored per failure group.
pub const REPAIR_SAMPLES: usize = 100;
/// A failure without a success after this long is no longer watched for its repair.
pub const REPAIR_MAX_S: i64 = 7 * 24 * 3_600;
/// Subjects of a failure group that are shown.
pub const FAILURE_SUBJECTS_SHOWN: usize = 10;
pub const FAILURE_RETENTION_S: i64 = 90 * 24 * 3_600;
/// Retention of the hourly counts of failures.
pub const FAILURE_HOURS_RETENTION_S: i64 = 7 * 24 * 3_600;
/// Jobs that one replay of a failure group creates.
pub const REPLAY_JOBS: usize = 500;
/// Retention of a job's signals after its end.
pub const SIGNAL_RETENTION_S: i64 = 24 * 3_600;
/// A signature with less confidence that has not been touched for `SIGNATURE_STALE_S` is disabled.
pub const SIGNATURE_MIN_CONFIDENCE: f64 = 0.3;
pub const SIGNATURE_STALE_S: i64 = 30 * 24 * 3_600;
/// Ended jobs that one node samples for its statistics between two folds.
pub const DURATION_SAMPLES: usize = 256;
/// ETAs of running and waiting jobs that one node tracks to measure their accuracy.
pub const TRACKED_ETAS: usize = 10_000;
/// Reports of progress per running job from which one node learns how progress maps to time.
pub const REPORTS_PER_JOB: usize = 20;
/// Lanes whose arrival rate one fold updates: those with the most ended jobs.
pub const ARRIVAL_LANES_PER_FOLD: usize = 32;
/// Workers whose concurrency one node tracks.
pub const TRACKED_WORKERS: usize = 10_000;
/// Lanes for which one node tracks whether jobs arrive together.
pub const TRACKED_LANES: usize = 10_000;
/// A new affinity borrows from the histories of at most this many others of its kind.
pub const KIN_AFFINITIES: usize = 16;
/// Kinds of work whose statistics are cached.
pub const DURATION_STATISTICS_CACHED: usize = 10_000;
pub const DURATION_STATISTICS_TTL_MS: u64 = 2_000;
/// Event streams of single jobs that one node keeps open.
pub const STREAMS: usize = 20_000;
/// Jobs that a filtered stream considers.
pub const STREAM_WINDOW: usize = 200;
/// Filtered streams that one token may keep open on one node. Each tab of the dashboard has one.
pub const STREAMS_PER_TOKEN: usize = 200;
/// Minimum interval between two reads of a filtered stream. It reads at most `STREAM_WINDOW` changed jobs at a time.
pub const STREAM_READ_INTERVAL_MS: u64 = 250;
/// How old the scan may be that finds changes of other nodes. Streams with the same tenant and filter share it.
pub const STREAM_SCAN_TTL_MS: u64 = 1_600;
/// Filters whose scans are cached.
pub const STREAM_FILTERS_CACHED: usize = 1_000;
/// Open dashboard tabs up to which each receives an event for changes once a second. With more, the interval grows.
pub const CHANGED_STREAMS_PER_S: usize = 10;
/// Time-to-first-signal events in one request.
pub const TTFS_EVENTS: usize = 1_000;
pub const TTFS_MAX_MS: i64 = 24 * 3_600 * 1_000;
pub const TTFS_METADATA_BYTES: usize = 64 << 10;
/// How far back the daily rollups reach.
pub const TTFS_DAYS: i64 = 90;
/// How far back the hourly rollups reach.
pub const TTFS_HOURS: i64 = 7 * 24;
/// Hours that the service level objective is computed over.
pub const TTFS_SLO_HOURS: i64 = 24;
/// Concurrent connections. A peer may hold half of them, and an eighth when fewer than a quarter are free.
pub const CONNECTIONS: usize = 8_192;
/// Further connections that are answered only if they ask for the health of the server.
pub const RESERVED_CONNECTIONS: usize = 64;
/// How long a connection in a reserved place may last.
pub const RESERVED_CONNECTION_S: u64 = 10;
/// How long a connection may take to send the head of a request, and how long it may be idle between two requests.
pub const REQUEST_HEAD_S: u64 = 60;
pub const REQUEST_HEAD_BYTES: usize = 64 << 10;
pub const REQUEST_HEAD_FIELDS: usize = 100;
/// How long a request body may make no progress before the request is aborted.
pub const BODY_IDLE_S: u64 = 30;
/// Minimum rate of a request body after `BODY_IDLE_S`, on average over the time in which the server waits for it.
pub const BODY_BYTES_PER_S: u64 = 1_024;
/// How long a write to a connection may make no progress before the connection is closed.
pub const WRITE_IDLE_S: u64 = 60;
/// Idle timeout of a dashboard session.
pub const SESSION_IDLE_S: i64 = 12 * 3_600;
/// Age at which a session's secret is rotated.
pub const SESSION_ROTATE_S: i64 = 3_600;
/// How long the previous secret stays valid after a rotation.
pub const SESSION_GRACE_S: i64 = 60;
pub const SESSIONS_PER_TOKEN: usize = 100;
/// Retention of the throughput counts per minute.
pub const THROUGHPUT_RETENTION_S: i64 = 24 * 3_600;
/// Minutes of throughput that pages show.
pub const THROUGHPUT_MINUTES: i64 = 60;
/// Queues that the overview page reads.
pub const OVERVIEW_QUEUES: usize = 200;
pub const OVERVIEW_WORKERS: usize = 500;
pub const OVERVIEW_RUNTIMES: usize = 100;
/// Deliveries per state that the overview page reads.
pub const OVERVIEW_DELIVERIES: usize = 100;
/// Failure groups that the overview page shows.
pub const OVERVIEW_FAILURES: usize = 5;
/// The overview page reports queues whose oldest job has waited longer than this.
pub const OVERVIEW_LONG_WAIT_S: i64 = 300;
/// The overview page reports failed deliveries up to this age.
pub const OVERVIEW_FAILED_DELIVERY_S: i64 = 3_600;
/// Workers that the page of a job names.
pub const JOB_PAGE_WORKERS: usize = 8;
/// Intervals of the charts of a queue or a kind.
pub const ACTIVITY_INTERVALS: i64 = 60;
/// Ended jobs that the latencies of a queue or a kind are computed from, the newest ones.
pub const RECENT_ENDS: usize = 5_000;
/// Failed jobs that the page of a queue lists.
pub const ACTIVITY_FAILED_JOBS: usize = 10;
/// The form to push a job offers the payloads of this many newest jobs of the queue.
pub const PUSH_PAYLOAD_JOBS: usize = 20;
/// Newest jobs that the page of a kind lists.
pub const KIND_PAGE_JOBS: usize = 20;
/// Failure groups that the page of a kind reads.
pub const KIND_PAGE_FAILURES: usize = 100;
/// Claims of a worker that its page reads, and jobs that it lists.
pub const WORKER_PAGE_CLAIMS: usize = 50;
pub const WORKER_PAGE_JOBS: usize = 100;
/// Entries of a journal on one page of the dashboard.
pub const JOURNAL_ROWS: usize = 100;
/// Lanes with an affinity that the affinity page reads.
pub const AFFINITY_LANES: usize = 512;
/// Jobs that the affinity page counts in each lane.
pub const AFFINITY_COUNTED_JOBS: usize = 200;
/// Jobs counted for each member of a pool. SQLite looks up each one individually.
pub const BACKLOG_COUNTED_JOBS: usize = 1_000;
/// Changes of a runtime's health that its health strip is drawn from.
pub const HEALTH_STRIP_CHANGES: usize = 100;
/// Subjects on a page of the fleet. Each is read whole, with its state in every process.
pub const FLEET_ITEMS: usize = 30;
/// A runtime's name is part of its container's name and of a path.
pub const RUNTIME_NAME_BYTES: usize = 63;
pub const IMAGE_REF_BYTES: usize = 512;
pub const RUNTIME_ARGUMENTS: usize = 256;
pub const RUNTIME_ENV: usize = 256;
pub const RUNTIME_PORTS: usize = 32;
pub const RUNTIME_VOLUMES: usize = 32;
/// One command-line argument or environment variable.
pub const RUNTIME_TEXT_BYTES: usize = 32 << 10;
pub const VOLUME_PATH_BYTES: usize = 255;
pub const PROBE_PATH_BYTES: usize = 1 << 10;
pub const PORT_MAX: u16 = u16::MAX;
/// Docker refuses containers with less memory.
pub const RUNTIME_MEMORY_MIN_MB: i64 = 6;
pub const RUNTIME_MEMORY_MAX_MB: i64 = 16 << 20;
pub const RUNTIME_MAX_CPUS: f64 = 1_024.0;
/// Processes in one container.
pub const RUNTIME_PIDS: i64 = 4_096;
pub const RUNTIMES_PER_TENANT: usize = 1_000;
/// Default time that a container gets to stop by itself before it is killed.
pub const STOP_GRACE_DEFAULT_S: i64 = 10;
pub const STOP_GRACE_MAX_S: i64 = 600;
/// Timeout of a Docker call other than a pull, a stop or a stream.
pub const DOCKER_CALL_S: u64 = 30;
/// Timeout of an image pull.
pub const IMAGE_PULL_S: u64 = 3_600;
/// Attempts of an operation while Docker is unavailable.
pub const OPERATION_ATTEMPTS: i32 = 1_000;
/// First delay between two such attempts. It doubles up to `OPERATION_RETRY_MAX_S`.
pub const OPERATION_RETRY_S: u64 = 1;
pub const OPERATION_RETRY_MAX_S: u64 = 60;
/// Operations that one node runs concurrently.
pub const CONCURRENT_OPERATIONS: usize = 16;
/// A node's lease on an operation. It lapses unless the node renews it.
pub const OPERATION_LEASE_MS: i64 = 6_000;
/// Interval between probes of a runtime.
pub const PROBE_EVERY_S: u64 = 15;
pub const PROBE_TIMEOUT_S: u64 = 2;
/// Consecutive failed probes that make a runtime unhealthy.
pub const PROBE_FAILURES: u32 = 3;
/// Interval between inspections of a container.
pub const INSPECT_EVERY_S: u64 = 30;
/// Interval between reconciliations of containers with their records.
pub const RECONCILE_EVERY_S: u64 = 300;
/// Retention of a stopped container.
pub const STOPPED_CONTAINER_RETENTION_S: i64 = 30 * 24 * 3_600;
/// Lines of a runtime's log that are shown by default.
pub const LOG_DEFAULT_LINES: i64 = 200;
pub const LOG_MAX_LINES: i64 = 100_000;
/// Logs that one node reads concurrently on behalf of other nodes.
pub const CONCURRENT_LOG_READINGS: usize = 32;
pub const CONCURRENT_LOG_READINGS_PER_TENANT: usize = CONCURRENT_LOG_READINGS / 2;
/// Bytes of a log that are passed on at a time.
pub const LOG_CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a log that are buffered for a slow reader.
pub const LOG_BUFFERED_CHUNKS: i64 = 16;
/// How long a node may take to send the first chunk of a requested log.
pub const LOG_FIRST_CHUNK_TIMEOUT_S: u64 = 5;
/// The reader or the serving node of a log counts as gone after this long without a sign of life.
pub const LOG_IDLE_TIMEOUT_S: i64 = 15;
/// Retention of log readings that both sides abandoned.
pub const LOG_READING_RETENTION_S: i64 = 60;
/// Heartbeat interval of a node that drives Docker. After three missed heartbeats the node counts as lost.
pub const NODE_HEARTBEAT_S: i64 = 5;
/// Labels that a runtime may require of its node, and labels of one node.
pub const PLACEMENT_LABELS: usize = 32;
/// Slots that one node may offer.
pub const NODE_MAX_SLOTS: i64 = 10_000;
/// Default time that a node must be lost before its movable runtimes start on another node.
pub const MOVE_AFTER_S: i64 = 60;
pub const POOLS_PER_TENANT: usize = 100;
/// Members of one pool.
pub const POOL_MEMBERS: usize = 100;
/// Runtimes of one pool that may be up concurrently.
pub const POOL_SLOTS: u32 = 64;
/// Jobs that one slot runs concurrently.
pub const POOL_SLOT_MAX_JOBS: u32 = 256;
pub const HANDLER_TIMEOUT_DEFAULT_S: i64 = 300;
pub const HANDLER_TIMEOUT_MAX_S: i64 = 24 * 3_600;
/// A node's lease on a pool. It lapses unless the node renews it.
pub const POOL_LEASE_MS: i64 = 10_000;
/// How long a runtime may take from its start until it is healthy.
pub const RUNTIME_LOAD_S: u64 = 1_800;
/// First backoff of a model that failed to load. It doubles up to `MODEL_BACKOFF_MAX_S`.
pub const MODEL_BACKOFF_S: i64 = 5;
pub const MODEL_BACKOFF_MAX_S: i64 = 600;
/// A file of the OpenAI-compatible API.
pub const FILE_BYTES: u64 = 200 << 20;
/// The output file of a batch: each line's result with its envelope.
pub const BATCH_OUTPUT_BYTES: u64 = BATCH_LINES as u64 * (RESULT_BYTES as u64 + 4_096);
/// Retention periods that may be requested for a file.
pub const FILE_RETENTION_S: std::ops::RangeInclusive<i64> = 3_600..=2_592_000;
/// Lines of one batch.
pub const BATCH_LINES: usize = 50_000;
/// Invalid lines of a batch that are reported.
pub const BATCH_ERRORS: usize = 100;
/// Jobs of a batch that one transaction creates.
pub const BATCH_INSERT_JOBS: usize = 1_000;
/// Jobs of a batch that are canceled concurrently.
pub const BATCH_CONCURRENT_CANCELS: usize = 16;
/// Results of a batch that are read at a time.
pub const BATCH_RESULT_ROWS: usize = 100;
/// Completion windows that may be requested for a batch, in hours.
pub const BATCH_WINDOW_H: std::ops::RangeInclusive<i64> = 1..=720;
/// Retention of ended batches. Their files stay until they are deleted or expire.
pub const BATCH_RETENTION_S: i64 = 30 * 86_400;
pub const METADATA_MEMBERS: usize = 16;
pub const METADATA_KEY_BYTES: usize = 64;
pub const METADATA_VALUE_BYTES: usize = 512;
/// Chunks of a streamed response that are buffered for a slow reader.
pub const RELAY_CHUNKS: usize = 64;
/// How long a full buffer waits before its reader counts as gone.
pub const RELAY_IDLE_S: u64 = 30;
/// Results of one search of the documentation.
pub const DOCS_RESULTS: usize = 20;
/// Maximum size of a search of the documentation.
pub const DOCS_QUERY_BYTES: usize = 200;
