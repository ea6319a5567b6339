//! The HTTP contract: shapes, refusals and promises, on both databases through the whole router.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

mod api;
mod artifacts;
mod bad_input;
mod broken;
mod calls;
mod dead_letters;
mod deliveries;
mod events;
mod failures;
mod frame;
mod hardening;
mod history;
mod jobs;
mod mail_triggers;
mod matrix;
mod mirror;
mod openai;
mod pages;
mod pools;
mod queue_triggers;
mod queues;
mod quotas;
mod runtime_declarations;
mod runtime_triggers;
mod runtimes;
mod scripts;
mod serving;
mod sessions;
mod signals;
mod smtp;
mod streams;
mod subjects;
mod tokens;
mod trigger_declarations;
mod triggers;
mod workers;
