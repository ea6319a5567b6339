//! Docker's socket, and nothing of its API but what a `Driver` answers.

use std::collections::HashMap;
use std::time::Duration;

use bollard::errors::Error;
use bollard::models::{ContainerInspectResponse, EventMessage, HealthStatusEnum};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, EventsOptionsBuilder, ListContainersOptionsBuilder,
    LogsOptionsBuilder, RemoveContainerOptionsBuilder, StopContainerOptionsBuilder,
};
use bytes::Bytes;
use domain::limits::{DOCKER_CALL_S, IMAGE_PULL_S, STOP_GRACE_S_MAX};
use futures_util::{StreamExt, TryStreamExt};
use tokio::sync::Mutex;

use super::container;
use super::driver::{Answer, Checked, Container, Driver, DriverError, Flow, Follow, Happening, NewContainer, What};

/// Where the engine listens unless said otherwise.
pub const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// How long an engine may take to say that it is there.
const PING_S: u64 = 5;

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
        // As long as the longest call may take; most are given less.
        let client = bollard::Docker::connect_with_unix(
            &self.host,
            DOCKER_CALL_S + STOP_GRACE_S_MAX as u64,
            bollard::API_DEFAULT_VERSION,
        );
        let negotiating = client.map_err(away)?.negotiate_version();
        let negotiated = tokio::time::timeout(Duration::from_secs(PING_S), negotiating).await;
        let late = |_| DriverError::Unavailable(format!("no answer within {PING_S} s"));
        let client = negotiated.map_err(late)?.map_err(away)?;
        *known = Some(client.clone());
        Ok(client)
    }

    /// Waits for an answer no longer than so many seconds: an engine that is stuck is noticed by each call.
    async fn within<T>(&self, seconds: u64, call: impl Future<Output = Result<T, Error>>) -> Result<T, DriverError> {
        let answer = tokio::time::timeout(Duration::from_secs(seconds), call).await;
        self.judge(answer.unwrap_or(Err(Error::RequestTimeoutError))).await
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
}

impl Driver for Docker {
    fn ping(&self) -> Answer<'_, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            self.within(PING_S, client.ping()).await.map(drop)
        })
    }

    fn has_image<'a>(&'a self, image: &'a str) -> Answer<'a, bool> {
        Box::pin(async move {
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.inspect_image(image)).await {
                Ok(_) => Ok(true),
                Err(DriverError::NotFound(_)) => Ok(false),
                Err(error) => Err(error),
            }
        })
    }

    fn pull<'a>(&'a self, image: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            let options = CreateImageOptionsBuilder::new().from_image(image).build();
            let pulling = client.create_image(Some(options), None, None).try_for_each(|_| async { Ok(()) });
            match tokio::time::timeout(Duration::from_secs(IMAGE_PULL_S), pulling).await {
                Ok(answer) => self.judge(answer).await,
                Err(_) => Err(DriverError::Refused(format!("the pull took more than {IMAGE_PULL_S} s"))),
            }
        })
    }

    fn create<'a>(&'a self, new: NewContainer<'a>) -> Answer<'a, String> {
        Box::pin(async move {
            let options = CreateContainerOptionsBuilder::new().name(&new.identity.container_name()).build();
            let client = self.client().await?;
            let creating = client.create_container(Some(options), container::body(new));
            self.within(DOCKER_CALL_S, creating).await.map(|made| made.id)
        })
    }

    fn start<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let client = self.client().await?;
            self.within(DOCKER_CALL_S, client.start_container(id, None)).await
        })
    }

    fn stop<'a>(&'a self, id: &'a str, grace_s: i64) -> Answer<'a, ()> {
        Box::pin(async move {
            let options = StopContainerOptionsBuilder::new().t(grace_s as i32).build();
            let client = self.client().await?;
            let seconds = DOCKER_CALL_S + grace_s.max(0) as u64;
            self.within(seconds, client.stop_container(id, Some(options))).await
        })
    }

    fn remove<'a>(&'a self, id: &'a str) -> Answer<'a, ()> {
        Box::pin(async move {
            let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.remove_container(id, Some(options))).await {
                Err(DriverError::NotFound(_)) => Ok(()),
                other => other,
            }
        })
    }

    fn inspect<'a>(&'a self, id: &'a str) -> Answer<'a, Option<Container>> {
        Box::pin(async move {
            let client = self.client().await?;
            match self.within(DOCKER_CALL_S, client.inspect_container(id, None)).await {
                Ok(found) => Ok(Some(seen(found))),
                Err(DriverError::NotFound(_)) => Ok(None),
                Err(error) => Err(error),
            }
        })
    }

    fn labelled<'a>(&'a self, label: &'a str) -> Answer<'a, Vec<String>> {
        Box::pin(async move {
            let filters = HashMap::from([("label".to_owned(), vec![label.to_owned()])]);
            let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
            let client = self.client().await?;
            let found = self.within(DOCKER_CALL_S, client.list_containers(Some(options))).await?;
            Ok(found.into_iter().filter_map(|summary| summary.id).collect())
        })
    }

    fn events<'a>(&'a self, label: &'a str) -> Answer<'a, Flow<Happening>> {
        Box::pin(async move {
            let filters = HashMap::from([
                ("label".to_owned(), vec![label.to_owned()]),
                ("type".to_owned(), vec!["container".to_owned()]),
            ]);
            let options = EventsOptionsBuilder::new().filters(&filters).build();
            let events = self.client().await?.events(Some(options)).map_err(|error| told(&error));
            Ok(events.try_filter_map(|event| async move { Ok(happening(event)) }).boxed())
        })
    }

    fn logs<'a>(&'a self, id: &'a str, tail: i64, follow: Follow) -> Answer<'a, Flow<Bytes>> {
        Box::pin(async move {
            let options = LogsOptionsBuilder::new()
                .stdout(true)
                .stderr(true)
                .tail(&tail.to_string())
                .follow(follow == Follow::Yes)
                .build();
            let logs = self.client().await?.logs(id, Some(options)).map_err(|error| told(&error));
            Ok(logs.map_ok(bollard::container::LogOutput::into_bytes).boxed())
        })
    }
}

/// What the engine's events tell of a container, where that is anything of interest.
fn happening(event: EventMessage) -> Option<Happening> {
    let actor = event.actor?;
    let (id, labels) = (actor.id?, actor.attributes?);
    let what = match event.action?.as_str() {
        "oom" => What::Starved,
        "die" => What::Ended(labels.get("exitCode").and_then(|code| code.parse().ok())),
        "destroy" => What::Removed,
        "health_status: unhealthy" => What::Checked(Checked::Unhealthy),
        "health_status: healthy" => What::Checked(Checked::Healthy),
        _ => return None,
    };
    Some(Happening { id, labels, at: event.time_nano.map(|nanos| nanos / 1_000), what })
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

fn seen(found: ContainerInspectResponse) -> Container {
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
