//! Runs: groups of jobs with dependencies.

use reqwest::Method;
use serde::Serialize;
use wire::{NodesRequest, Page, RunAccepted, RunRequest, RunSignalView, RunView};

use crate::client::Client;
use crate::error::ClientError;

/// Selects runs; fields that are `None` match everything.
#[derive(Debug, Default, Clone, Serialize)]
pub struct RunFilter {
    /// The state.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// The name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// A tag that the runs have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Number of runs in a page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub limit: Option<usize>,
    /// `next_cursor` of the previous page.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

impl Client {
    /// Starts a run. All its jobs are durable when this returns.
    pub async fn start_run(&self, run: &RunRequest) -> Result<RunAccepted, ClientError> {
        self.post(&["runs"], run).await
    }

    /// Adds nodes to a run that has not ended.
    pub async fn add_nodes(&self, run: &str, nodes: &NodesRequest) -> Result<RunAccepted, ClientError> {
        self.post(&["runs", run, "nodes"], nodes).await
    }

    /// Returns one page of runs.
    pub async fn runs(&self, filter: &RunFilter) -> Result<Page<RunView>, ClientError> {
        self.fetch(self.get(&["runs"]).query(filter)).await
    }

    /// Returns a run with its nodes.
    pub async fn run(&self, run: &str) -> Result<RunView, ClientError> {
        self.fetch(self.get(&["runs", run])).await
    }

    /// Returns the signal of a run.
    pub async fn run_signal(&self, run: &str) -> Result<RunSignalView, ClientError> {
        self.fetch(self.get(&["runs", run, "signal"])).await
    }

    /// Cancels a run and all its jobs that have not ended.
    pub async fn cancel_run(&self, run: &str) -> Result<RunView, ClientError> {
        self.fetch(self.request(Method::POST, &["runs", run, "cancel"])).await
    }

    /// Starts a new run with the nodes that did not succeed and everything behind them.
    pub async fn retry_run(&self, run: &str) -> Result<RunAccepted, ClientError> {
        self.fetch(self.request(Method::POST, &["runs", run, "retry"])).await
    }
}
