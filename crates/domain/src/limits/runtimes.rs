//! Limits of runtimes, pools, logs and the OpenAI-compatible API.

use super::RESULT_BYTES;

/// Jobs counted for each member of a pool. SQLite looks up each one individually.
pub const BACKLOG_COUNTED_JOBS: usize = 1_000;
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
