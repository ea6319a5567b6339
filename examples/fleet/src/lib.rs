//! A fleet of machines, taken from `provided` to `installed` by three processes over facts.
//!
//! `processes` declares what is to be done, `machines` plays the machines and their agents, `work` is the worker that
//! does it. The program in `main` and the test run the same code.

pub mod machines;
pub mod processes;
pub mod work;
