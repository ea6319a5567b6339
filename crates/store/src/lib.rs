//! All SQL of Windlass. One operation is one transaction is one file.
//!
//! `Store` opens either database; its methods, spread over the files of `jobs`, `workers`, `queues`, `subjects`,
//! `processes`, `backoffs`, `timeline`, `artifacts`, `triggers`, `events`, `kv`, `outbox`, `dead_letters`, `tokens`, `tenants`
//! and `maintenance`, are the operations. They are written once, over `tx::Tx`; only the text of a statement may differ.

pub mod artifacts;
pub mod backoffs;
pub mod backup;
mod batch;
mod caller;
pub mod calls;
pub mod clock;
mod codec;
pub mod counters;
pub mod dead_letters;
pub mod deliveries;
mod effects;
mod error;
pub mod events;
pub mod expression;
pub mod failures;
mod floors;
mod habits;
pub mod hints;
mod in_hand;
pub mod jobs;
mod kept;
pub mod kv;
mod lanes;
pub mod lines;
pub mod maintenance;
pub mod migrate;
pub mod one_form;
pub mod openai;
pub mod outbox;
pub mod pools;
pub mod processes;
pub mod queues;
pub mod runtimes;
pub mod schedule;
pub mod secrets;
pub mod sessions;
pub mod signals;
pub mod signatures;
mod store;
pub mod subjects;
pub mod tenants;
pub mod timeline;
pub mod tokens;
pub mod triggers;
pub mod ttfs;
pub mod tx;
mod unread;
pub mod verify;
mod wall;
pub mod workers;

pub use caller::Caller;
pub use clock::Clock;
pub use error::StoreError;
pub use kept::Freshness;
pub use lanes::Lane;
pub use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};
