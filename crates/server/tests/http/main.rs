//! The HTTP contract: response shapes, rejections and guarantees, on both databases through the complete router.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod access;
mod api;
mod bad_input;
mod broken;
mod docs;
mod fleet;
mod frame;
mod hardening;
mod matrix;
mod mirror;
mod pages;
mod queue;
mod readiness;
mod runtimes;
mod serving;
mod signals;
mod triggers;
mod workflows;
