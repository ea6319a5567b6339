//! The routes.

pub(crate) mod health;
pub mod metrics;
pub(crate) mod sign_in;
pub(crate) mod trace;
pub(crate) mod v1;
