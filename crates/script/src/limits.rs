//! The limits of one script run.

use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Limits {
    pub source_bytes: usize,
    pub operations: u64,
    pub call_depth: usize,
    pub expression_depth: usize,
    pub functions: usize,
    pub variables: usize,
    /// One string. All strings inside one value count together.
    pub string_bytes: usize,
    /// Elements of one array or map, including nested ones.
    pub items: usize,
    pub time: Duration,
    /// Host calls.
    pub calls: usize,
    pub log_lines: usize,
    pub log_bytes: usize,
    /// The result, as JSON.
    pub output_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        use domain::limits::{
            SCRIPT_BYTES, SCRIPT_CALLS, SCRIPT_DEPTH, SCRIPT_ITEMS, SCRIPT_LOG_BYTES, SCRIPT_LOG_LINES,
            SCRIPT_OPERATIONS, SCRIPT_OUTPUT_BYTES, SCRIPT_STRING_BYTES, SCRIPT_TIME_MS, SCRIPT_VARIABLES,
        };
        Self {
            source_bytes: SCRIPT_BYTES,
            operations: SCRIPT_OPERATIONS,
            call_depth: SCRIPT_DEPTH,
            expression_depth: SCRIPT_DEPTH,
            functions: SCRIPT_VARIABLES,
            variables: SCRIPT_VARIABLES,
            string_bytes: SCRIPT_STRING_BYTES,
            items: SCRIPT_ITEMS,
            time: Duration::from_millis(SCRIPT_TIME_MS),
            calls: SCRIPT_CALLS,
            log_lines: SCRIPT_LOG_LINES,
            log_bytes: SCRIPT_LOG_BYTES,
            output_bytes: SCRIPT_OUTPUT_BYTES,
        }
    }
}
