//! Does one operation on the engine. Every step looks first, so that it can be done again from wherever it broke off:
//! a container that was made, or started, and not written down is found by its name and taken on (R2, R3).

use domain::limits::STOP_GRACE_S;
use domain::runtime::{ImageRef, OperationCode, OperationKind, RuntimeSpec};
use store::runtimes::operate::{Change, Ended, Started};
use store::runtimes::{Logged, Outcome, Runtime};

use super::container::{self, Identity};
use super::driver::{Container, Driver, DriverError, NewContainer};
use super::{Place, state_path};

/// Why it did not go well.
#[derive(Debug)]
struct Failure {
    code: OperationCode,
    message: String,
    /// What it did all the same.
    change: Change,
}

impl Failure {
    fn new(code: OperationCode, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), change: Change::Nothing }
    }

    /// What an engine's refusal means where nothing in particular was expected.
    fn of(error: DriverError) -> Self {
        let code = match &error {
            DriverError::Unavailable(_) => OperationCode::DockerUnavailable,
            DriverError::NotFound(_) => OperationCode::NotFound,
            DriverError::Conflict(_) => OperationCode::Conflict,
            DriverError::Refused(_) => OperationCode::InternalError,
        };
        Self::new(code, error.to_string())
    }

    /// The same, where a refusal has a name of its own.
    fn or(code: OperationCode) -> impl Fn(DriverError) -> Self {
        move |error| match error {
            error @ DriverError::Unavailable(_) => Self::of(error),
            error => Self::new(code, error.to_string()),
        }
    }
}

/// How it went well.
#[derive(Debug)]
struct Done {
    code: Option<OperationCode>,
    container_id: Option<String>,
    change: Change,
    steps: Vec<OperationKind>,
}

impl Done {
    fn with(change: Change, container_id: Option<String>) -> Self {
        Self { code: None, container_id, change, steps: Vec::new() }
    }

    fn nothing_to_do(change: Change, container_id: Option<String>) -> Self {
        Self { code: Some(OperationCode::ReplayNoOp), ..Self::with(change, container_id) }
    }
}

pub(super) async fn perform(docker: &dyn Driver, place: &Place, line: &Logged, runtime: &Runtime) -> Ended {
    let work = Work {
        docker,
        place,
        runtime,
        identity: Identity { instance: place.instance.clone(), tenant: runtime.tenant, runtime: runtime.name.clone() },
    };
    let image = line.image_ref.as_deref().map(ImageRef::stored);
    let done = match line.kind {
        OperationKind::Start => work.start(&image.unwrap_or_else(|| runtime.spec.image.clone())).await,
        OperationKind::Stop => work.stop().await,
        OperationKind::Restart => work.restart(&image.unwrap_or_else(|| runtime.spec.image.clone())).await,
        OperationKind::Patch => match image {
            Some(image) => work.patch(&image).await,
            None => Err(Failure::new(OperationCode::InvalidRequest, "a patch names an image")),
        },
        OperationKind::CleanupContainer => work.clean_up().await,
        OperationKind::ReconcileAdopt | OperationKind::ReconcileDispose => {
            Err(Failure::new(OperationCode::InvalidRequest, "nobody asks for this"))
        }
    };
    match done {
        Ok(Done { code, container_id, change, steps }) => {
            Ended { outcome: Outcome::Success, code, message: None, container_id, change, steps, again: false }
        }
        Err(Failure { code, message, change }) => Ended {
            outcome: Outcome::Failure,
            code: Some(code),
            message: Some(message),
            container_id: runtime.container_id.clone(),
            change,
            steps: Vec::new(),
            again: code.passes(),
        },
    }
}

struct Work<'w> {
    docker: &'w dyn Driver,
    place: &'w Place,
    runtime: &'w Runtime,
    identity: Identity,
}

impl Work<'_> {
    /// The runtime's container, if there is one. What has its name and not its labels is somebody else's.
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
                format!("a container named {name} is there that is not ours; it was left alone"),
            )),
            None => Ok(None),
        }
    }

    /// The same for what is to be taken down. No node was ever found for a runtime that has none, so that there is nothing to
    /// wait for an engine for.
    async fn find_to_take_down(&self) -> Result<Option<Container>, Failure> {
        let was_never_up = self.runtime.node.is_none() && self.runtime.container_id.is_none();
        match self.find().await {
            Err(failure) if was_never_up && failure.code == OperationCode::DockerUnavailable => Ok(None),
            found => found,
        }
    }

    fn is_ours(&self, found: &Container) -> bool {
        Identity::of(&self.place.instance, &found.labels).as_ref() == Some(&self.identity)
    }

    async fn start(&self, image: &ImageRef) -> Result<Done, Failure> {
        match self.find().await? {
            Some(found) if runs_already(&found, image).map_err(conflict)? => {
                let known = self.runtime.container_id.as_deref() == Some(found.id.as_str())
                    && self.runtime.status == domain::runtime::RuntimeStatus::Running;
                let id = Some(found.id.clone());
                if known {
                    return Ok(Done::nothing_to_do(Change::Nothing, id));
                }
                // It was started and not written down: by an operation that broke off, or by hand.
                Ok(Done::with(self.started(&found), id))
            }
            Some(found) => self.start_again(found, image).await,
            None => self.create(&self.runtime.spec, image).await,
        }
    }

    /// Starts a stopped container as it is, where it was made of the same spec; else makes it anew.
    async fn start_again(&self, found: Container, image: &ImageRef) -> Result<Done, Failure> {
        let same = found.labels.get(container::SPEC) == Some(&container::fingerprint(&self.runtime.spec, image));
        if !same {
            self.docker.remove(&found.id).await.map_err(Failure::of)?;
            return self.create(&self.runtime.spec, image).await;
        }
        state_path::prepare(
            &self.place.state_root,
            self.runtime.tenant,
            &self.runtime.name,
            &self.runtime.spec.volumes,
        )
        .map_err(|error| Failure::new(OperationCode::StartConfigInvalid, error.to_string()))?;
        self.docker.start(&found.id).await.map_err(Failure::or(OperationCode::ContainerStartFailed))?;
        self.look(&found.id).await
    }

    /// Makes and starts a container. One that cannot be started is not left behind.
    async fn create(&self, spec: &RuntimeSpec, image: &ImageRef) -> Result<Done, Failure> {
        self.have_image(image).await?;
        let (tenant, name) = (self.runtime.tenant, &self.runtime.name);
        let (_, folders) = state_path::prepare(&self.place.state_root, tenant, name, &spec.volumes)
            .map_err(|error| Failure::new(OperationCode::StartConfigInvalid, error.to_string()))?;
        let (identity, node) = (&self.identity, self.place.node.as_str());
        let made = self.docker.create(NewContainer { identity, node, spec, image, folders: &folders }).await;
        let id = made.map_err(|error| match error {
            DriverError::NotFound(message) => Failure::new(OperationCode::ImageNotFound, message),
            DriverError::Refused(message) => Failure::new(OperationCode::StartConfigInvalid, message),
            other => Failure::of(other),
        })?;
        if let Err(error) = self.docker.start(&id).await {
            let mut failure = Failure::or(OperationCode::ContainerStartFailed)(error);
            // With the engine away it cannot be removed; the next try finds it by its name.
            if self.docker.remove(&id).await.is_ok() && self.runtime.container_id.is_some() {
                failure.change = Change::Removed;
            }
            return Err(failure);
        }
        self.look(&id).await
    }

    async fn have_image(&self, image: &ImageRef) -> Result<(), Failure> {
        if self.docker.has_image(image.as_str()).await.map_err(Failure::of)? {
            return Ok(());
        }
        self.docker.pull(image.as_str()).await.map_err(|error| {
            let text = error.to_string();
            let unknown = ["not found", "manifest unknown", "does not exist", "repository does not"];
            match error {
                DriverError::Unavailable(_) => Failure::of(error),
                DriverError::NotFound(_) => Failure::new(OperationCode::ImageNotFound, text),
                _ if unknown.iter().any(|words| text.contains(words)) => {
                    Failure::new(OperationCode::ImageNotFound, text)
                }
                _ => Failure::new(OperationCode::ImagePullFailed, text),
            }
        })
    }

    async fn look(&self, id: &str) -> Result<Done, Failure> {
        match self.docker.inspect(id).await.map_err(Failure::of)? {
            Some(found) => Ok(Done::with(self.started(&found), Some(found.id.clone()))),
            None => Err(Failure::new(OperationCode::ContainerStartFailed, "the container was gone at once")),
        }
    }

    fn started(&self, found: &Container) -> Change {
        let first = self.runtime.spec.ports.first();
        let address = first.and_then(|port| found.address_of(port.container));
        let root = self.place.state_root.canonicalize().unwrap_or_else(|_| self.place.state_root.clone());
        let state_path = state_path::of(&root, self.runtime.tenant, &self.runtime.name);
        Change::Started(Started {
            container_id: found.id.clone(),
            image: found.image.clone(),
            endpoint: address.map(|address| format!("http://{address}")),
            state_path: state_path.display().to_string(),
        })
    }

    async fn stop(&self) -> Result<Done, Failure> {
        let Some(found) = self.find_to_take_down().await? else {
            let change = if self.runtime.container_id.is_some() { Change::Removed } else { Change::Nothing };
            return Ok(Done::nothing_to_do(change, None));
        };
        let id = Some(found.id.clone());
        if !found.running {
            return Ok(Done::nothing_to_do(Change::Stopped, id));
        }
        self.stop_container(&found.id).await?;
        Ok(Done::with(Change::Stopped, id))
    }

    async fn stop_container(&self, id: &str) -> Result<(), Failure> {
        let grace_s = self.runtime.spec.stop_grace_s.unwrap_or(STOP_GRACE_S);
        self.docker.stop(id, grace_s).await.map_err(Failure::of)
    }

    async fn restart(&self, image: &ImageRef) -> Result<Done, Failure> {
        let mut steps = Vec::new();
        // Before anything is stopped: an image that is not to be had changes nothing.
        self.have_image(image).await?;
        let found = self.find().await?;
        if let Some(found) = &found
            && found.running
        {
            self.stop_container(&found.id).await?;
            steps.push(OperationKind::Stop);
        }
        let started = match found {
            Some(found) => self.start_again(found, image).await,
            None => self.create(&self.runtime.spec, image).await,
        };
        let done = started.map_err(stopped_at_least)?;
        steps.push(OperationKind::Start);
        Ok(Done { steps, ..done })
    }

    /// To another patch of the same image. When the new one does not start, the old one comes back.
    async fn patch(&self, image: &ImageRef) -> Result<Done, Failure> {
        self.have_image(image).await?;
        let Some(found) = self.find().await? else {
            let done = self.create(&self.runtime.spec, image).await?;
            return Ok(Done { steps: vec![OperationKind::Start], ..done });
        };
        if found.image == image.as_str() && found.running {
            return Ok(Done::nothing_to_do(Change::Nothing, Some(found.id)));
        }
        let (before, was_running) = (ImageRef::stored(&found.image), found.running);
        if was_running {
            self.stop_container(&found.id).await?;
        }
        self.docker.remove(&found.id).await.map_err(Failure::of)?;
        match self.create(&self.runtime.spec, image).await {
            Ok(done) => Ok(Done { steps: vec![OperationKind::Stop, OperationKind::Start], ..done }),
            Err(failure) if failure.code.passes() => Err(Failure { change: Change::Nothing, ..failure }),
            Err(failure) => {
                let change = match self.create(&self.runtime.spec, &before).await {
                    Ok(back) => back.change,
                    Err(_) => Change::Removed,
                };
                Err(Failure { change, ..failure })
            }
        }
    }

    async fn clean_up(&self) -> Result<Done, Failure> {
        let Some(found) = self.find_to_take_down().await? else {
            return Ok(Done::nothing_to_do(Change::Removed, None));
        };
        if found.running {
            self.stop_container(&found.id).await?;
        }
        self.docker.remove(&found.id).await.map_err(Failure::of)?;
        Ok(Done::with(Change::Removed, Some(found.id)))
    }
}

/// Whether there is nothing left to start. What runs another image is not to be replaced by a start (R3).
fn runs_already(found: &Container, image: &ImageRef) -> Result<bool, String> {
    match (found.running, found.image == image.as_str()) {
        (true, false) => Err(format!("it runs {}; stop it first, or patch it to {image}", found.image)),
        (running, same) => Ok(running && same),
    }
}

fn conflict(why: String) -> Failure {
    Failure::new(OperationCode::Conflict, why)
}

/// What was stopped to be started again and did not start is stopped.
fn stopped_at_least(failure: Failure) -> Failure {
    match failure.change {
        Change::Nothing => Failure { change: Change::Stopped, ..failure },
        _ => failure,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r3_a_start_leaves_another_image_that_runs_as_it_is() {
        let found = |image: &str, running| Container { image: image.into(), running, ..Container::default() };
        let image = ImageRef::stored("a:1.0.0");
        let asked = |found: &Container| runs_already(found, &image).map_err(|why| conflict(why).code);
        assert_eq!(asked(&found("a:1.0.0", true)), Ok(true));
        assert_eq!(asked(&found("a:1.0.1", true)), Err(OperationCode::Conflict));
        assert_eq!(asked(&found("a:1.0.0", false)), Ok(false));
        assert_eq!(asked(&found("a:1.0.1", false)), Ok(false), "what is stopped is in nobody's way");
    }
}
