//! The Docker implementation of `Driver`, on its Unix socket.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, EventMessage, HealthStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, EventsOptionsBuilder, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use bytes::Bytes;
use domain::limits::{DOCKER_CALL_S, IMAGE_PULL_S, STOP_GRACE_MAX_S};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::Mutex;

use super::container;
use super::driver::{
    Container, ContainerEvent, ContainerEventKind, Driver, DriverError, DriverFuture, DriverStream, Follow,
    HealthCheck, NewContainer,
};

/// The default address of Docker's socket.
pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// Timeout of a ping.
const PING_S: u64 = 5;

pub struct Docker {
    host: String,
    /// Connected on first use, with the negotiated API version, and again after Docker was unavailable.
    client: Mutex<Option<bollard::Docker>>,
}

impl Docker {
    pub fn new(host: &str) -> Self {
        Self { host: host.to_owned(), client: Mutex::new(None) }
    }

    async fn client(&self) -> Result<bollard::Docker, DriverError> {
        let mut cached = self.client.lock().await;
        if let Some(client) = &*cached {
            return Ok(client.clone());
        }
        let unavailable = |error: Error| DriverError::Unavailable(error.to_string());
        // The timeout of the longest call. `within` limits the others.
        let client = bollard::Docker::connect_with_unix(
            &self.host,
            DOCKER_CALL_S + STOP_GRACE_MAX_S as u64,
            bollard::API_DEFAULT_VERSION,
        );
        let negotiating = client.map_err(unavailable)?.negotiate_version();
        let negotiated = tokio::time::timeout(Duration::from_secs(PING_S), negotiating).await;
        let late = |_| DriverError::Unavailable(format!("no response within {PING_S} s"));
        let client = negotiated.map_err(late)?.map_err(unavailable)?;
        *cached = Some(client.clone());
        Ok(client)
    }

    /// Limits the duration of a call, so that a hanging Docker engine is detected.
    async fn within<T>(&self, seconds: u64, call: impl Future<Output = Result<T, Error>>) -> Result<T, DriverError> {
        let result = tokio::time::timeout(Duration::from_secs(seconds), call).await;
        self.convert(result.unwrap_or(Err(Error::RequestTimeoutError))).await
    }

    /// Converts the result of a call. Drops the client if Docker is unavailable, so that the next call reconnects.
    async fn convert<T>(&self, result: Result<T, Error>) -> Result<T, DriverError> {
        let error = match result {
            Ok(value) => return Ok(value),
            Err(error) => driver_error(&error),
        };
        if matches!(error, DriverError::Unavailable(_)) {
            *self.client.lock().await = None;
        }
        Err(error)
    }
}

impl Driver for Docker {
    fn ping(&self) -> DriverFuture<'_, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            self.within(PING_S, client.ping()).await.map(drop)
        })
    }

    fn has_image<'a>(&'a self, image: &'a str) -> DriverFuture<'a, bool> {
        Box::pin(async move {
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.inspect_image(image)).await {
                Ok(_) => Ok(true),
                Err(DriverError::NotFound(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn pull<'a>(&'a self, image: &'a str) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            let options = CreateImageOptionsBuilder::new().from_image(image).build();
            let pulling = client.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) });
            match tokio::time::timeout(Duration::from_secs(IMAGE_PULL_S), pulling).await {
                Ok(result) => self.convert(result).await,
                Err(_) => Err(DriverError::Refused(format!("the pull took longer than {IMAGE_PULL_S} s"))),
            }
        })
    }

    fn create<'a>(&'a self, new: NewContainer<'a>) -> DriverFuture<'a, String> {
        Box::pin(async move {
            let options = CreateContainerOptionsBuilder::new().name(&new.identity.container_name()).build();
            let client = self.client().await?;
            let creating = client.create_container(Some(options), container::body(new));
            self.within(DOCKER_CALL_S, creating).await.map(|made| made.id)
        })
    }

    fn start<'a>(&'a self, id: &'a str) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            self.within(DOCKER_CALL_S, client.start_container(id, None)).await
        })
    }

    fn stop<'a>(&'a self, id: &'a str, grace_s: i64) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let options = StopContainerOptionsBuilder::new().t(grace_s as i32).build();
            let client = self.client().await?;
            let seconds = DOCKER_CALL_S + grace_s.max(0) as u64;
            self.within(seconds, client.stop_container(id, Some(options))).await
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> DriverFuture<'a, ()> {
        Box::pin(async move {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.remove_container(id, Some(options))).await {
                Err(DriverError::NotFound(_)) => Ok(()),
                other => other,
            }
        })
    }

    fn inspect<'a>(&'a self, id: &'a str) -> DriverFuture<'a, Option<Container>> {
        Box::pin(async move {
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.inspect_container(id, None)).await {
                Ok(found) => Ok(Some(container_of(found))),
                Err(DriverError::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn labelled<'a>(&'a self, label: &'a str) -> DriverFuture<'a, Vec<String>> {
        Box::pin(async move {
            let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
            let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
            let client = self.client().await?;
            let found = self.within(DOCKER_CALL_S, client.list_containers(Some(options))).await?;
            Ok(found.into_iter().filter_map(|summary| summary.id).collect())
        })
    }

    fn events<'a>(&'a self, label: &'a str) -> DriverFuture<'a, DriverStream<ContainerEvent>> {
        Box::pin(async move {
            let filters = HashMap::from([
                ("label".to_owned(), vec![label.to_owned()]),
                ("type".to_owned(), vec!["container".to_owned()]),
            ]);
            let options = EventsOptionsBuilder::new().filters(&filters).build();
            let events = self.client().await?.events(Some(options)).map_err(|error| driver_error(&error));
            Ok(events.try_filter_map(|event| async move { Ok(container_event(event)) }).boxed())
        })
    }

    fn logs<'a>(&'a self, id: &'a str, tail: i64, follow: Follow) -> DriverFuture<'a, DriverStream<Bytes>> {
        Box::pin(async move {
            let options = LogsOptionsBuilder::new()
                .stdout(true)
                .stderr(true)
                .tail(&tail.to_string())
                .follow(follow == Follow::Yes)
                .build();
            let logs = self.client().await?.logs(id, Some(options)).map_err(|error| driver_error(&error));
            Ok(logs.map_ok(bollard::container::LogOutput::into_bytes).boxed())
        })
    }
}

/// Converts a Docker event. `None` for events that are not of interest.
fn container_event(event: EventMessage) -> Option<ContainerEvent> {
    let actor = event.actor?;
    let (id, labels) = (actor.id?, actor.attributes?);
    let what = match event.action?.as_str() {
        "oom" => ContainerEventKind::OutOfMemory,
        "die" => ContainerEventKind::Ended(labels.get("exitCode").and_then(|code| code.parse().ok())),
        "destroy" => ContainerEventKind::Removed,
        "health_status: unhealthy" => ContainerEventKind::HealthCheck(HealthCheck::Unhealthy),
        "health_status: healthy" => ContainerEventKind::HealthCheck(HealthCheck::Healthy),
        _ => return None,
    };
    Some(ContainerEvent { id, labels, at: event.time_nano.map(|nanos| nanos / 1_000), what })
}

fn driver_error(error: &Error) -> DriverError {
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

fn container_of(found: ContainerInspectResponse) -> Container {
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
        Some(HealthStatusEnum::HEALTHY) => Some(HealthCheck::Healthy),
        Some(HealthStatusEnum::UNHEALTHY) => Some(HealthCheck::Unhealthy),
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
