//! Routes for tokens, tenants and history.

pub(crate) mod history;
pub(crate) mod tokens;
