//! Validation of runtime specifications.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;

use domain::RuntimeName;
use domain::runtimes::{Desired, ImageRef, Placement, Port, Probe, RuntimeNetwork, RuntimeSpec, SpecError, VolumePath};
use wire::{PlacementSettings, RuntimeRequest};

use crate::error::ApiError;

/// Placeholder for the value of an environment variable. A request that contains it keeps the stored value.
pub(crate) const REDACTED_VALUE: &str = "********";

pub(crate) fn name(text: &str) -> Result<RuntimeName, ApiError> {
    RuntimeName::new(text).map_err(|error| ApiError::invalid_field("name", error))
}

pub(crate) fn image(text: &str) -> Result<ImageRef, ApiError> {
    ImageRef::new(text).map_err(|error| ApiError::invalid_field("image", error))
}

pub(crate) fn invalid_spec(error: SpecError) -> ApiError {
    ApiError::invalid_field(error.field, error.reason)
}

pub(crate) fn placement(settings: Option<PlacementSettings>) -> Placement {
    Placement { labels: settings.unwrap_or_default().labels }
}

/// Validates a specification. A redacted environment variable keeps its value from `before`.
pub(crate) fn spec(request: RuntimeRequest, before: Option<&RuntimeSpec>) -> Result<RuntimeSpec, ApiError> {
    let volume = |(number, volume): (usize, wire::VolumeSettings)| {
        let field = format!("volumes[{number}].path");
        VolumePath::parse(&volume.path).map_err(|reason| ApiError::invalid_field(field, reason))
    };
    let port = |port: wire::PortSettings| Port {
        container: port.container,
        host: port.host,
        address: port.address.unwrap_or(Ipv4Addr::LOCALHOST.into()),
    };
    let desired = |text: &str| {
        Desired::parse(text).ok_or_else(|| ApiError::invalid_field("desired", "must be running or stopped"))
    };
    let spec = RuntimeSpec {
        image: image(&request.image)?,
        command: request.command.unwrap_or_default(),
        env: env(request.env.unwrap_or_default(), before)?,
        ports: request.ports.unwrap_or_default().into_iter().map(port).collect(),
        volumes: request.volumes.unwrap_or_default().into_iter().enumerate().map(volume).collect::<Result<_, _>>()?,
        network: request
            .network
            .as_deref()
            .map_or(Ok(RuntimeNetwork::Bridge), RuntimeNetwork::parse)
            .map_err(invalid_spec)?,
        memory_mb: request.memory_mb,
        cpus: request.cpus,
        probe: request.probe.map(|probe| Probe { path: probe.path, port: probe.port }),
        desired: request.desired.as_deref().map(desired).transpose()?,
        ttl_s: request.ttl_s,
        stop_grace_s: request.stop_grace_s,
        placement: placement(request.placement),
        movable: request.movable.unwrap_or(false),
    };
    spec.check().map_err(invalid_spec)?;
    Ok(spec)
}

fn env(
    variables: BTreeMap<String, String>,
    before: Option<&RuntimeSpec>,
) -> Result<BTreeMap<String, String>, ApiError> {
    let value = |(name, value): (String, String)| {
        if value != REDACTED_VALUE {
            return Ok((name, value));
        }
        match before.and_then(|before| before.env.get(&name)) {
            Some(stored) => Ok((name, stored.clone())),
            None => Err(ApiError::invalid_field(
                format!("env.{name}"),
                "has a redacted value, but no value is stored; send the value",
            )),
        }
    };
    variables.into_iter().map(value).collect()
}
