//! What an engine must answer: the few calls that runtimes are made of. Everything above this trait speaks of runtimes and
//! containers; `docker` is the one that is built and tested, and docs/RUNTIMES.md says what others would answer.

use std::collections::HashMap;

use bytes::Bytes;
use domain::runtime::{ImageRef, RuntimeSpec};
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;

use super::container::{Folder, Identity};

/// What went wrong, by what can be done about it.
#[derive(Clone, Debug, thiserror::Error)]
pub enum DriverError {
    /// Nobody answers, or not in time: try again later.
    #[error("the Docker engine cannot be reached: {0}")]
    Unavailable(String),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Conflict(String),
    /// The engine understood and does not want to.
    #[error("{0}")]
    Refused(String),
}

pub type Answer<'a, T> = BoxFuture<'a, Result<T, DriverError>>;
pub type Flow<T> = BoxStream<'static, Result<T, DriverError>>;

/// What a container is made of, and whose it is.
#[derive(Clone, Copy, Debug)]
pub struct NewContainer<'a> {
    pub identity: &'a Identity,
    /// Who makes it.
    pub node: &'a str,
    pub spec: &'a RuntimeSpec,
    pub image: &'a ImageRef,
    pub folders: &'a [Folder],
}

/// A container as far as a runtime has to do with it.
#[derive(Clone, Debug, Default)]
pub struct Container {
    pub id: String,
    pub labels: HashMap<String, String>,
    /// The reference that it was made from.
    pub image: String,
    pub running: bool,
    /// It was made and never started.
    pub fresh: bool,
    pub exit_code: Option<i64>,
    pub oom_killed: bool,
    /// What the image's own check says, where it has one.
    pub checked: Option<Checked>,
    /// The container's port and where it is published.
    pub ports: Vec<(u16, String, u16)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checked {
    Healthy,
    Unhealthy,
}

/// Something that happened to a container.
#[derive(Clone, Debug)]
pub struct Happening {
    pub id: String,
    pub labels: HashMap<String, String>,
    /// Microseconds since 1970, by the engine's clock.
    pub at: Option<i64>,
    pub what: What,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// It ran out of memory; its end follows.
    Starved,
    Ended(Option<i64>),
    Removed,
    Checked(Checked),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

pub trait Driver: Send + Sync + 'static {
    fn ping(&self) -> Answer<'_, ()>;

    fn has_image<'a>(&'a self, image: &'a str) -> Answer<'a, bool>;

    fn pull<'a>(&'a self, image: &'a str) -> Answer<'a, ()>;

    /// The new container's id. Its name follows from its identity; one that is taken is a conflict.
    fn create<'a>(&'a self, new: NewContainer<'a>) -> Answer<'a, String>;

    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// Asks it to end and, after a while, ends it.
    fn stop<'a>(&'a self, id: &'a str, grace_s: i64) -> Answer<'a, ()>;

    /// With the volumes that the engine made for it; folders under the state path are none of these. What is gone is removed.
    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()>;

    /// By id or by name.
    fn inspect<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Container>>;

    /// The ids of all containers with this label, stopped ones too.
    fn labelled<'a>(&'a self, label: &'a str) -> Answer<'a, Vec<String>>;

    /// What happens to containers with this label, from now on until the engine goes away.
    fn events<'a>(&'a self, label: &'a str) -> Answer<'a, Flow<Happening>>;

    /// Both outputs as they came, from the last `tail` lines on.
    fn logs<'a>(&'a self, id: &'a str, tail: i64, follow: Follow) -> Answer<'a, Flow<Bytes>>;
}

impl Container {
    /// Where a port of the container is answered on this machine.
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
