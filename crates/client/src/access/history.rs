//! The tenant's history.

use wire::{Page, TimelineItem};

use crate::client::Client;
use crate::error::ClientError;

/// Selects a part of the tenant's history.
#[derive(Clone, Debug, Default)]
pub struct HistoryFilter {
    /// The subject that changed.
    pub subject: Option<String>,
    /// The runtime that changed.
    pub runtime: Option<String>,
    /// Number of items in a page.
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page.
    pub cursor: Option<String>,
}

impl Client {
    /// Returns changes to subjects, runtimes, queues, triggers and tokens, newest first.
    pub async fn tenant_history(&self, filter: &HistoryFilter) -> Result<Page<TimelineItem>, ClientError> {
        let limit = filter.limit.map(|limit| limit.to_string());
        let query = [
            ("subject", filter.subject.as_deref()),
            ("runtime", filter.runtime.as_deref()),
            ("limit", limit.as_deref()),
            ("cursor", filter.cursor.as_deref()),
        ];
        let query: Vec<_> = query.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        self.fetch(self.get(&["history"]).query(&query)).await
    }
}
