//! Tokens: who may do what. A new one is shown once.

use askama::Template;
use wire::{Page, TokenView};

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "tokens.html")]
pub struct Tokens {
    pub frame: Frame,
    pub page: Page<TokenView>,
    /// Role and what it brings, in a few words.
    pub roles: Vec<(&'static str, String)>,
    pub grantable: Vec<&'static str>,
    /// This server's database as the command line names it, without what is secret about it.
    pub database: String,
}

impl Tokens {
    /// Whether the next token is the first of all, which shuts the door behind whoever makes it.
    fn is_first(&self) -> bool {
        !self.frame.signed_in && self.page.items.is_empty()
    }

    /// The role that a new token begins with: the least, unless nobody could come in with it and make another.
    fn is_suggested(&self, role: &str) -> bool {
        role == if self.is_first() { "admin" } else { "viewer" }
    }
}

fn queues(token: &TokenView) -> String {
    token.queues.as_ref().map_or_else(|| "all".into(), |queues| queues.join(", "))
}
