//! What a browser is shown in place of a problem document.

use askama::Template;
use wire::Problem;

use crate::assets;
use crate::frame::Place;

/// It stands alone: whoever sees it may not be let in, so it shows nothing of anyone.
#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub root: String,
    pub problem: Problem,
    pub onward: Onward,
}

/// Where somebody whose way ended here can go on.
#[derive(Clone, Copy, Debug)]
pub enum Onward {
    /// The first page that is open to them.
    Page(Place),
    /// No page is.
    SignIn,
}

impl Onward {
    /// Its address as seen from the root of the pages.
    fn link(self) -> &'static str {
        match self {
            Self::Page(place) => place.link(),
            Self::SignIn => "sign-in",
        }
    }

    fn words(self) -> String {
        match self {
            Self::Page(Place::Overview) => "To the overview".into(),
            Self::Page(place) => format!("To {}", place.label().to_lowercase()),
            Self::SignIn => "Sign in with another token".into(),
        }
    }
}

impl ErrorPage {
    fn assets(&self) -> &str {
        &assets::VERSION
    }
}
