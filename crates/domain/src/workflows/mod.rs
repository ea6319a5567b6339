//! Rules of the workflows group: runs, the dependencies of their nodes, and the journal of durable steps.

pub mod forecast;
pub mod graph;
pub mod journal;
pub mod run;
