//! The machine room: the database, the tasks that run by themselves, what was pruned.

use askama::Template;
use wire::TasksView;

use crate::frame::Frame;
use crate::html;

#[derive(Debug, Template)]
#[template(path = "system.html")]
pub struct System {
    pub frame: Frame,
    pub tasks: TasksView,
    /// What is known of the database; nothing for guests of the house.
    pub database: Option<DatabaseState>,
}

#[derive(Clone, Debug)]
pub struct DatabaseState {
    pub engine: &'static str,
    pub bytes: i64,
    /// Room that is taken and not used: free pages of SQLite, estimated dead rows of PostgreSQL.
    pub wasted: Wasted,
    pub wal_bytes: Option<i64>,
    pub schema: usize,
    pub clock_skew_ms: i64,
    pub oldest_transaction_s: i64,
    /// The largest tables and their size.
    pub largest: Vec<(String, i64)>,
}

#[derive(Clone, Copy, Debug)]
pub enum Wasted {
    Bytes(i64),
    Rows(i64),
}

impl DatabaseState {
    fn wasted(&self) -> (String, &'static str) {
        match self.wasted {
            Wasted::Bytes(bytes) => (html::bytes(&bytes), "free pages"),
            Wasted::Rows(rows) => (html::count(&rows), "dead rows"),
        }
    }
}

fn every(ms: &u64) -> String {
    html::seconds(*ms as f64 / 1_000.0)
}

fn took(ms: &Option<u64>) -> String {
    ms.map_or_else(|| "–".into(), |ms| format!("{ms} ms"))
}
