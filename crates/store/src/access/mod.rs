//! Access: tenants, tokens, rights, page sessions and secrets.

pub(crate) mod caller;
pub mod secrets;
pub mod sessions;
pub mod tenants;
pub mod tokens;
