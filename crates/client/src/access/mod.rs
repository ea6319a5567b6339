//! Tenants, tokens and history.

pub(crate) mod history;
pub(crate) mod tokens;
