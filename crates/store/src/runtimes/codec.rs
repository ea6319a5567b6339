//! Converts a runtime's spec to and from JSON. The environment is a document of its own, because it contains secrets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use domain::runtimes::{Desired, ImageRef, Placement, Port, Probe, RuntimeNetwork, RuntimeSpec, VolumePath};
use serde::{Deserialize, Serialize};

use crate::db::codec::{from_json, to_json};
use crate::error::StoreError;

#[derive(Serialize, Deserialize)]
struct StoredSpec {
    image: String,
    #[serde(default)]
    command: Vec<String>,
    #[serde(default)]
    ports: Vec<StoredPort>,
    #[serde(default)]
    volumes: Vec<String>,
    network: String,
    memory_mb: Option<i64>,
    cpus: Option<f64>,
    probe: Option<StoredProbe>,
    desired: Option<String>,
    ttl_s: Option<i64>,
    #[serde(default)]
    stop_grace_s: Option<i64>,
    /// Labels that the node must have.
    #[serde(default)]
    placement: BTreeMap<String, String>,
    #[serde(default)]
    movable: bool,
}

#[derive(Serialize, Deserialize)]
struct StoredPort {
    container: u16,
    host: Option<u16>,
    address: Option<IpAddr>,
}

#[derive(Serialize, Deserialize)]
struct StoredProbe {
    path: String,
    port: u16,
}

/// Returns the JSON of the spec and of its environment.
pub(crate) fn write(spec: &RuntimeSpec) -> (String, String) {
    let stored = StoredSpec {
        image: spec.image.to_string(),
        command: spec.command.clone(),
        ports: spec
            .ports
            .iter()
            .map(|port| StoredPort { container: port.container, host: port.host, address: Some(port.address) })
            .collect(),
        volumes: spec.volumes.iter().map(VolumePath::target).collect(),
        network: spec.network.as_str().to_owned(),
        memory_mb: spec.memory_mb,
        cpus: spec.cpus,
        probe: spec.probe.as_ref().map(|probe| StoredProbe { path: probe.path.clone(), port: probe.port }),
        desired: spec.desired.map(|desired| desired.as_str().to_owned()),
        ttl_s: spec.ttl_s,
        stop_grace_s: spec.stop_grace_s,
        placement: spec.placement.labels.clone(),
        movable: spec.movable,
    };
    (to_json(&stored), to_json(&spec.env))
}

/// Reads a spec and validates every part again, so that only valid specs reach the container engine, whatever wrote the
/// row.
pub(crate) fn read(spec: &str, env: &str) -> Result<RuntimeSpec, StoreError> {
    let stored: StoredSpec = from_json(spec)?;
    let env: BTreeMap<String, String> = from_json(env)?;
    let invalid = |what: String| StoreError::unexpected(format!("invalid stored runtime spec: {what}"));
    let port = |port: StoredPort| Port {
        container: port.container,
        host: port.host,
        address: port.address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
    };
    let spec = RuntimeSpec {
        image: ImageRef::new(&stored.image).map_err(|error| invalid(error.to_string()))?,
        command: stored.command,
        env,
        ports: stored.ports.into_iter().map(port).collect(),
        volumes: stored
            .volumes
            .iter()
            .map(|path| VolumePath::parse(path))
            .collect::<Result<_, _>>()
            .map_err(invalid)?,
        network: RuntimeNetwork::parse(&stored.network).map_err(|error| invalid(error.to_string()))?,
        memory_mb: stored.memory_mb,
        cpus: stored.cpus,
        probe: stored.probe.map(|probe| Probe { path: probe.path, port: probe.port }),
        desired: stored.desired.as_deref().and_then(Desired::parse),
        ttl_s: stored.ttl_s,
        stop_grace_s: stored.stop_grace_s,
        placement: Placement { labels: stored.placement },
        movable: stored.movable,
    };
    spec.check().map_err(|error| invalid(error.to_string()))?;
    Ok(spec)
}
