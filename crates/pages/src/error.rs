//! The error page: what a browser receives instead of a problem document.

use askama::Template;
use wire::Problem;

use crate::assets;
use crate::frame::DashboardPage;

/// Stands alone, without the frame: the reader may not be signed in, so it must not show data.
#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub root: String,
    pub problem: Problem,
    pub onward: ErrorLink,
}

/// The page that the error page links to.
#[derive(Clone, Copy, Debug)]
pub enum ErrorLink {
    /// The first page that the reader may open.
    Page(DashboardPage),
    /// The reader may open no page.
    SignIn,
}

impl ErrorLink {
    /// The address relative to the root of the pages.
    fn href(self) -> &'static str {
        match self {
            Self::Page(page) => page.link(),
            Self::SignIn => "sign-in",
        }
    }

    fn label(self) -> String {
        match self {
            Self::Page(DashboardPage::Overview) => "Go to the overview".into(),
            Self::Page(page) => format!("Go to {}", page.label().to_lowercase()),
            Self::SignIn => "Sign in with another token".into(),
        }
    }
}

impl ErrorPage {
    /// The address of the error's documentation, relative to the root of the pages.
    fn documentation(&self) -> &str {
        self.problem.kind.trim_start_matches('/')
    }

    fn assets(&self) -> &str {
        &assets::VERSION
    }
}
