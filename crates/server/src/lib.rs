//! The HTTP face: routes under `/api/v1`, health, metrics, the OpenAPI document and the dashboard.
//!
//! `http/v1/<noun>.rs` holds the handlers. They check what came in (`extract`, `validate`), call one operation of the
//! store or one long-poll of the engine, and shape the answer (`view`). `error` alone maps to statuses.

mod agent;
mod auth;
mod cloudevent;
mod cursor;
mod dashboard;
mod depth;
mod error;
mod extract;
mod host;
mod http;
mod json;
mod listen;
pub mod machine;
mod openai;
mod openapi;
mod page;
#[cfg(any(test, fuzzing))]
pub mod parsers;
mod patience;
mod rights;
mod serve;
mod session;
mod signal;
mod signature;
pub mod smtp;
mod state;
mod streams;
mod sync;
mod tls;
mod validate;
mod view;

pub use host::HostCheck;
pub use http::metrics;
pub use openapi::document;
pub use rights::documentation;
pub use serve::{router, serve};
pub use session::CookieKey;
pub use state::{AppState, ServerOptions, TriggerDefaults};
pub use streams::Streams;
pub use tls::{Tls, TlsError};
