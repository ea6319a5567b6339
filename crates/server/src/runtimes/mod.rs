//! The OpenAI-compatible API.

pub(crate) mod openai;
