//! Runtimes and the operations on them.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use wire::{
    MoveRequest, NodeView, OperationAccepted, OperationRequest, OperationView, Page, RuntimeHealthView, RuntimeRequest,
    RuntimeView,
};

use crate::client::{Client, read};
use crate::error::ClientError;

/// The result of requesting an operation.
#[derive(Debug, Clone)]
pub enum OperationResult {
    /// The operation ended within the waiting time.
    Ended(Box<OperationView>),
    /// The server carries the operation out.
    Accepted(OperationAccepted),
    /// The runtime had no container and was deleted immediately.
    Deleted,
}

/// An operation on a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeOperation {
    /// Start it.
    Start,
    /// Stop it.
    Stop,
    /// Stop and start it.
    Restart,
    /// Change it.
    Patch,
    /// Removes the container; the runtime is retained.
    CleanUp,
    /// Delete it.
    Delete,
}

impl Client {
    /// Returns runtimes by name.
    pub async fn runtimes(&self, cursor: Option<&str>) -> Result<Page<RuntimeView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["runtimes"]).query(&query)).await
    }

    /// Returns a runtime.
    pub async fn runtime(&self, name: &str) -> Result<RuntimeView, ClientError> {
        self.fetch(self.get(&["runtimes", name])).await
    }

    /// Creates or changes a runtime.
    pub async fn set_runtime(&self, name: &str, request: &RuntimeRequest) -> Result<RuntimeView, ClientError> {
        self.fetch(self.request(Method::PUT, &["runtimes", name]).json(request)).await
    }

    /// Requests an operation and waits up to `wait` for its end. `source` is `api` or `cli`.
    pub async fn operate_runtime(
        &self,
        name: &str,
        verb: RuntimeOperation,
        image: Option<&str>,
        wait: Duration,
        source: &str,
    ) -> Result<OperationResult, ClientError> {
        let body = OperationRequest { image: image.map(str::to_owned) };
        let post = |verb: &str| self.request(Method::POST, &["runtimes", name, verb]);
        let request: RequestBuilder = match verb {
            RuntimeOperation::Start => post("start").json(&body),
            RuntimeOperation::Stop => post("stop"),
            RuntimeOperation::Restart => post("restart").json(&body),
            RuntimeOperation::Patch => post("patch").json(&body),
            RuntimeOperation::CleanUp => self.request(Method::DELETE, &["runtimes", name, "container"]),
            RuntimeOperation::Delete => self.request(Method::DELETE, &["runtimes", name]),
        };
        let request = request
            .query(&[("wait", format!("{}ms", wait.as_millis()))])
            .header("x-windlass-source", source)
            .timeout(self.timeout().saturating_add(wait));
        let response = self.send(request).await?;
        match response.status().as_u16() {
            200 => read(response).await.map(|view| OperationResult::Ended(Box::new(view))),
            204 => Ok(OperationResult::Deleted),
            _ => read(response).await.map(OperationResult::Accepted),
        }
    }

    /// Moves a runtime to this node, or to the suitable node with the most free slots.
    pub async fn move_runtime(&self, name: &str, node: Option<&str>) -> Result<RuntimeView, ClientError> {
        let request = MoveRequest { node: node.map(str::to_owned) };
        self.fetch(self.request(Method::POST, &["runtimes", name, "move"]).json(&request)).await
    }

    /// Returns the nodes that manage a Docker engine.
    pub async fn nodes(&self) -> Result<Page<NodeView>, ClientError> {
        self.fetch(self.get(&["nodes"])).await
    }

    /// Returns the operations on a runtime, newest first.
    pub async fn runtime_operations(
        &self,
        name: &str,
        cursor: Option<&str>,
    ) -> Result<Page<OperationView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.fetch(self.get(&["runtimes", name, "operations"]).query(&query)).await
    }

    /// Returns the latest observations of a runtime.
    pub async fn runtime_health(&self, name: &str) -> Result<RuntimeHealthView, ClientError> {
        self.fetch(self.get(&["runtimes", name, "health"])).await
    }

    /// Returns the current log.
    pub async fn runtime_logs(&self, name: &str, tail: Option<u32>) -> Result<Response, ClientError> {
        self.logs(name, tail, "false").await
    }

    /// Returns the log and everything that is written from now on. The stream does not end by itself.
    pub async fn follow_runtime_logs(&self, name: &str, tail: Option<u32>) -> Result<Response, ClientError> {
        self.logs(name, tail, "true").await
    }

    async fn logs(&self, name: &str, tail: Option<u32>, follow: &str) -> Result<Response, ClientError> {
        let mut query = vec![("follow", follow.to_owned())];
        query.extend(tail.map(|lines| ("tail", lines.to_string())));
        self.send(self.get(&["runtimes", name, "logs"]).query(&query)).await
    }
}
