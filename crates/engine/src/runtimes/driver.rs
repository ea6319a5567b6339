//! The interface to a container engine. `docker` is the only implementation. docs/internals/container-engines.md
//! describes what another implementation would have to provide.

use std::collections::HashMap;

use bytes::Bytes;
use domain::runtimes::{ImageRef, RuntimeSpec};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use super::container::{Folder, Identity};

/// Errors, by what the caller can do.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// No response, or not in time. Retry later.
    #[error("Docker is unreachable: {0}")]
    Unavailable(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    /// Docker refused the request.
    #[error("{0}")]
    Refused(String),
}

pub type DriverFuture<'a, T> = BoxFuture<'a, Result<T, DriverError>>;
pub type DriverStream<T> = BoxStream<'static, Result<T, DriverError>>;

/// The definition of a new container.
#[derive(Clone, Copy, Debug)]
pub struct NewContainer<'a> {
    pub identity: &'a Identity,
    /// The node that creates it.
    pub node: &'a str,
    pub spec: &'a RuntimeSpec,
    pub image: &'a ImageRef,
    pub folders: &'a [Folder],
}

/// The properties of a container that runtimes use.
#[derive(Clone, Debug, Default)]
pub struct Container {
    pub id: String,
    pub labels: HashMap<String, String>,
    /// The image reference that it was created from.
    pub image: String,
    pub running: bool,
    /// Created and never started.
    pub fresh: bool,
    pub exit_code: Option<i64>,
    pub oom_killed: bool,
    /// The result of the image's health check, if it has one.
    pub checked: Option<HealthCheck>,
    /// Container port, host address, host port.
    pub ports: Vec<(u16, String, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HealthCheck {
    Healthy,
    Unhealthy,
}

/// An event of a container.
#[derive(Clone, Debug)]
pub struct ContainerEvent {
    pub id: String,
    pub labels: HashMap<String, String>,
    /// Microseconds since the Unix epoch, by Docker's clock.
    pub at: Option<i64>,
    pub what: ContainerEventKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerEventKind {
    /// Ran out of memory. The end follows.
    OutOfMemory,
    Ended(Option<i64>),
    Removed,
    HealthCheck(HealthCheck),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

pub trait Driver: Send + Sync + 'static {
    fn ping(&self) -> DriverFuture<'_, ()>;

    fn has_image<'a>(&'a self, image: &'a str) -> DriverFuture<'a, bool>;

    fn pull<'a>(&'a self, image: &'a str) -> DriverFuture<'a, ()>;

    /// Returns the id of the new container. Its name follows from its identity; a duplicate name is a conflict.
    fn create<'a>(&'a self, new: NewContainer<'a>) -> DriverFuture<'a, String>;

    fn start<'a>(&'a self, id: &'a str) -> DriverFuture<'a, ()>;

    /// Asks the container to exit and kills it after `grace_s`.
    fn stop<'a>(&'a self, id: &'a str, grace_s: i64) -> DriverFuture<'a, ()>;

    /// Removes the container and its anonymous volumes; folders under the state path are not affected. A missing
    /// container is a success.
    fn remove<'a>(&'a self, id: &'a str) -> DriverFuture<'a, ()>;

    /// `id` is an id or a name.
    fn inspect<'a>(&'a self, id: &'a str) -> DriverFuture<'a, Option<Container>>;

    /// The ids of all containers with this label, including stopped ones.
    fn labelled<'a>(&'a self, label: &'a str) -> DriverFuture<'a, Vec<String>>;

    /// Streams the events of containers with this label, until the connection ends.
    fn events<'a>(&'a self, label: &'a str) -> DriverFuture<'a, DriverStream<ContainerEvent>>;

    /// Streams stdout and stderr, from the last `tail` lines on.
    fn logs<'a>(&'a self, id: &'a str, tail: i64, follow: Follow) -> DriverFuture<'a, DriverStream<Bytes>>;
}

impl Container {
    /// The address on this machine at which a port of the container is reachable.
    pub fn address_of(&self, port: u16) -> Option<String> {
        let (_, address, published) = self.ports.iter().find(|(inside, _, _)| *inside == port)?;
        Some(match address.as_str() {
            "" | "0.0.0.0" => format!("127.0.0.1:{published}"),
            "::" => format!("[::1]:{published}"),
            v6 if v6.contains(':') => format!("[{v6}]:{published}"),
            v4 => format!("{v4}:{published}"),
        })
    }
}
