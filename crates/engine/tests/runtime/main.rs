//! The container settings that reach the Docker engine: no runtime spec can request more than a restricted container.
//!
//! A Unix socket of the test acts as the engine and records the requests.

#![expect(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::path::PathBuf;

use domain::runtimes::{ImageRef, Port, Probe, RuntimeNetwork, RuntimeSpec, VolumePath};
use domain::{RuntimeName, TenantId};
use engine::runtimes::container::{Folder, Identity};
use engine::runtimes::docker::Docker;
use engine::runtimes::driver::{Driver, NewContainer};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc;

const STATE: &str = "/state/root/2/model";

/// Responds to every request as an engine would, and passes on the bodies of create requests.
async fn engine(listener: UnixListener, bodies: mpsc::Sender<String>) {
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        connections.spawn(serve(stream, bodies.clone()));
    }
}

async fn serve(mut stream: UnixStream, bodies: mpsc::Sender<String>) {
    let mut buffer = Vec::new();
    loop {
        let head_end = loop {
            if let Some(at) = buffer.windows(4).position(|window| window == b"\r\n\r\n") {
                break at + 4;
            }
            let mut chunk = [0; 4096];
            match stream.read(&mut chunk).await {
                Ok(0) | Err(_) => return,
                Ok(read) => buffer.extend_from_slice(&chunk[..read]),
            }
        };
        let head = String::from_utf8_lossy(&buffer[..head_end]).to_ascii_lowercase();
        let length = head.split("content-length:").nth(1).and_then(|rest| rest.split("\r\n").next());
        let length: usize = length.map_or(0, |text| text.trim().parse().unwrap());
        while buffer.len() < head_end + length {
            let mut chunk = [0; 4096];
            let read = stream.read(&mut chunk).await.unwrap();
            buffer.extend_from_slice(&chunk[..read]);
        }
        let request: Vec<u8> = buffer.drain(..head_end + length).collect();
        let (status, body) = if head.contains("/containers/create") {
            bodies.send(String::from_utf8(request[head_end..].to_vec()).unwrap()).await.unwrap();
            ("201 Created", r#"{"Id":"x","Warnings":[]}"#)
        } else {
            ("200 OK", r#"{"ApiVersion":"1.41","MinAPIVersion":"1.12"}"#)
        };
        let response = format!(
            "HTTP/1.1 {status}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(response.as_bytes()).await.unwrap();
    }
}

/// Texts that could be misinterpreted, and random ones.
fn odd_text() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("host".to_owned()),
        Just("container:other".to_owned()),
        Just("/var/run/docker.sock".to_owned()),
        Just("../../etc".to_owned()),
        Just("/data:/etc:rw".to_owned()),
        Just("--privileged".to_owned()),
        Just("\"Privileged\":true".to_owned()),
        Just("{\"HostConfig\":{\"Privileged\":true}}".to_owned()),
        ".{0,40}",
    ]
}

prop_compose! {
    fn specs()(
        command in prop::collection::vec(odd_text(), 0..4),
        env in prop::collection::btree_map(odd_text(), odd_text(), 0..4),
        volumes in prop::collection::vec(odd_text(), 0..4),
        network in odd_text(),
        ports in prop::collection::vec((any::<u16>(), any::<Option<u16>>(), any::<u32>()), 0..4),
        memory_mb in any::<Option<i64>>(),
        cpus in any::<Option<f64>>(),
        image in odd_text(),
        probe in prop::option::of((odd_text(), any::<u16>())),
    ) -> RuntimeSpec {
        let address = |number: u32| IpAddr::from(Ipv4Addr::from(number));
        RuntimeSpec {
            image: ImageRef::new(&image).unwrap_or(ImageRef::stored("a:1.0.0")),
            command,
            env: env.into_iter().collect::<BTreeMap<_, _>>(),
            ports: ports.into_iter().map(|(container, host, on)| Port { container, host, address: address(on) }).collect(),
            // A text that is not a valid path or network cannot be part of a spec.
            volumes: volumes.iter().filter_map(|path| VolumePath::parse(path).ok()).collect(),
            network: RuntimeNetwork::parse(&network).unwrap_or(RuntimeNetwork::Bridge),
            memory_mb,
            cpus,
            probe: probe.map(|(path, port)| Probe { path, port }),
            ..RuntimeSpec::of(ImageRef::stored("a:1.0.0"))
        }
    }
}

fn members(value: &Value) -> BTreeSet<&str> {
    value.as_object().unwrap().keys().map(String::as_str).collect()
}

/// Checks the request against the allowed members. A member that is not listed here is a vulnerability.
fn check(body: &Value) {
    let top: BTreeSet<&str> = ["Image", "Cmd", "Env", "ExposedPorts", "Labels", "HostConfig"].into();
    assert!(members(body).is_subset(&top), "{:?}", members(body));
    let host = &body["HostConfig"];
    let allowed: BTreeSet<&str> = [
        "Privileged",
        "CapDrop",
        "SecurityOpt",
        "NetworkMode",
        "PortBindings",
        "Mounts",
        "Memory",
        "MemorySwap",
        "NanoCpus",
        "PidsLimit",
        "RestartPolicy",
        "LogConfig",
    ]
    .into();
    assert!(members(host).is_subset(&allowed), "{:?}", members(host));
    assert_eq!(host["Privileged"], false);
    assert_eq!(host["CapDrop"], serde_json::json!(["ALL"]));
    assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges"]));
    let network = host["NetworkMode"].as_str().unwrap();
    assert!(network != "host" && !network.contains(':'), "{network}");
    for mount in host["Mounts"].as_array().unwrap() {
        assert_eq!(members(mount), ["Source", "Target", "Type"].into());
        assert_eq!(mount["Type"], "bind");
        let source = mount["Source"].as_str().unwrap();
        assert!(source.starts_with(&format!("{STATE}/")) && !source.split('/').any(|part| part == ".."), "{source}");
        assert!(mount["Target"].as_str().unwrap().starts_with('/'));
    }
    assert_eq!(host["RestartPolicy"]["Name"], "no");
}

/// Requirement R6.
#[test]
fn no_runtime_spec_yields_a_forbidden_host_setting() {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().worker_threads(2).build().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("docker.sock");
    let (sender, bodies) = mpsc::channel(16);
    let bodies = std::cell::RefCell::new(bodies);
    let listener = {
        let _guard = runtime.enter();
        UnixListener::bind(&socket).unwrap()
    };
    runtime.spawn(engine(listener, sender));
    let docker = Docker::new(&format!("unix://{}", socket.display()));
    let identity =
        Identity { instance: "0123456789abcdef".into(), tenant: TenantId(2), runtime: RuntimeName::stored("model") };
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let outcome = runner.run(&specs(), |spec| {
        let folders: Vec<Folder> = spec
            .volumes
            .iter()
            .map(|volume| Folder {
                source: volume.parts().fold(PathBuf::from(STATE), |path, part| path.join(part)),
                target: volume.target(),
            })
            .collect();
        let new =
            NewContainer { identity: &identity, node: "here", spec: &spec, image: &spec.image, folders: &folders };
        runtime.block_on(docker.create(new)).unwrap();
        let text = runtime.block_on(bodies.borrow_mut().recv()).unwrap();
        check(&serde_json::from_str(&text).unwrap());
        Ok(())
    });
    outcome.unwrap();
}
