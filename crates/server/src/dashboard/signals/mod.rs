//! Pages for failures and time to first signal.

pub(crate) mod failures;
pub(crate) mod overview;
