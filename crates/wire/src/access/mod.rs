//! Tenants, tokens, roles and rights.

pub mod token;
