//! What a browser is shown in place of a problem document.

use askama::Template;
use wire::Problem;

use crate::assets;

/// It stands alone: whoever sees it may not be let in, so it shows nothing of anyone.
#[derive(Debug, Template)]
#[template(path = "error.html")]
pub struct ErrorPage {
    pub root: String,
    pub problem: Problem,
}

impl ErrorPage {
    fn assets(&self) -> &str {
        &assets::VERSION
    }
}
