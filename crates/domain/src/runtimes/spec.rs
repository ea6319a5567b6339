//! The specification of a container.
//!
//! The specification is deliberately narrow. There is no privileged mode, no device, no capability, no host namespace
//! and no host folder except those below the runtime's own state path.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use crate::limits::{
    PORT_MAX, PROBE_PATH_BYTES, RUNTIME_ARGUMENTS, RUNTIME_ENV, RUNTIME_MAX_CPUS, RUNTIME_MEMORY_MAX_MB,
    RUNTIME_MEMORY_MIN_MB, RUNTIME_PORTS, RUNTIME_TEXT_BYTES, RUNTIME_VOLUMES, STOP_GRACE_MAX_S, VOLUME_PATH_BYTES,
    WAIT_MAX_S,
};
use crate::runtimes::{Desired, ImageRef, Placement};

#[derive(Clone, Debug, PartialEq)]
pub struct RuntimeSpec {
    pub image: ImageRef,
    /// Empty: the command of the image.
    pub command: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub ports: Vec<Port>,
    pub volumes: Vec<VolumePath>,
    pub network: RuntimeNetwork,
    pub memory_mb: Option<i64>,
    pub cpus: Option<f64>,
    pub probe: Option<Probe>,
    pub desired: Option<Desired>,
    /// The runtime is stopped this long after its start.
    pub ttl_s: Option<i64>,
    /// How long the container gets to exit by itself when it is stopped.
    pub stop_grace_s: Option<i64>,
    /// The nodes that may run it.
    pub placement: Placement,
    /// If its node is lost, the runtime is started on another node. The contents of its volumes stay on the lost node.
    pub movable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Port {
    pub container: u16,
    /// `None`: a free port.
    pub host: Option<u16>,
    /// The address that the port is published on. Default: loopback.
    pub address: IpAddr,
}

/// A folder in the container that survives it, stored below the runtime's state path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VolumePath(String);

/// A `GET` on a port of the container. Status 2xx and 3xx are healthy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    pub path: String,
    pub port: u16,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuntimeNetwork {
    Bridge,
    None,
    /// A network that was created in Docker.
    Named(String),
}

/// The invalid member of a specification, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} {reason}")]
pub struct SpecError {
    pub field: String,
    pub reason: String,
}

fn refuse(field: impl Into<String>, reason: impl Into<String>) -> SpecError {
    SpecError { field: field.into(), reason: reason.into() }
}

impl RuntimeNetwork {
    /// Refuses the names by which Docker would share the network of the host or of another container.
    pub fn parse(text: &str) -> Result<Self, SpecError> {
        match text {
            "" => Err(refuse("network", "must not be empty")),
            "bridge" => Ok(Self::Bridge),
            "none" => Ok(Self::None),
            "host" | "default" | "ingress" | "nat" => {
                Err(refuse("network", format!("must be bridge, none or a network that you created, not {text}")))
            }
            name => {
                let plain = name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b));
                let begins = name.bytes().next().is_some_and(|b| b.is_ascii_alphanumeric());
                if plain && begins && name.len() <= VOLUME_PATH_BYTES {
                    Ok(Self::Named(name.into()))
                } else {
                    Err(refuse("network", "may contain only letters, digits and . _ -"))
                }
            }
        }
    }

    pub fn as_str(&self) -> &str {
        match self {
            Self::Bridge => "bridge",
            Self::None => "none",
            Self::Named(name) => name,
        }
    }
}

impl VolumePath {
    /// Parses an absolute path in the container. A relative `data` means `/data`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let parts: Vec<&str> = text.split('/').filter(|part| !part.is_empty()).collect();
        if parts.is_empty() {
            return Err("must be a folder below /".into());
        }
        if text.len() > VOLUME_PATH_BYTES {
            return Err(format!("may have at most {VOLUME_PATH_BYTES} bytes"));
        }
        if let Some(component) = parts.iter().find(|part| **part == "." || **part == "..") {
            return Err(format!("must not contain {component}"));
        }
        // A colon would end the path in Docker's short syntax. Control characters hide in listings.
        if text.contains(':') || text.contains('\\') || text.chars().any(char::is_control) {
            return Err("must not contain colons, backslashes or control characters".into());
        }
        // A mount over the kernel's folders would remove protections.
        if ["proc", "sys", "dev"].contains(&parts[0]) {
            return Err(format!("must not be below /{}", parts[0]));
        }
        Ok(Self(parts.join("/")))
    }

    /// The path in the container.
    pub fn target(&self) -> String {
        format!("/{}", self.0)
    }

    /// The components of the path below the runtime's state path.
    pub fn parts(&self) -> impl Iterator<Item = &str> {
        self.0.split('/')
    }

    fn contains(&self, other: &Self) -> bool {
        other.0.strip_prefix(self.0.as_str()).is_some_and(|rest| rest.starts_with('/'))
    }
}

impl RuntimeSpec {
    /// A specification with an image and defaults for everything else.
    pub fn of(image: ImageRef) -> Self {
        Self {
            image,
            command: Vec::new(),
            env: BTreeMap::new(),
            ports: Vec::new(),
            volumes: Vec::new(),
            network: RuntimeNetwork::Bridge,
            memory_mb: None,
            cpus: None,
            probe: None,
            desired: None,
            ttl_s: None,
            stop_grace_s: None,
            placement: Placement::default(),
            movable: false,
        }
    }

    /// Validates everything that does not depend on Docker.
    pub fn check(&self) -> Result<(), SpecError> {
        at_most("command", self.command.len(), RUNTIME_ARGUMENTS)?;
        for (number, argument) in self.command.iter().enumerate() {
            text(&format!("command[{number}]"), argument)?;
        }
        at_most("env", self.env.len(), RUNTIME_ENV)?;
        for (name, value) in &self.env {
            if name.is_empty() || name.contains('=') {
                return Err(refuse("env", "must have non-empty names without ="));
            }
            text("env", name)?;
            text(&format!("env.{name}"), value)?;
        }
        self.check_ports()?;
        self.check_volumes()?;
        between("memory_mb", self.memory_mb, RUNTIME_MEMORY_MIN_MB, RUNTIME_MEMORY_MAX_MB)?;
        if self.cpus.is_some_and(|cpus| !(0.01..=RUNTIME_MAX_CPUS).contains(&cpus)) {
            return Err(refuse("cpus", format!("must be from 0.01 to {RUNTIME_MAX_CPUS}")));
        }
        between("ttl_s", self.ttl_s, 1, WAIT_MAX_S)?;
        between("stop_grace_s", self.stop_grace_s, 0, STOP_GRACE_MAX_S)?;
        self.placement.check()?;
        self.check_probe()
    }

    fn check_ports(&self) -> Result<(), SpecError> {
        at_most("ports", self.ports.len(), RUNTIME_PORTS)?;
        if self.network == RuntimeNetwork::None && !self.ports.is_empty() {
            return Err(refuse("ports", "require a network"));
        }
        let mut seen = BTreeSet::new();
        for (number, port) in self.ports.iter().enumerate() {
            if port.container == 0 {
                return Err(refuse(format!("ports[{number}].container"), format!("must be from 1 to {PORT_MAX}")));
            }
            if port.host == Some(0) {
                return Err(refuse(format!("ports[{number}].host"), format!("must be from 1 to {PORT_MAX}")));
            }
            if !seen.insert(port.container) {
                return Err(refuse(format!("ports[{number}].container"), "is published twice"));
            }
        }
        Ok(())
    }

    fn check_volumes(&self) -> Result<(), SpecError> {
        at_most("volumes", self.volumes.len(), RUNTIME_VOLUMES)?;
        for (number, volume) in self.volumes.iter().enumerate() {
            let field = || format!("volumes[{number}].path");
            if self.volumes[..number].contains(volume) {
                return Err(refuse(field(), "is a duplicate"));
            }
            // Inside a volume the container could put a link where the next one is to be.
            if self.volumes.iter().any(|other| other.contains(volume)) {
                return Err(refuse(field(), "must not lie inside another volume"));
            }
        }
        Ok(())
    }

    fn check_probe(&self) -> Result<(), SpecError> {
        let Some(probe) = &self.probe else { return Ok(()) };
        let plain = probe.path.bytes().all(|b| b.is_ascii_graphic());
        if !probe.path.starts_with('/') || !plain || probe.path.len() > PROBE_PATH_BYTES {
            return Err(refuse("probe.path", "must begin with / and contain only visible ASCII without spaces"));
        }
        if !self.ports.iter().any(|port| port.container == probe.port) {
            return Err(refuse("probe.port", "must be the container port of one of the ports"));
        }
        Ok(())
    }
}

fn at_most(field: &str, count: usize, most: usize) -> Result<(), SpecError> {
    if count <= most { Ok(()) } else { Err(refuse(field, format!("may have at most {most}; it has {count}"))) }
}

fn between(field: &str, value: Option<i64>, least: i64, most: i64) -> Result<(), SpecError> {
    match value {
        Some(value) if !(least..=most).contains(&value) => {
            Err(refuse(field, format!("must be from {least} to {most}; it is {value}")))
        }
        _ => Ok(()),
    }
}

fn text(field: &str, text: &str) -> Result<(), SpecError> {
    if text.len() > RUNTIME_TEXT_BYTES {
        return Err(refuse(field, format!("may have at most {RUNTIME_TEXT_BYTES} bytes")));
    }
    if text.contains('\0') { Err(refuse(field, "must not contain U+0000")) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn spec() -> RuntimeSpec {
        RuntimeSpec {
            ports: vec![Port { container: 80, host: None, address: Ipv4Addr::LOCALHOST.into() }],
            probe: Some(Probe { path: "/health".into(), port: 80 }),
            ..RuntimeSpec::of(ImageRef::stored("a:1.0.0"))
        }
    }

    fn field(change: impl FnOnce(&mut RuntimeSpec)) -> String {
        let mut spec = spec();
        change(&mut spec);
        spec.check().map_or_else(|error| error.field, |()| "nothing".into())
    }

    /// Requirement R6.
    #[test]
    fn host_networks_and_host_paths_are_rejected() {
        for bad in ["host", "container:x", "ns:/proc/1/ns/net", "default", "", "a b", "../x"] {
            assert!(RuntimeNetwork::parse(bad).is_err(), "{bad}");
        }
        for bad in ["", "/", "..", "/a/../../etc", "a/./b", "/proc", "/sys/fs", "/dev/x", "a:b", "a\0", "a\\b"] {
            assert!(VolumePath::parse(bad).is_err(), "{bad:?}");
        }
        assert_eq!(VolumePath::parse("//var//lib/x/").map(|path| path.target()), Ok("/var/lib/x".into()));
        assert_eq!(VolumePath::parse("data").map(|path| path.target()), Ok("/data".into()));
    }

    /// Requirement R1.
    #[test]
    fn an_invalid_runtime_spec_names_the_field() {
        let volume = |path: &str| VolumePath::parse(path).expect("a path");
        assert_eq!(field(|_| {}), "nothing");
        assert_eq!(field(|spec| spec.volumes = vec![volume("/a"), volume("/a/b")]), "volumes[1].path");
        assert_eq!(field(|spec| spec.volumes = vec![volume("/a/b"), volume("/a")]), "volumes[0].path");
        assert_eq!(field(|spec| spec.volumes = vec![volume("/a"), volume("/ab")]), "nothing");
        assert_eq!(field(|spec| spec.ports[0].container = 0), "ports[0].container");
        assert_eq!(field(|spec| spec.probe = Some(Probe { path: "x".into(), port: 80 })), "probe.path");
        assert_eq!(field(|spec| spec.probe = Some(Probe { path: "/".into(), port: 81 })), "probe.port");
        assert_eq!(field(|spec| spec.network = RuntimeNetwork::None), "ports");
        assert_eq!(field(|spec| spec.memory_mb = Some(1)), "memory_mb");
        assert_eq!(field(|spec| spec.cpus = Some(f64::NAN)), "cpus");
        assert_eq!(field(|spec| drop(spec.env.insert("A".into(), "\0".into()))), "env.A");
        assert_eq!(field(|spec| drop(spec.env.insert("A=B".into(), "x".into()))), "env");
        assert_eq!(field(|spec| drop(spec.placement.labels.insert("a".into(), "".into()))), "placement.labels.a");
    }
}
