//! All SQL of Windlass. One operation is one transaction is one file.
//!
//! `Store` opens either database; its methods, spread over the files of `jobs`, `workers`, `queues`, `artifacts`,
//! `dead_letters`, `tokens`, `tenants` and `maintenance`, are the operations. They are written once, over `tx::Tx`; only the
//! text of a statement may differ.

pub mod artifacts;
mod batch;
pub mod calls;
pub mod clock;
mod codec;
pub mod counters;
pub mod dead_letters;
pub mod deliveries;
mod effects;
mod error;
mod floors;
pub mod failures;
pub mod hints;
pub mod jobs;
mod lanes;
pub mod maintenance;
pub mod migrate;
pub mod queues;
pub mod signals;
pub mod signatures;
mod store;
pub mod tenants;
pub mod tokens;
pub mod ttfs;
pub mod tx;
pub mod verify;
pub mod workers;

pub use clock::Clock;
pub use error::StoreError;
pub use lanes::Lane;
pub use store::{DatabaseUrl, Store, StoreOptions};
