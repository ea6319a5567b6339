//! Commands for tenants, tokens, secrets and history.

pub(crate) mod history;
pub(crate) mod secret;
pub(crate) mod tenant;
pub(crate) mod token;
