//! Limits of connections, requests and event streams.

/// Maximum size of a request body that carries jobs or outcomes.
pub const BODY_BYTES: usize = 16 << 20;
/// Maximum JSON nesting depth. Both databases and all common parsers accept more.
pub const JSON_DEPTH: usize = 100;
/// Longest long poll. The caller polls again after it.
pub const LONG_POLL_S: u64 = 60;
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
/// Filters with a cached scan.
pub const STREAM_FILTERS_CACHED: usize = 1_000;
/// Open dashboard tabs up to which each receives an event for changes once a second. With more, the interval grows.
pub const CHANGED_STREAMS_PER_S: usize = 10;
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
