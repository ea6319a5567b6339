//! Routes outside the dashboard and the OpenAI-compatible API: `/api/v1`, health, metrics and sign-in.

pub(crate) mod health;
pub mod metrics;
pub(crate) mod sign_in;
pub(crate) mod trace;
pub(crate) mod v1;
