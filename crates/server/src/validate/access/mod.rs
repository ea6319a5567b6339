//! Validation of tokens.

pub(crate) mod token;
