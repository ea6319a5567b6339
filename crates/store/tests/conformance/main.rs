//! One suite for both databases: every promise of the store, by its effect.

mod support;

mod cancel;
mod claim;
mod differential;
mod enqueue;
mod lease;
mod limits;
mod settle;
