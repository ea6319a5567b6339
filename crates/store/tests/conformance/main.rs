//! Conformance suite: every guarantee of the store, asserted by its effect on both databases.

mod access;
mod db;
mod fleet;
mod queue;
mod runtimes;
mod signals;
mod support;
mod triggers;
mod workflows;
