//! Precedence of health observations.
//!
//! There are three sources: Docker events report exits immediately, inspection finds what the events missed, and the
//! probe checks whether the runtime responds. The newest observation wins, but a source cannot clear a problem that
//! another source detects: a running container does not imply a responding one.

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

/// One observation of a runtime's health.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub status: HealthStatus,
    pub source: HealthSource,
    pub details: String,
    pub observed_at: Time,
}

/// The current health: the last observation that took effect.
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

    /// True if the container has ended. Only a new start recovers it.
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

/// True if the observation changes the current health.
pub fn changes(current: Option<&Health>, observed: &Observation) -> bool {
    let Some(current) = current else { return true };
    if observed.observed_at < current.observed_at || observed.status == current.status {
        return false;
    }
    use HealthSource::{DockerEvent, Inspect, Probe};
    use HealthStatus::{ContainerDisappeared, Exited, Healthy, InspectUnhealthy, Oom, ProbeFailed};
    match (current.status, observed.status, observed.source) {
        // Only the probe, or Docker's own health check, clears the problem that it reported.
        (ProbeFailed, Healthy, source) => source == Probe,
        (InspectUnhealthy, Healthy, source) => source != Probe,
        (InspectUnhealthy, ProbeFailed, _) => true,
        // Out of memory is more specific than exited.
        (Oom, Exited, _) => false,
        // A container that has ended cannot respond, so a failed probe adds nothing. Its disappearance does.
        (current, ProbeFailed | InspectUnhealthy, _) if current.is_end() => false,
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

    /// Requirement R4.
    #[test]
    fn the_newest_health_observation_wins_by_its_time() {
        let held = seen(Healthy, Probe, 10);
        assert!(!changes(Some(&held), &seen(Exited, Inspect, 9)));
        assert!(changes(Some(&held), &seen(Exited, Inspect, 10)));
        assert!(!changes(Some(&held), &seen(Healthy, Inspect, 11)), "the same again is no change");
        assert!(changes(None, &seen(Healthy, Inspect, 1)));
    }

    /// Requirement R4.
    #[test]
    fn a_health_source_cannot_override_the_finding_of_another_source() {
        let silent = seen(ProbeFailed, Probe, 10);
        assert!(!changes(Some(&silent), &seen(Healthy, Inspect, 11)));
        assert!(changes(Some(&silent), &seen(Healthy, Probe, 11)), "the first success recovers");
        let ended = seen(Oom, DockerEvent, 10);
        assert!(!changes(Some(&ended), &seen(Exited, Inspect, 11)));
        assert!(!changes(Some(&ended), &seen(ProbeFailed, Probe, 11)));
        assert!(changes(Some(&ended), &seen(ContainerDisappeared, Inspect, 11)));
    }
}
