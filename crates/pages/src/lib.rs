//! The HTML of the dashboard, rendered from the views of the JSON API, and its static files.
//!
//! `server/dashboard/<page>.rs` loads the data of a page. The file here with the same name renders it, with the
//! template of the same name. Nothing here reads a clock or a database. User data is escaped by the template engine or
//! by `html`.

pub mod access;
pub mod assets;
pub mod chart;
pub mod docs;
pub mod error;
pub mod fleet;
pub mod frame;
mod html;
mod icons;
pub mod latency;
pub mod overview;
pub mod queue;
pub mod runtimes;
pub mod signals;
pub mod system;
pub mod triggers;
mod waterfall;
pub mod workflows;

pub use askama::Template;
pub use frame::{Can, Crumb, DashboardPage, Frame};
pub use html::{count, segment, short};
