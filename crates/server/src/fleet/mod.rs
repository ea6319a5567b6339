//! Authentication of subject agents.

pub(crate) mod agent_auth;
