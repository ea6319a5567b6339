//! Pages for tokens and the audit trail.

pub(crate) mod history;
pub(crate) mod tokens;
