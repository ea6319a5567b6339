//! Runtimes and the operations on them.

use std::time::Duration;

use reqwest::{Method, RequestBuilder, Response};
use wire::{
    MoveRequest, NodeView, OperationAccepted, OperationRequest, OperationView, Page, RuntimeHealthView, RuntimeRequest,
    RuntimeView,
};

use crate::client::{Client, read};
use crate::error::ClientError;

/// What came of asking for an operation.
#[derive(Debug, Clone)]
pub enum Operated {
    /// It has ended in the time that was waited.
    Ended(Box<OperationView>),
    Accepted(OperationAccepted),
    /// There was nothing to do first: it is gone.
    Gone,
}

/// What is asked of a runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuntimeVerb {
    Start,
    Stop,
    Restart,
    Patch,
    /// Removes the container; the runtime stays.
    CleanUp,
    Delete,
}

impl Client {
    /// By name.
    pub async fn runtimes(&self, cursor: Option<&str>) -> Result<Page<RuntimeView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["runtimes"]).query(&query)).await
    }

    pub async fn runtime(&self, name: &str) -> Result<RuntimeView, ClientError> {
        self.answer(self.get(&["runtimes", name])).await
    }

    pub async fn set_runtime(&self, name: &str, request: &RuntimeRequest) -> Result<RuntimeView, ClientError> {
        self.answer(self.request(Method::PUT, &["runtimes", name]).json(request)).await
    }

    /// Asks for an operation and waits for its end up to `wait`. `source` is `api` or `cli`.
    pub async fn operate_runtime(
        &self,
        name: &str,
        verb: RuntimeVerb,
        image: Option<&str>,
        wait: Duration,
        source: &str,
    ) -> Result<Operated, ClientError> {
        let body = OperationRequest { image: image.map(str::to_owned) };
        let post = |verb: &str| self.request(Method::POST, &["runtimes", name, verb]);
        let request: RequestBuilder = match verb {
            RuntimeVerb::Start => post("start").json(&body),
            RuntimeVerb::Stop => post("stop"),
            RuntimeVerb::Restart => post("restart").json(&body),
            RuntimeVerb::Patch => post("patch").json(&body),
            RuntimeVerb::CleanUp => self.request(Method::DELETE, &["runtimes", name, "container"]),
            RuntimeVerb::Delete => self.request(Method::DELETE, &["runtimes", name]),
        };
        let request = request
            .query(&[("wait", format!("{}ms", wait.as_millis()))])
            .header("x-windlass-source", source)
            .timeout(self.timeout().saturating_add(wait));
        let response = self.send(request).await?;
        match response.status().as_u16() {
            200 => read(response).await.map(|view| Operated::Ended(Box::new(view))),
            204 => Ok(Operated::Gone),
            _ => read(response).await.map(Operated::Accepted),
        }
    }

    /// Moves it to this node, or to the one with the most room.
    pub async fn move_runtime(&self, name: &str, node: Option<&str>) -> Result<RuntimeView, ClientError> {
        let request = MoveRequest { node: node.map(str::to_owned) };
        self.answer(self.request(Method::POST, &["runtimes", name, "move"]).json(&request)).await
    }

    /// Those that drive a Docker engine.
    pub async fn nodes(&self) -> Result<Page<NodeView>, ClientError> {
        self.answer(self.get(&["nodes"])).await
    }

    /// Newest first.
    pub async fn runtime_operations(
        &self,
        name: &str,
        cursor: Option<&str>,
    ) -> Result<Page<OperationView>, ClientError> {
        let query: Vec<_> = cursor.map(|cursor| ("cursor", cursor)).into_iter().collect();
        self.answer(self.get(&["runtimes", name, "operations"]).query(&query)).await
    }

    pub async fn runtime_health(&self, name: &str) -> Result<RuntimeHealthView, ClientError> {
        self.answer(self.get(&["runtimes", name, "health"])).await
    }

    /// The log as it stands.
    pub async fn runtime_logs(&self, name: &str, tail: Option<u32>) -> Result<Response, ClientError> {
        self.logs(name, tail, "false").await
    }

    /// The log, and whatever is written from now on: it does not end by itself.
    pub async fn follow_runtime_logs(&self, name: &str, tail: Option<u32>) -> Result<Response, ClientError> {
        self.logs(name, tail, "true").await
    }

    async fn logs(&self, name: &str, tail: Option<u32>, follow: &str) -> Result<Response, ClientError> {
        let mut query = vec![("follow", follow.to_owned())];
        query.extend(tail.map(|lines| ("tail", lines.to_string())));
        self.send(self.get(&["runtimes", name, "logs"]).query(&query)).await
    }
}
