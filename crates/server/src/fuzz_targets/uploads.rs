//! Fuzz target for uploaded batch files of the OpenAI-compatible API.

use std::collections::HashSet;

use domain::limits::BATCH_ERRORS;
use engine::runtimes::openai::lines;

/// An accepted batch consists of objects, each with a unique id and a model. A refused one reports a limited number of
/// faults.
pub fn batch(data: &[u8]) {
    match lines::read(data, "/v1/embeddings", None) {
        Ok(read) => {
            let text = std::str::from_utf8(data).expect("lines are text");
            assert!(text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('{')));
            let ids: HashSet<&str> = read.iter().map(|line| line.custom_id.as_str()).collect();
            assert!(!read.is_empty() && ids.len() == read.len());
            assert!(read.iter().all(|line| line.body.get().starts_with('{')));
        }
        Err(faults) => assert!((1..=BATCH_ERRORS).contains(&faults.len())),
    }
}
