//! Pages for history, sign-in and tokens.

pub mod history;
pub mod sign_in;
pub mod tokens;
