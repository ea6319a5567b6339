//! Runtimes, pools and the OpenAI-compatible API.

pub(crate) mod declarations;
pub(crate) mod openai;
pub(crate) mod operations;
pub(crate) mod pools;
