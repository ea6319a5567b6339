//! Tests of tenants, tokens, rights and secrets.

pub(crate) mod quotas;
pub(crate) mod secrets;
pub(crate) mod tenant_deletion;
pub(crate) mod tokens;
