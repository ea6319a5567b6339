//! The tokens page: tokens, roles and rights.

use askama::Template;
use wire::{Page, TokenView};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "tokens.html")]
pub struct Tokens {
    pub frame: Frame,
    pub page: Page<TokenView>,
    /// Each role with a summary of its rights.
    pub roles: Vec<(&'static str, String)>,
    pub grantable: Vec<&'static str>,
    /// The database URL of this server as passed to the command line, without secrets.
    pub database: String,
}

impl Tokens {
    /// True if no token exists yet. The first token turns authentication on for everyone, including the person who
    /// creates it.
    fn is_first(&self) -> bool {
        !self.frame.signed_in && self.page.items.is_empty()
    }

    /// True for the role that is preselected for a new token: the one with the fewest rights, but `admin` for the first
    /// token, because only an admin could create another.
    fn is_suggested(&self, role: &str) -> bool {
        role == if self.is_first() { "admin" } else { "viewer" }
    }
}

fn queues(token: &TokenView) -> String {
    token.queues.as_ref().map_or_else(|| "all".into(), |queues| queues.join(", "))
}
