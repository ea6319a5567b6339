//! Jobs, queues, workers, claims, artifacts and calls.

pub(crate) mod artifact_claims;
pub(crate) mod artifacts;
pub(crate) mod calls;
pub(crate) mod jobs;
pub(crate) mod queues;
pub(crate) mod workers;
