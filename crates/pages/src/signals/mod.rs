//! Pages for failures and first signals.

pub mod failures;
pub mod overview;
