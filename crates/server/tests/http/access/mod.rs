//! Tenants, tokens, rights, sessions and quotas.

pub(crate) mod cross_site;
pub(crate) mod history;
pub(crate) mod quotas;
pub(crate) mod sessions;
pub(crate) mod tokens;
pub(crate) mod ttfs_quota;
pub(crate) mod webhook_rights;
