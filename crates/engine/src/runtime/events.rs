//! Follows the engine's events: an end is known the moment it happens (R4).

use std::time::Duration;

use domain::Time;
use domain::runtime::{HealthSource, HealthStatus, Observation};
use futures_util::StreamExt;
use store::Store;

use super::Shared;
use super::container::{INSTANCE, Identity};
use super::driver::{Checked, Happening, What};
use super::watch::ended;

/// Between two tries to reach an engine that is away.
const PAUSE: Duration = Duration::from_secs(1);

pub(super) async fn follow(shared: &Shared, store: &Store) {
    let label = format!("{INSTANCE}={}", shared.place.instance);
    loop {
        match shared.docker.events(&label).await {
            Ok(mut events) => {
                // Whatever happened while nobody listened is found by looking.
                shared.look_at_everything();
                while let Some(Ok(event)) = events.next().await {
                    tell(shared, store, event).await;
                }
                tracing::debug!("the engine's events ended");
            }
            Err(error) => tracing::debug!(%error, "the engine's events cannot be followed"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn tell(shared: &Shared, store: &Store, happening: Happening) {
    let Happening { id, labels, at, what } = happening;
    let Some(identity) = Identity::of(&shared.place.instance, &labels) else { return };
    // By the engine's own clock, which is this machine's, moved as tests move ours.
    let shift_ms = store.clock().now().ms_since(store::Clock::system().now());
    let at = at.map_or_else(|| store.clock().now(), |micros| Time::from_micros(micros).plus_ms(shift_ms));
    let seen =
        |status, details: String| Observation { status, source: HealthSource::DockerEvent, details, observed_at: at };
    let observation = match what {
        What::Starved => {
            shared.starved.lock().expect("nobody panics with the set in hand").insert(id);
            return;
        }
        What::Ended(code) => {
            let starved = shared.starved.lock().expect("nobody panics with the set in hand").remove(&id);
            match shared.docker.inspect(&id).await {
                Ok(Some(container)) if container.running => return,
                Ok(Some(mut container)) => {
                    container.oom_killed |= starved;
                    Observation { source: HealthSource::DockerEvent, ..ended(&container, at) }
                }
                _ => seen(HealthStatus::Exited, exit(code)),
            }
        }
        What::Removed => seen(HealthStatus::ContainerDisappeared, "the container was removed".into()),
        What::Checked(Checked::Unhealthy) => seen(HealthStatus::InspectUnhealthy, "the image's own check fails".into()),
        What::Checked(Checked::Healthy) => seen(HealthStatus::Healthy, "the image's own check is well".into()),
    };
    shared.observe(store, identity.tenant, &identity.runtime, &id, None, observation).await;
}

pub(super) fn exit(code: Option<i64>) -> String {
    code.map_or_else(|| "the container ended".into(), |code| format!("the container ended with code {code}"))
}
