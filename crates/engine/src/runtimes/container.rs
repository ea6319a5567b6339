//! The only builder of container configurations: every start, restart and patch uses it.
//!
//! The only host folders are those prepared under the runtime's state path. Options that the spec does not cover are
//! not set, so that Docker's safe defaults apply.

use std::collections::HashMap;
use std::path::PathBuf;

use bollard::models::{
    ContainerCreateBody, HostConfig, HostConfigLogConfig, Mount, MountType, PortBinding, RestartPolicy,
    RestartPolicyNameEnum,
};
use domain::limits::RUNTIME_PIDS;
use domain::runtimes::{ImageRef, RuntimeNetwork, RuntimeSpec};
use domain::{RuntimeName, TenantId};
use sha2::{Digest, Sha256};

use super::driver::NewContainer;

pub const INSTANCE: &str = "windlass.instance";
pub const TENANT: &str = "windlass.tenant";
pub const RUNTIME: &str = "windlass.runtime";
/// The node that created the container. Docker engines can be shared, and each node manages only its own containers.
pub const NODE: &str = "windlass.node";
pub const SPEC: &str = "windlass.spec";

/// The runtime that a container belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub instance: String,
    pub tenant: TenantId,
    pub runtime: RuntimeName,
}

impl Identity {
    /// Deterministic, so that a container that was created but not recorded is found again.
    pub fn container_name(&self) -> String {
        format!("windlass-{}-{}-{}", self.instance, self.tenant.0, self.runtime)
    }

    /// Parses the labels of a container of this installation.
    pub fn of(instance: &str, labels: &HashMap<String, String>) -> Option<Self> {
        let ours = labels.get(INSTANCE)? == instance;
        let tenant = TenantId(labels.get(TENANT)?.parse().ok()?);
        let runtime = RuntimeName::new(labels.get(RUNTIME)?).ok()?;
        ours.then(|| Self { instance: instance.to_owned(), tenant, runtime })
    }

    fn labels(&self) -> [(String, String); 3] {
        [
            (INSTANCE.into(), self.instance.clone()),
            (TENANT.into(), self.tenant.0.to_string()),
            (RUNTIME.into(), self.runtime.to_string()),
        ]
    }
}

/// A hash of the spec. A stopped container with the same fingerprint can be started instead of recreated.
pub fn fingerprint(spec: &RuntimeSpec, image: &ImageRef) -> String {
    let RuntimeSpec { command, env, ports, volumes, network, memory_mb, cpus, .. } = spec;
    let text = format!("{image:?} {command:?} {env:?} {ports:?} {volumes:?} {network:?} {memory_mb:?} {cpus:?}");
    Sha256::digest(text.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

/// A host folder and its mount point in the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Folder {
    pub source: PathBuf,
    pub target: String,
}

pub(super) fn body(new: NewContainer<'_>) -> ContainerCreateBody {
    let NewContainer { identity, node, spec, image, folders } = new;
    let port = |number: u16| format!("{number}/tcp");
    let bindings = spec.ports.iter().map(|published| {
        let binding = PortBinding {
            host_ip: Some(published.address.to_string()),
            // An empty host port lets Docker choose a free one.
            host_port: Some(published.host.map_or(String::new(), |host| host.to_string())),
        };
        (port(published.container), Some(vec![binding]))
    });
    let mounts = folders.iter().map(|folder| Mount {
        typ: Some(MountType::BIND),
        source: Some(folder.source.to_string_lossy().into_owned()),
        target: Some(folder.target.clone()),
        ..Mount::default()
    });
    let memory = spec.memory_mb.map(|mb| mb << 20);
    let host = HostConfig {
        privileged: Some(false),
        cap_drop: Some(vec!["ALL".into()]),
        security_opt: Some(vec!["no-new-privileges".into()]),
        network_mode: Some(match &spec.network {
            RuntimeNetwork::Bridge => "bridge".into(),
            RuntimeNetwork::None => "none".into(),
            RuntimeNetwork::Named(name) => name.clone(),
        }),
        port_bindings: Some(bindings.collect()),
        mounts: Some(mounts.collect()),
        memory,
        // No additional swap: a model that does not fit must fail.
        memory_swap: memory,
        nano_cpus: spec.cpus.map(|cpus| (cpus * 1e9) as i64),
        pids_limit: Some(RUNTIME_PIDS),
        // Windlass decides whether the container runs, not Docker.
        restart_policy: Some(RestartPolicy { name: Some(RestartPolicyNameEnum::NO), maximum_retry_count: None }),
        log_config: Some(HostConfigLogConfig {
            typ: Some("json-file".into()),
            config: Some(HashMap::from([
                ("max-size".to_owned(), "10m".to_owned()),
                ("max-file".to_owned(), "3".to_owned()),
            ])),
        }),
        ..HostConfig::default()
    };
    let mut labels = HashMap::from(identity.labels());
    labels.insert(NODE.into(), node.to_owned());
    labels.insert(SPEC.into(), fingerprint(spec, image));
    ContainerCreateBody {
        image: Some(image.to_string()),
        cmd: (!spec.command.is_empty()).then(|| spec.command.clone()),
        env: Some(spec.env.iter().map(|(name, value)| format!("{name}={value}")).collect()),
        exposed_ports: Some(spec.ports.iter().map(|published| port(published.container)).collect()),
        labels: Some(labels),
        host_config: Some(host),
        ..ContainerCreateBody::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R5.
    #[test]
    fn only_containers_with_the_labels_of_this_installation_are_managed() {
        let identity = Identity { instance: "ours".into(), tenant: TenantId(2), runtime: RuntimeName::stored("model") };
        let labels = HashMap::from(identity.labels());
        assert_eq!(Identity::of("ours", &labels), Some(identity));
        assert_eq!(Identity::of("theirs", &labels), None, "another installation on the same Docker engine");
        for label in [INSTANCE, TENANT, RUNTIME] {
            let mut labels = labels.clone();
            labels.remove(label);
            assert_eq!(Identity::of("ours", &labels), None, "without {label}");
        }
        for (label, invalid) in [(TENANT, "two"), (RUNTIME, "../model"), (INSTANCE, "")] {
            let mut labels = labels.clone();
            labels.insert(label.into(), invalid.into());
            assert_eq!(Identity::of("ours", &labels), None, "{label}={invalid}");
        }
    }
}
