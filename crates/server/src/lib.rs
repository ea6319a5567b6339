//! The HTTP server: the JSON API under `/api/v1`, the OpenAI-compatible API, health, metrics, the OpenAPI document and
//! the dashboard.
//!
//! `app` builds an `AppState` and calls `serve`. Handlers live in `http/v1/<group>/<noun>.rs`: they read and validate
//! the request (`extract`, `validate`), call one store operation or one engine long-poll, and build the response
//! (`view`). Only `error` maps failures to HTTP statuses.

pub mod access;
mod body_timeout;
mod connection_places;
mod cursor;
mod dashboard;
mod error;
mod extract;
pub(crate) mod fleet;
#[cfg(any(test, fuzzing))]
pub mod fuzz_targets;
mod http;
mod json;
mod listen;
mod openapi;
mod page;
pub(crate) mod runtimes;
mod serve;
pub(crate) mod signals;
mod state;
mod tls;
pub mod triggers;
mod validate;
mod view;
mod write_timeout;

pub use access::host::HostCheck;
pub use access::rights::documentation;
pub use access::session::CookieKey;
pub use connection_places::ConnectionLimits;
pub use http::metrics;
pub use openapi::document;
pub use serve::{router, serve};
pub use signals::answer_sampler::AnswerSampler;
pub use signals::streams::Streams;
pub use state::{AppState, ServerOptions, TriggerDefaults};
pub use tls::{Tls, TlsError};
