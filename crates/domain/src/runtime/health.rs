//! Which observation of a runtime counts (R4).
//!
//! Three watch, each with its own duty: the engine's events tell of ends the moment they happen, inspection finds what the
//! events missed, the probe tells whether it answers. The newest observation wins by its time; but nobody takes back what
//! is another's to say: that a container runs does not mean that it answers.

use crate::Time;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthStatus {
    Healthy,
    ProbeFailed,
    Exited,
    Oom,
    InspectUnhealthy,
    ContainerDisappeared,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HealthSource {
    DockerEvent,
    Inspect,
    Probe,
}

/// What someone saw.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub status: HealthStatus,
    pub source: HealthSource,
    pub details: String,
    pub observed_at: Time,
}

/// What is held to be true.
pub type Health = Observation;

impl HealthStatus {
    pub const ALL: [Self; 6] =
        [Self::Healthy, Self::ProbeFailed, Self::Exited, Self::Oom, Self::InspectUnhealthy, Self::ContainerDisappeared];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Healthy => "healthy",
            Self::ProbeFailed => "probe_failed",
            Self::Exited => "exited",
            Self::Oom => "oom",
            Self::InspectUnhealthy => "inspect_unhealthy",
            Self::ContainerDisappeared => "container_disappeared",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }

    /// Whether the container is at its end: only a new start takes it back.
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Exited | Self::Oom | Self::ContainerDisappeared)
    }
}

impl HealthSource {
    pub const ALL: [Self; 3] = [Self::DockerEvent, Self::Inspect, Self::Probe];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DockerEvent => "docker_event",
            Self::Inspect => "inspect",
            Self::Probe => "probe",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

/// Whether the observation changes what is held to be true.
pub fn changes(held: Option<&Health>, seen: &Observation) -> bool {
    let Some(held) = held else { return true };
    if seen.observed_at < held.observed_at || seen.status == held.status {
        return false;
    }
    use HealthSource::{DockerEvent, Inspect, Probe};
    use HealthStatus::{ContainerDisappeared, Exited, Healthy, InspectUnhealthy, Oom, ProbeFailed};
    match (held.status, seen.status, seen.source) {
        // An answer, or the engine's own check, takes back what it said itself.
        (ProbeFailed, Healthy, source) => source == Probe,
        (InspectUnhealthy, Healthy, source) => source != Probe,
        (InspectUnhealthy, ProbeFailed, _) => true,
        // That it was short of memory says more than that it is gone or ended.
        (Oom, Exited, _) => false,
        // A container that ended does not answer any more; that is no news. One that is gone altogether is.
        (held, ProbeFailed | InspectUnhealthy, _) if held.is_end() => false,
        (Exited | Oom, ContainerDisappeared, _) => true,
        (ContainerDisappeared, Exited | Oom, _) => false,
        (Exited | Oom | ContainerDisappeared, Healthy, DockerEvent | Inspect | Probe) => true,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use HealthSource::{DockerEvent, Inspect, Probe};
    use HealthStatus::{ContainerDisappeared, Exited, Healthy, Oom, ProbeFailed};

    fn seen(status: HealthStatus, source: HealthSource, at: i64) -> Observation {
        Observation { status, source, details: String::new(), observed_at: Time::from_seconds(at) }
    }

    #[test]
    fn r4_the_newest_observation_wins_by_its_time() {
        let held = seen(Healthy, Probe, 10);
        assert!(!changes(Some(&held), &seen(Exited, Inspect, 9)));
        assert!(changes(Some(&held), &seen(Exited, Inspect, 10)));
        assert!(!changes(Some(&held), &seen(Healthy, Inspect, 11)), "the same again is no change");
        assert!(changes(None, &seen(Healthy, Inspect, 1)));
    }

    #[test]
    fn r4_nobody_takes_back_what_is_anothers_to_say() {
        let silent = seen(ProbeFailed, Probe, 10);
        assert!(!changes(Some(&silent), &seen(Healthy, Inspect, 11)));
        assert!(changes(Some(&silent), &seen(Healthy, Probe, 11)), "the first success recovers");
        let ended = seen(Oom, DockerEvent, 10);
        assert!(!changes(Some(&ended), &seen(Exited, Inspect, 11)));
        assert!(!changes(Some(&ended), &seen(ProbeFailed, Probe, 11)));
        assert!(changes(Some(&ended), &seen(ContainerDisappeared, Inspect, 11)));
    }
}
