//! Runs one operation on the Docker engine. Each step checks the current state first, so that an interrupted operation
//! can be repeated: a container that was created or started but not recorded is found by its name.

use domain::limits::STOP_GRACE_DEFAULT_S;
use domain::runtimes::{ImageRef, OperationCode, OperationKind, RuntimeSpec};
use store::runtimes::operate::{ContainerChange, OperationEnd, StartedContainer};
use store::runtimes::{OperationOutcome, OperationRecord, Runtime};

use super::container::{self, Identity};
use super::driver::{Container, Driver, DriverError, NewContainer};
use super::{NodeContext, state_path};

/// Why an operation failed.
#[derive(Debug)]
struct Failure {
    code: OperationCode,
    message: String,
    /// What it changed nevertheless.
    change: ContainerChange,
}

impl Failure {
    fn new(code: OperationCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), change: ContainerChange::Nothing }
    }

    /// The default failure for a driver error.
    fn of(error: DriverError) -> Self {
        let code = match &error {
            DriverError::Unavailable(_) => OperationCode::DockerUnavailable,
            DriverError::NotFound(_) => OperationCode::NotFound,
            DriverError::Conflict(_) => OperationCode::Conflict,
            DriverError::Refused(_) => OperationCode::InternalError,
        };
        Self::new(code, error.to_string())
    }

    /// A failure with the given code, unless Docker is unavailable.
    fn or(code: OperationCode) -> impl Fn(DriverError) -> Self {
        move |error| match error {
            error @ DriverError::Unavailable(_) => Self::of(error),
            error => Self::new(code, error.to_string()),
        }
    }
}

/// The result of a successful operation.
#[derive(Debug)]
struct Success {
    code: Option<OperationCode>,
    container_id: Option<String>,
    change: ContainerChange,
    steps: Vec<OperationKind>,
}

impl Success {
    fn with(change: ContainerChange, container_id: Option<String>) -> Self {
        Self { code: None, container_id, change, steps: Vec::new() }
    }

    fn no_op(change: ContainerChange, container_id: Option<String>) -> Self {
        Self { code: Some(OperationCode::ReplayNoOp), ..Self::with(change, container_id) }
    }
}

pub(super) async fn perform(
    docker: &dyn Driver,
    context: &NodeContext,
    line: &OperationRecord,
    runtime: &Runtime,
) -> OperationEnd {
    let work = OperationRun {
        docker,
        context,
        runtime,
        identity: Identity {
            instance: context.instance.clone(),
            tenant: runtime.tenant,
            runtime: runtime.name.clone(),
        },
    };
    let image = line.image_ref.as_deref().map(ImageRef::stored);
    let done = match line.kind {
        OperationKind::Start => work.start(&image.unwrap_or_else(|| runtime.spec.image.clone())).await,
        OperationKind::Stop => work.stop().await,
        OperationKind::Restart => work.restart(&image.unwrap_or_else(|| runtime.spec.image.clone())).await,
        OperationKind::Patch => match image {
            Some(image) => work.patch(&image).await,
            None => Err(Failure::new(OperationCode::InvalidRequest, "a patch requires an image")),
        },
        OperationKind::CleanupContainer => work.clean_up().await,
        OperationKind::ReconcileAdopt | OperationKind::ReconcileDispose => {
            Err(Failure::new(OperationCode::InvalidRequest, "this operation cannot be requested"))
        }
    };
    match done {
        Ok(Success { code, container_id, change, steps }) => OperationEnd {
            outcome: OperationOutcome::Success,
            code,
            message: None,
            container_id,
            change,
            steps,
            again: false,
        },
        Err(Failure { code, message, change }) => OperationEnd {
            outcome: OperationOutcome::Failure,
            code: Some(code),
            message: Some(message),
            container_id: runtime.container_id.clone(),
            change,
            steps: Vec::new(),
            again: code.is_retryable(),
        },
    }
}

struct OperationRun<'w> {
    docker: &'w dyn Driver,
    context: &'w NodeContext,
    runtime: &'w Runtime,
    identity: Identity,
}

impl OperationRun<'_> {
    /// Finds the runtime's container. A container with its name but without its labels is a conflict.
    async fn find(&self) -> Result<Option<Container>, Failure> {
        if let Some(id) = &self.runtime.container_id
            && let Some(found) = self.docker.inspect(id).await.map_err(Failure::of)?
            && self.is_ours(&found)
        {
            return Ok(Some(found));
        }
        let name = self.identity.container_name();
        match self.docker.inspect(&name).await.map_err(Failure::of)? {
            Some(found) if self.is_ours(&found) => Ok(Some(found)),
            Some(_) => Err(Failure::new(
                OperationCode::Conflict,
                format!("a container named {name} exists that this installation did not create; it was not changed"),
            )),
            None => Ok(None),
        }
    }

    /// Finds the container that is to be stopped or removed. A runtime without a node and a container never had one, so
    /// an unavailable Docker engine does not matter.
    async fn find_to_stop(&self) -> Result<Option<Container>, Failure> {
        let was_never_started = self.runtime.node.is_none() && self.runtime.container_id.is_none();
        match self.find().await {
            Err(failure) if was_never_started && failure.code == OperationCode::DockerUnavailable => Ok(None),
            found => found,
        }
    }

    fn is_ours(&self, found: &Container) -> bool {
        Identity::of(&self.context.instance, &found.labels).as_ref() == Some(&self.identity)
    }

    async fn start(&self, image: &ImageRef) -> Result<Success, Failure> {
        match self.find().await? {
            Some(found) if is_running_image(&found, image).map_err(conflict)? => {
                let is_recorded = self.runtime.container_id.as_deref() == Some(found.id.as_str())
                    && self.runtime.status == domain::runtimes::RuntimeStatus::Running;
                let id = Some(found.id.clone());
                if is_recorded {
                    return Ok(Success::no_op(ContainerChange::Nothing, id));
                }
                // Started but not recorded: by an interrupted operation or manually.
                Ok(Success::with(self.started(&found), id))
            }
            Some(found) => self.start_existing(found, image).await,
            None => self.create(&self.runtime.spec, image).await,
        }
    }

    /// Starts a stopped container if it was created from the same spec. Otherwise recreates it.
    async fn start_existing(&self, found: Container, image: &ImageRef) -> Result<Success, Failure> {
        let same = found.labels.get(container::SPEC) == Some(&container::fingerprint(&self.runtime.spec, image));
        if !same {
            self.docker.remove(&found.id).await.map_err(Failure::of)?;
            return self.create(&self.runtime.spec, image).await;
        }
        state_path::prepare(
            &self.context.state_root,
            self.runtime.tenant,
            &self.runtime.name,
            &self.runtime.spec.volumes,
        )
        .map_err(|error| Failure::new(OperationCode::StartConfigInvalid, error.to_string()))?;
        self.docker.start(&found.id).await.map_err(Failure::or(OperationCode::ContainerStartFailed))?;
        self.inspect_started(&found.id).await
    }

    /// Creates and starts a container. Removes it again if it cannot be started.
    async fn create(&self, spec: &RuntimeSpec, image: &ImageRef) -> Result<Success, Failure> {
        self.ensure_image(image).await?;
        let (tenant, name) = (self.runtime.tenant, &self.runtime.name);
        let (_, folders) = state_path::prepare(&self.context.state_root, tenant, name, &spec.volumes)
            .map_err(|error| Failure::new(OperationCode::StartConfigInvalid, error.to_string()))?;
        let (identity, node) = (&self.identity, self.context.node.as_str());
        let made = self.docker.create(NewContainer { identity, node, spec, image, folders: &folders }).await;
        let id = made.map_err(|error| match error {
            DriverError::NotFound(message) => Failure::new(OperationCode::ImageNotFound, message),
            DriverError::Refused(message) => Failure::new(OperationCode::StartConfigInvalid, message),
            other => Failure::of(other),
        })?;
        if let Err(error) = self.docker.start(&id).await {
            let mut failure = Failure::or(OperationCode::ContainerStartFailed)(error);
            // If Docker is unavailable, the container cannot be removed. The next attempt finds it by its name.
            if self.docker.remove(&id).await.is_ok() && self.runtime.container_id.is_some() {
                failure.change = ContainerChange::Removed;
            }
            return Err(failure);
        }
        self.inspect_started(&id).await
    }

    async fn ensure_image(&self, image: &ImageRef) -> Result<(), Failure> {
        if self.docker.has_image(image.as_str()).await.map_err(Failure::of)? {
            return Ok(());
        }
        self.docker.pull(image.as_str()).await.map_err(|error| {
            let text = error.to_string();
            let not_found = ["not found", "manifest unknown", "does not exist", "repository does not"];
            match error {
                DriverError::Unavailable(_) => Failure::of(error),
                DriverError::NotFound(_) => Failure::new(OperationCode::ImageNotFound, text),
                _ if not_found.iter().any(|message| text.contains(message)) => {
                    Failure::new(OperationCode::ImageNotFound, text)
                }
                _ => Failure::new(OperationCode::ImagePullFailed, text),
            }
        })
    }

    async fn inspect_started(&self, id: &str) -> Result<Success, Failure> {
        match self.docker.inspect(id).await.map_err(Failure::of)? {
            Some(found) => Ok(Success::with(self.started(&found), Some(found.id.clone()))),
            None => Err(Failure::new(OperationCode::ContainerStartFailed, "the container disappeared after its start")),
        }
    }

    fn started(&self, found: &Container) -> ContainerChange {
        let first = self.runtime.spec.ports.first();
        let address = first.and_then(|port| found.address_of(port.container));
        let root = self.context.state_root.canonicalize().unwrap_or_else(|_| self.context.state_root.clone());
        let state_path = state_path::of(&root, self.runtime.tenant, &self.runtime.name);
        ContainerChange::Started(StartedContainer {
            container_id: found.id.clone(),
            image: found.image.clone(),
            endpoint: address.map(|address| format!("http://{address}")),
            state_path: state_path.display().to_string(),
        })
    }

    async fn stop(&self) -> Result<Success, Failure> {
        let Some(found) = self.find_to_stop().await? else {
            let change =
                if self.runtime.container_id.is_some() { ContainerChange::Removed } else { ContainerChange::Nothing };
            return Ok(Success::no_op(change, None));
        };
        let id = Some(found.id.clone());
        if !found.running {
            return Ok(Success::no_op(ContainerChange::Stopped, id));
        }
        self.stop_container(&found.id).await?;
        Ok(Success::with(ContainerChange::Stopped, id))
    }

    async fn stop_container(&self, id: &str) -> Result<(), Failure> {
        let grace_s = self.runtime.spec.stop_grace_s.unwrap_or(STOP_GRACE_DEFAULT_S);
        self.docker.stop(id, grace_s).await.map_err(Failure::of)
    }

    async fn restart(&self, image: &ImageRef) -> Result<Success, Failure> {
        let mut steps = Vec::new();
        // Before anything is stopped, so that a missing image changes nothing.
        self.ensure_image(image).await?;
        let found = self.find().await?;
        if let Some(found) = &found
            && found.running
        {
            self.stop_container(&found.id).await?;
            steps.push(OperationKind::Stop);
        }
        let started = match found {
            Some(found) => self.start_existing(found, image).await,
            None => self.create(&self.runtime.spec, image).await,
        };
        let done = started.map_err(with_stopped)?;
        steps.push(OperationKind::Start);
        Ok(Success { steps, ..done })
    }

    /// Replaces the container by one with another patch version of its image. If the new one does not start, the old
    /// one is recreated.
    async fn patch(&self, image: &ImageRef) -> Result<Success, Failure> {
        self.ensure_image(image).await?;
        let Some(found) = self.find().await? else {
            let done = self.create(&self.runtime.spec, image).await?;
            return Ok(Success { steps: vec![OperationKind::Start], ..done });
        };
        if found.image == image.as_str() && found.running {
            return Ok(Success::no_op(ContainerChange::Nothing, Some(found.id)));
        }
        let (before, was_running) = (ImageRef::stored(&found.image), found.running);
        if was_running {
            self.stop_container(&found.id).await?;
        }
        self.docker.remove(&found.id).await.map_err(Failure::of)?;
        match self.create(&self.runtime.spec, image).await {
            Ok(done) => Ok(Success { steps: vec![OperationKind::Stop, OperationKind::Start], ..done }),
            Err(failure) if failure.code.is_retryable() => Err(Failure { change: ContainerChange::Nothing, ..failure }),
            Err(failure) => {
                let change = match self.create(&self.runtime.spec, &before).await {
                    Ok(back) => back.change,
                    Err(_) => ContainerChange::Removed,
                };
                Err(Failure { change, ..failure })
            }
        }
    }

    async fn clean_up(&self) -> Result<Success, Failure> {
        let Some(found) = self.find_to_stop().await? else {
            return Ok(Success::no_op(ContainerChange::Removed, None));
        };
        if found.running {
            self.stop_container(&found.id).await?;
        }
        self.docker.remove(&found.id).await.map_err(Failure::of)?;
        Ok(Success::with(ContainerChange::Removed, Some(found.id)))
    }
}

/// True if the container already runs this image. A start must not replace a container that runs another image.
fn is_running_image(found: &Container, image: &ImageRef) -> Result<bool, String> {
    match (found.running, found.image == image.as_str()) {
        (true, false) => Err(format!("the runtime runs {}; stop it first, or patch it to {image}", found.image)),
        (running, same) => Ok(running && same),
    }
}

fn conflict(why: String) -> Failure {
    Failure::new(OperationCode::Conflict, why)
}

/// Records that a restart that failed has stopped the container.
fn with_stopped(failure: Failure) -> Failure {
    match failure.change {
        ContainerChange::Nothing => Failure { change: ContainerChange::Stopped, ..failure },
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R3.
    #[test]
    fn a_start_conflicts_with_a_running_container_of_another_image() {
        let found = |image: &str, running| Container { image: image.into(), running, ..Container::default() };
        let image = ImageRef::stored("a:1.0.0");
        let check = |found: &Container| is_running_image(found, &image).map_err(|why| conflict(why).code);
        assert_eq!(check(&found("a:1.0.0", true)), Ok(true));
        assert_eq!(check(&found("a:1.0.1", true)), Err(OperationCode::Conflict));
        assert_eq!(check(&found("a:1.0.0", false)), Ok(false));
        assert_eq!(check(&found("a:1.0.1", false)), Ok(false), "a stopped container does not conflict");
    }
}
