//! Access: tokens, rights, sessions, and checks of host and origin.

pub(crate) mod auth;
pub(crate) mod claim;
pub(crate) mod cross_site;
pub(crate) mod host;
pub mod local_admin;
pub(crate) mod rights;
pub(crate) mod session;
