//! A spec as it is stored: one JSON document, and the environment in another, because it holds secrets.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use domain::runtime::{Desired, ImageRef, Network, Placement, Port, Probe, RuntimeSpec, VolumePath};
use serde::{Deserialize, Serialize};

use crate::codec::{from_json, to_json};
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
    /// Labels that its node must have.
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

/// The spec and its environment.
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

/// Every part is checked again: whatever wrote the row, nothing else reaches an engine.
pub(crate) fn read(spec: &str, env: &str) -> Result<RuntimeSpec, StoreError> {
    let stored: StoredSpec = from_json(spec)?;
    let env: BTreeMap<String, String> = from_json(env)?;
    let odd = |what: String| StoreError::unexpected(format!("a stored runtime: {what}"));
    let port = |port: StoredPort| Port {
        container: port.container,
        host: port.host,
        address: port.address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
    };
    let spec = RuntimeSpec {
        image: ImageRef::new(&stored.image).map_err(|error| odd(error.to_string()))?,
        command: stored.command,
        env,
        ports: stored.ports.into_iter().map(port).collect(),
        volumes: stored.volumes.iter().map(|path| VolumePath::parse(path)).collect::<Result<_, _>>().map_err(odd)?,
        network: Network::parse(&stored.network).map_err(|error| odd(error.to_string()))?,
        memory_mb: stored.memory_mb,
        cpus: stored.cpus,
        probe: stored.probe.map(|probe| Probe { path: probe.path, port: probe.port }),
        desired: stored.desired.as_deref().and_then(Desired::parse),
        ttl_s: stored.ttl_s,
        stop_grace_s: stored.stop_grace_s,
        placement: Placement { labels: stored.placement },
        movable: stored.movable,
    };
    spec.check().map_err(|error| odd(error.to_string()))?;
    Ok(spec)
}
