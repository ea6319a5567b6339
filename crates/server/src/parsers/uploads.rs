//! Uploads: the lines of batches in the shape of the OpenAI API.

use std::collections::HashSet;

use domain::limits::BATCH_FAULTS;
use engine::openai::lines;

/// A batch is taken whole, each line an object with an id of its own and a model, or its faults are told.
pub fn batch(data: &[u8]) {
    match lines::read(data, "/v1/embeddings", None) {
        Ok(read) => {
            let text = std::str::from_utf8(data).expect("lines are text");
            assert!(text.lines().map(str::trim).all(|line| line.is_empty() || line.starts_with('{')));
            let ids: HashSet<&str> = read.iter().map(|line| line.custom_id.as_str()).collect();
            assert!(!read.is_empty() && ids.len() == read.len());
            assert!(read.iter().all(|line| line.body.get().starts_with('{')));
        }
        Err(faults) => assert!((1..=BATCH_FAULTS).contains(&faults.len())),
    }
}
