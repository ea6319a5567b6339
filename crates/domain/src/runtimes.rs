//! Runtimes: containers that Windlass starts, monitors and stops.
//!
//! `spec` defines the allowed properties of a container, `image` which image may replace another, `health` which
//! observation takes precedence, `placement` which node runs a container, `pool` how runtimes share slots.

pub mod health;
pub mod image;
pub mod placement;
pub mod pool;
pub mod spec;

use std::fmt;
use std::sync::Arc;

use crate::limits::RUNTIME_NAME_BYTES;
use crate::name::RUNTIME_SUBJECTS;

pub use health::{Health, HealthSource, HealthStatus, Observation};
pub use image::ImageRef;
pub use placement::Placement;
pub use spec::{Port, Probe, RuntimeNetwork, RuntimeSpec, SpecError, VolumePath};

/// A runtime's name. It becomes part of the container's name and of a path, which limits the allowed characters.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuntimeName(Arc<str>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must have 1 to {RUNTIME_NAME_BYTES} letters, digits or any of . _ - and begin with a letter or digit")]
pub struct RuntimeNameError;

impl RuntimeName {
    pub fn new(text: &str) -> Result<Self, RuntimeNameError> {
        let plain = text.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
        let begins = text.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
        if plain && begins && text.len() <= RUNTIME_NAME_BYTES { Ok(Self(text.into())) } else { Err(RuntimeNameError) }
    }

    /// A name that was validated when it was stored.
    pub fn stored(text: &str) -> Self {
        Self(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The subject of operations on this runtime.
    pub fn subject(&self) -> String {
        format!("{RUNTIME_SUBJECTS}{}", self.0)
    }

    /// The runtime that a subject belongs to, if any.
    pub fn of_subject(subject: &str) -> Option<Self> {
        Self::new(subject.strip_prefix(RUNTIME_SUBJECTS)?).ok()
    }
}

impl fmt::Display for RuntimeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for RuntimeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// The status of a runtime's container. An operation in progress is reported separately.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RuntimeStatus {
    Running,
    Stopped,
    /// There is no container. There may never have been one.
    Removed,
}

/// The desired status of a runtime.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Desired {
    Running,
    Stopped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    Start,
    Stop,
    Restart,
    Patch,
    CleanupContainer,
    ReconcileAdopt,
    ReconcileDispose,
}

/// The requester of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationSource {
    Api,
    Cli,
    /// A trigger. The operation's reference is the event.
    Stream,
    AutoTtl,
    AutoReconcile,
    AutoScale,
}

/// The result code of an operation: why it failed, or that it had no effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationCode {
    InvalidRequest,
    NotFound,
    Conflict,
    ServiceUnavailable,
    InternalError,
    ImageNotFound,
    ImagePullFailed,
    ImageRefNotSemver,
    SemverPatchOnly,
    ContainerStartFailed,
    StartConfigInvalid,
    DockerUnavailable,
    ReplayNoOp,
}

impl RuntimeStatus {
    pub const ALL: [Self; 3] = [Self::Running, Self::Stopped, Self::Removed];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
            Self::Removed => "removed",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.as_str() == text)
    }
}

impl Desired {
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Running => "running",
            Self::Stopped => "stopped",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        [Self::Running, Self::Stopped].into_iter().find(|desired| desired.as_str() == text)
    }
}

impl OperationKind {
    pub const ALL: [Self; 7] = [
        Self::Start,
        Self::Stop,
        Self::Restart,
        Self::Patch,
        Self::CleanupContainer,
        Self::ReconcileAdopt,
        Self::ReconcileDispose,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Stop => "stop",
            Self::Restart => "restart",
            Self::Patch => "patch",
            Self::CleanupContainer => "cleanup_container",
            Self::ReconcileAdopt => "reconcile_adopt",
            Self::ReconcileDispose => "reconcile_dispose",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == text)
    }

    /// True if the operation starts a container, which requires a node with capacity.
    pub const fn brings_up(self) -> bool {
        matches!(self, Self::Start | Self::Restart | Self::Patch)
    }
}

impl OperationSource {
    pub const ALL: [Self; 6] =
        [Self::Api, Self::Cli, Self::Stream, Self::AutoTtl, Self::AutoReconcile, Self::AutoScale];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Api => "api",
            Self::Cli => "cli",
            Self::Stream => "stream",
            Self::AutoTtl => "auto_ttl",
            Self::AutoReconcile => "auto_reconcile",
            Self::AutoScale => "auto_scale",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|source| source.as_str() == text)
    }
}

impl OperationCode {
    pub const ALL: [Self; 13] = [
        Self::InvalidRequest,
        Self::NotFound,
        Self::Conflict,
        Self::ServiceUnavailable,
        Self::InternalError,
        Self::ImageNotFound,
        Self::ImagePullFailed,
        Self::ImageRefNotSemver,
        Self::SemverPatchOnly,
        Self::ContainerStartFailed,
        Self::StartConfigInvalid,
        Self::DockerUnavailable,
        Self::ReplayNoOp,
    ];

    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InvalidRequest => "invalid_request",
            Self::NotFound => "not_found",
            Self::Conflict => "conflict",
            Self::ServiceUnavailable => "service_unavailable",
            Self::InternalError => "internal_error",
            Self::ImageNotFound => "image_not_found",
            Self::ImagePullFailed => "image_pull_failed",
            Self::ImageRefNotSemver => "image_ref_not_semver",
            Self::SemverPatchOnly => "semver_patch_only",
            Self::ContainerStartFailed => "container_start_failed",
            Self::StartConfigInvalid => "start_config_invalid",
            Self::DockerUnavailable => "docker_unavailable",
            Self::ReplayNoOp => "replay_no_op",
        }
    }

    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|code| code.as_str() == text)
    }

    /// True if the operation may succeed later without intervention.
    pub const fn is_retryable(self) -> bool {
        matches!(self, Self::DockerUnavailable | Self::ServiceUnavailable)
    }
}

impl fmt::Display for OperationKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R1.
    #[test]
    fn a_runtime_name_is_valid_as_a_container_and_folder_name() {
        for good in ["a", "llama3-8b", "game_1.eu"] {
            assert!(RuntimeName::new(good).is_ok(), "{good}");
        }
        let long = "x".repeat(RUNTIME_NAME_BYTES + 1);
        for bad in ["", ".", "..", "-x", "a/b", "a b", "ü", "a\0", &long] {
            assert!(RuntimeName::new(bad).is_err(), "{bad:?}");
        }
    }

    /// Requirement R3.
    #[test]
    fn a_runtime_subject_is_reserved() {
        let name = RuntimeName::stored("llama3-8b");
        assert_eq!(RuntimeName::of_subject(&name.subject()), Some(name.clone()));
        assert!(crate::Label::of_subject(&name.subject()).is_err());
        for other in ["llama3-8b", "runtimes/llama3-8b", "my/runtime/llama3-8b"] {
            assert_eq!(RuntimeName::of_subject(other), None);
            assert!(crate::Label::of_subject(other).is_ok(), "{other}");
        }
    }

    /// Requirement R2.
    #[test]
    fn operation_codes_kinds_and_sources_round_trip_as_text() {
        assert!(OperationCode::ALL.iter().all(|code| OperationCode::parse(code.as_str()) == Some(*code)));
        assert!(OperationKind::ALL.iter().all(|kind| OperationKind::parse(kind.as_str()) == Some(*kind)));
        assert!(OperationSource::ALL.iter().all(|source| OperationSource::parse(source.as_str()) == Some(*source)));
    }
}
