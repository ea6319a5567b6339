//! The sign-in page: exchanges a token for a session cookie.

use askama::Template;

use crate::assets;

#[derive(Debug, Template)]
#[template(path = "sign_in.html")]
pub struct SignIn<'a> {
    /// The page to open after signing in.
    pub next: &'a str,
    pub wrong: Option<&'a str>,
}

impl SignIn<'_> {
    fn assets(&self) -> &str {
        &assets::VERSION
    }
}
