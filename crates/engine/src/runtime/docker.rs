//! The engine's socket: the few calls that runtimes are made of, and nothing else of Docker's API.
//!
//! These are the calls that another kind of engine would have to answer; docs/RUNTIMES.md says how each maps.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerCreateBody, ContainerInspectResponse, EventMessage, HealthStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, EventsOptionsBuilder, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use bytes::Bytes;
use domain::limits::{DOCKER_CALL_S, IMAGE_PULL_S, STOP_GRACE_S_MAX};
use futures_util::{Stream, StreamExt, TryStreamExt};
use tokio::sync::Mutex;

/// Where the engine listens unless said otherwise.
pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

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

pub struct Docker {
    host: String,
    /// Made when it is first needed, with the version that the engine speaks, and again when the engine was away.
    client: Mutex<Option<bollard::Docker>>,
}

impl Docker {
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), client: Mutex::new(None) }
    }

    async fn client(&self) -> Result<bollard::Docker, DriverError> {
        let mut known = self.client.lock().await;
        if let Some(client) = &*known {
            return Ok(client.clone());
        }
        let away = |error: Error| DriverError::Unavailable(error.to_string());
        let client = bollard::Docker::connect_with_unix(
            &self.host,
            DOCKER_CALL_S + STOP_GRACE_S_MAX as u64,
            bollard::API_DEFAULT_VERSION,
        );
        let negotiated = tokio::time::timeout(Duration::from_secs(5), client.map_err(away)?.negotiate_version()).await;
        let client = negotiated.map_err(|_| DriverError::Unavailable("no answer within 5 s".into()))?.map_err(away)?;
        *known = Some(client.clone());
        Ok(client)
    }

    /// Judges an answer; an engine that went away is connected to anew.
    async fn judge<T>(&self, answer: Result<T, Error>) -> Result<T, DriverError> {
        let error = match answer {
            Ok(value) => return Ok(value),
            Err(error) => told(&error),
        };
        if matches!(error, DriverError::Unavailable(_)) {
            *self.client.lock().await = None;
        }
        Err(error)
    }

    pub async fn ping(&self) -> Result<(), DriverError> {
        let client = self.client().await?;
        let answer = match tokio::time::timeout(Duration::from_secs(5), client.ping()).await {
            Ok(answer) => answer.map(drop),
            Err(_) => Err(Error::RequestTimeoutError),
        };
        self.judge(answer).await
    }

    pub async fn has_image(&self, image: &str) -> Result<bool, DriverError> {
        let answer = self.client().await?.inspect_image(image).await;
        match self.judge(answer).await {
            Ok(_) => Ok(true),
            Err(DriverError::NotFound(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    pub async fn pull(&self, image: &str) -> Result<(), DriverError> {
        let client = self.client().await?;
        let options = CreateImageOptionsBuilder::new().from_image(image).build();
        let pulling = client.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) });
        match tokio::time::timeout(Duration::from_secs(IMAGE_PULL_S), pulling).await {
            Ok(answer) => self.judge(answer).await,
            Err(_) => Err(DriverError::Refused(format!("the pull took more than {IMAGE_PULL_S} s"))),
        }
    }

    /// The new container's id.
    pub async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, DriverError> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let answer = self.client().await?.create_container(Some(options), body).await;
        self.judge(answer).await.map(|made| made.id)
    }

    pub async fn start(&self, id: &str) -> Result<(), DriverError> {
        let answer = self.client().await?.start_container(id, None).await;
        self.judge(answer).await
    }

    /// Asks it to end and, after a while, ends it.
    pub async fn stop(&self, id: &str, grace_s: i64) -> Result<(), DriverError> {
        let options = StopContainerOptionsBuilder::new().t(grace_s as i32).build();
        let answer = self.client().await?.stop_container(id, Some(options)).await;
        self.judge(answer).await
    }

    /// With the volumes that Docker made for it; folders under the state path are none of these.
    pub async fn remove(&self, id: &str) -> Result<(), DriverError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let answer = self.client().await?.remove_container(id, Some(options)).await;
        match self.judge(answer).await {
            Err(DriverError::NotFound(_)) => Ok(()),
            other => other,
        }
    }

    /// By id or by name.
    pub async fn inspect(&self, id: &str) -> Result<Option<Container>, DriverError> {
        let answer = self.client().await?.inspect_container(id, None).await;
        match self.judge(answer).await {
            Ok(found) => Ok(Some(container(found))),
            Err(DriverError::NotFound(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The ids of all containers with this label, stopped ones too.
    pub async fn labelled(&self, label: &str) -> Result<Vec<String>, DriverError> {
        let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let answer = self.client().await?.list_containers(Some(options)).await;
        Ok(self.judge(answer).await?.into_iter().filter_map(|summary| summary.id).collect())
    }

    /// What happens to containers with this label, from now on until the engine goes away.
    pub async fn events(
        &self,
        label: &str,
    ) -> Result<impl Stream<Item = Result<EventMessage, DriverError>> + use<>, DriverError> {
        let filters = HashMap::from([
            ("label".to_owned(), vec![label.to_owned()]),
            ("type".to_owned(), vec!["container".to_owned()]),
        ]);
        let options = EventsOptionsBuilder::new().filters(&filters).build();
        Ok(self.client().await?.events(Some(options)).map_err(|error| told(&error)))
    }

    /// Both outputs as they came, from the last `tail` lines on.
    pub async fn logs(
        &self,
        id: &str,
        tail: i64,
        follow: Follow,
    ) -> Result<impl Stream<Item = Result<Bytes, DriverError>> + use<>, DriverError> {
        let options = LogsOptionsBuilder::new()
            .stdout(true)
            .stderr(true)
            .tail(&tail.to_string())
            .follow(follow == Follow::Yes)
            .build();
        let logs = self.client().await?.logs(id, Some(options));
        Ok(logs.map(|line| line.map(bollard::container::LogOutput::into_bytes).map_err(|error| told(&error))))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    Yes,
    No,
}

fn told(error: &Error) -> DriverError {
    match error {
        Error::DockerResponseServerError { status_code, message } => match status_code {
            404 => DriverError::NotFound(message.clone()),
            409 => DriverError::Conflict(message.clone()),
            502..=504 => DriverError::Unavailable(message.clone()),
            _ => DriverError::Refused(message.clone()),
        },
        Error::DockerStreamError { error } => DriverError::Refused(error.clone()),
        other => {
            let mut text = other.to_string();
            let mut source = std::error::Error::source(other);
            while let Some(cause) = source {
                text = cause.to_string();
                source = cause.source();
            }
            DriverError::Unavailable(text)
        }
    }
}

fn container(found: ContainerInspectResponse) -> Container {
    let config = found.config.unwrap_or_default();
    let state = found.state.unwrap_or_default();
    let published = found.network_settings.and_then(|network| network.ports).unwrap_or_default();
    let mut ports: Vec<(u16, String, u16)> = published
        .into_iter()
        .filter_map(|(port, bindings)| {
            let inside: u16 = port.split('/').next()?.parse().ok()?;
            let binding = bindings?.into_iter().next()?;
            Some((inside, binding.host_ip.unwrap_or_default(), binding.host_port?.parse().ok()?))
        })
        .collect();
    ports.sort();
    let checked = match state.health.as_ref().and_then(|health| health.status) {
        Some(HealthStatusEnum::HEALTHY) => Some(Checked::Healthy),
        Some(HealthStatusEnum::UNHEALTHY) => Some(Checked::Unhealthy),
        _ => None,
    };
    Container {
        id: found.id.unwrap_or_default(),
        labels: config.labels.unwrap_or_default(),
        image: config.image.unwrap_or_default(),
        running: state.running == Some(true),
        fresh: state.status.is_some_and(|status| status.to_string() == "created"),
        exit_code: state.exit_code,
        oom_killed: state.oom_killed == Some(true),
        checked,
        ports,
    }
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
