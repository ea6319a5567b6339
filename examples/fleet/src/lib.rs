//! A fleet of machines that three processes take from `provided` to `installed`, based on facts.
//!
//! `processes` declares the processes, `machines` simulates the machines and their agents, and `work` is the worker.
//! The program in `main` and the test run the same code.

pub mod machines;
pub mod processes;
pub mod work;
