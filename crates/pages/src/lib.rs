//! The dashboard's face: HTML out of the views that the JSON routes answer with, and the files the pages need.
//!
//! `server/dashboard/<page>.rs` gathers what a page shows and hands it over; one file here per page says how it looks, with
//! its template of the same name. Nothing here reads a clock or a database. Everything that came from a user goes through
//! the template engine's escaping or through `html`, which escapes too.

pub mod assets;
pub mod chart;
pub mod dead_letters;
pub mod deliveries;
pub mod error;
pub mod failures;
pub mod frame;
pub mod history;
mod html;
pub mod job;
pub mod jobs;
pub mod overview;
pub mod pools;
pub mod queues;
pub mod runtimes;
pub mod sign_in;
pub mod signals;
pub mod subjects;
pub mod system;
pub mod tokens;
pub mod triggers;
pub mod workers;

pub use askama::Template;
pub use frame::{Can, Frame, Place};
pub use html::{count, segment};
