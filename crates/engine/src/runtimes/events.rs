//! Follows Docker's events, so that the end of a container is known immediately.

use std::time::Duration;

use domain::Time;
use domain::runtimes::{HealthSource, HealthStatus, Observation};
use futures_util::StreamExt;
use store::Store;

use super::NodeShared;
use super::container::{INSTANCE, Identity};
use super::driver::{ContainerEvent, ContainerEventKind, HealthCheck};
use super::watch::ended;

/// Pause between two attempts to reach Docker.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn follow(shared: &NodeShared, store: &Store) {
    let label = format!("{INSTANCE}={}", shared.context.instance);
    loop {
        match shared.docker.events(&label).await {
            Ok(mut events) => {
                // Events that were missed meanwhile are found by an inspection.
                shared.inspect_all();
                while let Some(Ok(event)) = events.next().await {
                    handle(shared, store, event).await;
                }
                tracing::debug!("the stream of Docker events ended");
            }
            Err(error) => tracing::debug!(%error, "failed to follow Docker events"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn handle(shared: &NodeShared, store: &Store, event: ContainerEvent) {
    let ContainerEvent { id, labels, at, what } = event;
    let Some(identity) = Identity::of(&shared.context.instance, &labels) else { return };
    // Event times are Docker's, which are this machine's. Tests shift the store's clock, so apply the same shift.
    let shift_ms = store.clock().now().ms_since(store::Clock::system().now());
    let at = at.map_or_else(|| store.clock().now(), |micros| Time::from_micros(micros).plus_ms(shift_ms));
    let seen =
        |status, details: String| Observation { status, source: HealthSource::DockerEvent, details, observed_at: at };
    let observation = match what {
        ContainerEventKind::OutOfMemory => {
            shared.starved.lock().expect("lock poisoned").insert(id);
            return;
        }
        ContainerEventKind::Ended(code) => {
            let starved = shared.starved.lock().expect("lock poisoned").remove(&id);
            match shared.docker.inspect(&id).await {
                Ok(Some(container)) if container.running => return,
                Ok(Some(mut container)) => {
                    container.oom_killed |= starved;
                    Observation { source: HealthSource::DockerEvent, ..ended(&container, at) }
                }
                _ => seen(HealthStatus::Exited, exit(code)),
            }
        }
        ContainerEventKind::Removed => seen(HealthStatus::ContainerDisappeared, "the container was removed".into()),
        ContainerEventKind::HealthCheck(HealthCheck::Unhealthy) => {
            seen(HealthStatus::InspectUnhealthy, "the image's health check fails".into())
        }
        ContainerEventKind::HealthCheck(HealthCheck::Healthy) => {
            seen(HealthStatus::Healthy, "the image's health check succeeds".into())
        }
    };
    shared.observe(store, identity.tenant, &identity.runtime, &id, None, observation).await;
}

pub(super) fn exit(code: Option<i64>) -> String {
    code.map_or_else(|| "the container ended".into(), |code| format!("the container ended with code {code}"))
}
