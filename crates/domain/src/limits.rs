//! Every limit of the program, in one place: sizes, counts, timeouts, retention periods and their defaults. One file per
//! group; callers use `limits::NAME`.
//!
//! A loop, queue, body, page or retry without a limit here is a bug. Names end with the unit: `_BYTES`, `_S`, `_MS`, or
//! what is counted. `_DEFAULT_` marks a value that a request or the configuration can replace.

mod access;
mod dashboard;
mod db;
mod fleet;
mod http;
mod queue;
mod runtimes;
mod signals;
mod triggers;
mod workflows;

pub use access::*;
pub use dashboard::*;
pub use db::*;
pub use fleet::*;
pub use http::*;
pub use queue::*;
pub use runtimes::*;
pub use signals::*;
pub use triggers::*;
pub use workflows::*;

/// Names of queues, kinds and processes.
pub const NAME_BYTES: usize = 128;
/// Affinities, subjects, runs, tags and keys.
pub const LABEL_BYTES: usize = 256;
/// Longer error messages are truncated at a character boundary, so that a long stack trace never makes an outcome
/// invalid.
pub const ERROR_MESSAGE_BYTES: usize = 16 << 10;
pub const ERROR_CODE_BYTES: usize = 128;
pub const REASON_BYTES: usize = 1 << 10;
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
