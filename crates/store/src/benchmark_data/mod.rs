//! Fills a database with rows for measurements. Only the benchmark calls this module.

pub mod backlog;
pub mod pages;
