//! Access control: roles, rights, principals and the format of tokens.

pub mod principal;
pub mod rights;
pub mod token;
