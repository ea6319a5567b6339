//! `windlass runtime`: declares, starts, stops and inspects container runtimes.

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use client::{Client, OperationResult, RuntimeOperation};
use serde_json::json;
use wire::{
    OperationView, PlacementSettings, PortSettings, ProbeSettings, RuntimeHealth, RuntimeRequest, RuntimeView,
    VolumeSettings,
};

use crate::cli::drive::labels;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Listing, Output, cell, moment, relative, relative_maybe};
use crate::cli::value::{finite, seconds};

/// How long a command waits for its operation.
const WAIT: Duration = Duration::from_secs(60);

#[derive(Subcommand)]
pub(crate) enum RuntimeVerb {
    /// List runtimes
    List,
    /// Show a runtime
    Show { name: String },
    /// Create or change a runtime; settings that are not given keep their values
    Set(Box<RuntimeSetArgs>),
    /// Start a runtime, with the declared image unless --image is given
    Start {
        name: String,
        #[arg(long)]
        image: Option<String>,
    },
    /// Stop a runtime
    Stop { name: String },
    /// Restart a runtime with its current declaration
    Restart { name: String },
    /// Replace the running image with another patch release of the same major and minor version
    Patch { name: String, image: String },
    /// Remove the container; the runtime and its state directory are retained
    CleanUp { name: String },
    /// Move a runtime that is stopped, or that is on a lost node, to another node. The contents of its volumes are not
    /// moved
    Move {
        name: String,
        /// Target node [default: the suitable node with the most free slots]
        #[arg(long)]
        node: Option<String>,
    },
    /// Delete a runtime and its container; its state directory is retained
    Delete { name: String },
    /// Show the operations on a runtime, newest first
    Operations {
        name: String,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show the health of a runtime and its history
    Health { name: String },
    /// Print the log of a runtime
    Logs {
        name: String,
        /// Follow the log
        #[arg(short, long)]
        follow: bool,
        /// Number of last lines to print
        #[arg(long, value_name = "LINES")]
        tail: Option<u32>,
    },
}

#[derive(Args)]
pub(crate) struct RuntimeSetArgs {
    name: String,
    #[arg(long)]
    image: Option<String>,
    /// Environment variable: NAME=VALUE; may be repeated
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// Port to publish on loopback: CONTAINER or HOST:CONTAINER; may be repeated
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// Directory in the container that outlives it; may be repeated
    #[arg(long = "volume", value_name = "PATH")]
    volumes: Vec<String>,
    #[arg(long)]
    network: Option<String>,
    #[arg(long, value_name = "MB")]
    memory_mb: Option<i64>,
    #[arg(long, value_name = "N", value_parser = finite)]
    cpus: Option<f64>,
    /// Health probe over HTTP: PORT/PATH
    #[arg(long, value_name = "PORT/PATH")]
    probe: Option<String>,
    /// Desired state, which Windlass restores automatically: running or stopped
    #[arg(long)]
    desired: Option<String>,
    /// Stop the runtime this many seconds after its start
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    ttl_s: Option<i64>,
    /// Seconds between the stop signal and the kill signal [default: 10]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    stop_grace_s: Option<i64>,
    /// Label that the node must have: NAME=VALUE; may be repeated
    #[arg(long = "placement", value_name = "NAME=VALUE")]
    placement: Vec<String>,
    /// Start the runtime on another node if its node is lost [default: false]
    #[arg(long, value_name = "true|false")]
    movable: Option<bool>,
    /// Reset a setting to its default; `env` removes all variables; may be repeated
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<RuntimeSetting>,
    /// Command to run instead of the image's own
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum RuntimeSetting {
    Command,
    Env,
    Ports,
    Volumes,
    Network,
    MemoryMb,
    Cpus,
    Probe,
    Desired,
    TtlS,
    StopGraceS,
    Placement,
    Movable,
}

impl RuntimeSetArgs {
    /// Returns the settings with the given flags applied.
    fn apply(self, mut before: RuntimeRequest) -> Result<RuntimeRequest, UsageError> {
        for setting in &self.unset {
            match setting {
                RuntimeSetting::Command => before.command = None,
                RuntimeSetting::Env => before.env = None,
                RuntimeSetting::Ports => before.ports = None,
                RuntimeSetting::Volumes => before.volumes = None,
                RuntimeSetting::Network => before.network = None,
                RuntimeSetting::MemoryMb => before.memory_mb = None,
                RuntimeSetting::Cpus => before.cpus = None,
                RuntimeSetting::Probe => before.probe = None,
                RuntimeSetting::Desired => before.desired = None,
                RuntimeSetting::TtlS => before.ttl_s = None,
                RuntimeSetting::StopGraceS => before.stop_grace_s = None,
                RuntimeSetting::Placement => before.placement = None,
                RuntimeSetting::Movable => before.movable = None,
            }
        }
        let mut env = before.env.unwrap_or_default();
        for pair in &self.env {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| UsageError(format!("--env must be NAME=VALUE, not `{pair}`")))?;
            env.insert(name.to_owned(), value.to_owned());
        }
        let ports = self.ports.iter().map(|text| port(text)).collect::<Result<Vec<_>, _>>()?;
        let volumes: Vec<VolumeSettings> = self.volumes.into_iter().map(|path| VolumeSettings { path }).collect();
        let labels = labels("--placement", &self.placement)?;
        Ok(RuntimeRequest {
            image: self.image.unwrap_or(before.image),
            command: if self.command.is_empty() { before.command } else { Some(self.command) },
            env: Some(env),
            ports: if ports.is_empty() { before.ports } else { Some(ports) },
            volumes: if volumes.is_empty() { before.volumes } else { Some(volumes) },
            network: self.network.or(before.network),
            memory_mb: self.memory_mb.or(before.memory_mb),
            cpus: self.cpus.or(before.cpus),
            probe: match &self.probe {
                Some(text) => Some(probe(text)?),
                None => before.probe,
            },
            desired: self.desired.or(before.desired),
            ttl_s: self.ttl_s.or(before.ttl_s),
            stop_grace_s: self.stop_grace_s.or(before.stop_grace_s),
            placement: if labels.is_empty() { before.placement } else { Some(PlacementSettings { labels }) },
            movable: self.movable.or(before.movable),
        })
    }
}

pub(crate) async fn run(client: &Client, verb: RuntimeVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        RuntimeVerb::List => list(client, format).await,
        RuntimeVerb::Show { name } => shown(&client.runtime(&name).await?, format),
        RuntimeVerb::Set(args) => set(client, *args, format).await,
        RuntimeVerb::Start { name, image } => {
            operate(client, &name, RuntimeOperation::Start, image.as_deref(), format).await
        }
        RuntimeVerb::Stop { name } => operate(client, &name, RuntimeOperation::Stop, None, format).await,
        RuntimeVerb::Restart { name } => operate(client, &name, RuntimeOperation::Restart, None, format).await,
        RuntimeVerb::Patch { name, image } => {
            operate(client, &name, RuntimeOperation::Patch, Some(&image), format).await
        }
        RuntimeVerb::CleanUp { name } => operate(client, &name, RuntimeOperation::CleanUp, None, format).await,
        RuntimeVerb::Move { name, node } => shown(&client.move_runtime(&name, node.as_deref()).await?, format),
        RuntimeVerb::Delete { name } => operate(client, &name, RuntimeOperation::Delete, None, format).await,
        RuntimeVerb::Operations { name, cursor } => operations(client, &name, cursor.as_deref(), format).await,
        RuntimeVerb::Health { name } => health(client, &name, format).await,
        RuntimeVerb::Logs { name, follow: false, tail } => print(client.runtime_logs(&name, tail).await?).await,
        RuntimeVerb::Logs { name, follow: true, tail } => print(client.follow_runtime_logs(&name, tail).await?).await,
    }
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.runtimes(cursor).await).await?;
    list::print(
        format,
        &page,
        "No runtimes.",
        ["NAME", "STATUS", "HEALTH", "IMAGE", "ENDPOINT", "STARTED"],
        |runtime| {
            [
                cell(&runtime.name),
                output::state(&runtime.status),
                cell(runtime.health.as_ref().map_or("", |health| health.status.as_str())),
                cell(runtime.current_image.as_ref().unwrap_or(&runtime.image)),
                cell(runtime.endpoint.as_deref().unwrap_or_default()),
                cell(relative_maybe(runtime.started_at)),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn shown(runtime: &RuntimeView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(runtime)?;
        return Ok(Exit::Done);
    }
    let port = |port: &PortSettings| match port.host {
        Some(host) => format!("{host}:{}", port.container),
        None => port.container.to_string(),
    };
    let joined = |items: Vec<String>| (!items.is_empty()).then(|| items.join("\n"));
    let mut details = Details::new();
    details
        .text("runtime", &runtime.name)
        .add("status", output::state(&runtime.status))
        .maybe("notice", runtime.notice.as_ref())
        .maybe("in progress", runtime.in_flight.as_ref())
        .maybe("health", runtime.health.as_ref().map(|health| format!("{}: {}", health.status, health.details)))
        .text("image", &runtime.image)
        .maybe("running image", runtime.current_image.as_ref().filter(|image| **image != runtime.image))
        .maybe("command", joined(runtime.command.clone()))
        .maybe("environment", joined(runtime.env.keys().cloned().collect()))
        .maybe("ports", joined(runtime.ports.iter().map(port).collect()))
        .maybe("volumes", joined(runtime.volumes.iter().map(|volume| volume.path.clone()).collect()))
        .maybe("memory", runtime.memory_mb.map(|mb| format!("{mb} MB")))
        .maybe("cpus", runtime.cpus)
        .maybe("probe", runtime.probe.as_ref().map(|probe| format!("{}{}", probe.port, probe.path)))
        .maybe("desired", runtime.desired.as_ref())
        .maybe("placement", joined(label_args(&runtime.placement)))
        .maybe("movable", runtime.movable.then_some("yes"))
        .maybe("stop after", runtime.ttl_s.map(|seconds| format!("{seconds} s")))
        .maybe("endpoint", runtime.endpoint.as_ref())
        .maybe("container", runtime.container_id.as_ref())
        .maybe("state path", runtime.state_path.as_ref())
        .maybe("node", runtime.node.as_ref())
        .maybe("started", runtime.started_at.map(moment))
        .maybe("stopped", runtime.stopped_at.map(moment));
    details.print()?;
    Ok(Exit::Done)
}

/// The placement as arguments of `set`.
pub(crate) fn label_args(placement: &PlacementSettings) -> Vec<String> {
    placement.labels.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

// The route replaces all settings, so read the current ones first and change only those that were given.
async fn set(client: &Client, args: RuntimeSetArgs, format: Output) -> anyhow::Result<Exit> {
    let name = args.name.clone();
    let before = match client.runtime(&name).await {
        Ok(runtime) => declared(runtime),
        Err(error) if error.status() == Some(404) => RuntimeRequest::default(),
        Err(error) => return Err(error.into()),
    };
    let request = args.apply(before)?;
    if request.image.is_empty() {
        return Err(UsageError("a new runtime needs --image".into()).into());
    }
    shown(&client.set_runtime(&name, &request).await?, format)
}

/// The request that would declare the runtime as it is.
pub(crate) fn declared(runtime: RuntimeView) -> RuntimeRequest {
    RuntimeRequest {
        image: runtime.image,
        command: Some(runtime.command),
        env: Some(runtime.env),
        ports: Some(runtime.ports),
        volumes: Some(runtime.volumes),
        network: Some(runtime.network),
        memory_mb: runtime.memory_mb,
        cpus: runtime.cpus,
        probe: runtime.probe,
        desired: runtime.desired,
        ttl_s: runtime.ttl_s,
        stop_grace_s: runtime.stop_grace_s,
        placement: Some(runtime.placement),
        movable: Some(runtime.movable),
    }
}

fn port(text: &str) -> Result<PortSettings, UsageError> {
    let number = |part: &str| {
        part.parse::<u16>().map_err(|_| UsageError(format!("--port must be CONTAINER or HOST:CONTAINER, not `{text}`")))
    };
    let (host, container) = match text.split_once(':') {
        Some((host, container)) => (Some(number(host)?), number(container)?),
        None => (None, number(text)?),
    };
    Ok(PortSettings { container, host, address: None })
}

fn probe(text: &str) -> Result<ProbeSettings, UsageError> {
    let usage = || UsageError(format!("--probe must be PORT/PATH, not `{text}`"));
    let slash = text.find('/').ok_or_else(usage)?;
    Ok(ProbeSettings { port: text[..slash].parse().map_err(|_| usage())?, path: text[slash..].to_owned() })
}

async fn operate(
    client: &Client,
    name: &str,
    verb: RuntimeOperation,
    image: Option<&str>,
    format: Output,
) -> anyhow::Result<Exit> {
    match client.operate_runtime(name, verb, image, WAIT, "cli").await? {
        OperationResult::Deleted => {
            output::done(format, &format!("Deleted runtime {name}."), &json!({"name": name, "deleted": true}))?;
            Ok(Exit::Done)
        }
        OperationResult::Accepted(accepted) => {
            match format {
                Output::Json => output::json(&accepted)?,
                Output::Table => output::line(&format!("operation {} is still in progress", accepted.operation_id))?,
            }
            output::note(&format!("Timed out; the operation continues. See `windlass runtime operations {name}`."));
            Ok(Exit::TimedOut)
        }
        OperationResult::Ended(operation) => {
            let last = last_attempt(client, name, &operation).await?;
            match (format, last.outcome.as_deref()) {
                (Output::Json, _) => output::json(&last)?,
                (Output::Table, Some(outcome)) => output::line(&sentence(&last, outcome))?,
                (Output::Table, None) => {
                    let text = sentence(&operation, "failed for now");
                    output::line(&format!("{text}; it is retried automatically"))?;
                }
            }
            Ok(match last.outcome.as_deref() {
                Some("failure") => Exit::Failed,
                Some(_) => Exit::Done,
                // A script must not treat a retry as success.
                None => Exit::TimedOut,
            })
        }
    }
}

/// The last attempt of an operation of which one attempt has ended. If the engine or the node was unreachable, there
/// may be a later attempt.
async fn last_attempt(client: &Client, name: &str, ended: &OperationView) -> anyhow::Result<OperationView> {
    let mut last = ended.clone();
    if ended.outcome.as_deref() != Some("success") {
        let lines = client.runtime_operations(name, None).await?.items;
        let is_same_operation = |line: &OperationView| line.job_id.is_some() && line.job_id == ended.job_id;
        last = lines.into_iter().find(is_same_operation).unwrap_or(last);
    }
    Ok(last)
}

fn sentence(operation: &OperationView, outcome: &str) -> String {
    let mut text = format!("{} {outcome}", operation.kind);
    if let Some(code) = &operation.error_code {
        text.push_str(&format!(" ({code})"));
    }
    if let Some(message) = &operation.error_message {
        text.push_str(&format!(": {message}"));
    }
    text
}

async fn operations(client: &Client, name: &str, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.runtime_operations(name, cursor).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["WHEN", "OPERATION", "OUTCOME", "CODE", "BY", "IMAGE", "DETAIL"]);
    for operation in &page.items {
        let detail = operation.error_message.as_ref().or(operation.source_ref.as_ref());
        listing.row([
            cell(relative(operation.requested_at)),
            cell(&operation.kind),
            cell(operation.outcome.as_deref().unwrap_or("in progress")),
            cell(operation.error_code.as_deref().unwrap_or_default()),
            cell(&operation.source),
            cell(operation.image_ref.as_deref().unwrap_or_default()),
            cell(detail.map_or("", String::as_str)),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

async fn health(client: &Client, name: &str, format: Output) -> anyhow::Result<Exit> {
    let health = client.runtime_health(name).await?;
    if format == Output::Json {
        output::json(&health)?;
        return Ok(Exit::Done);
    }
    if health.items.is_empty() {
        output::note("No observations yet.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["WHEN", "HEALTH", "SOURCE", "DETAILS"]);
    for observation in &health.items {
        let RuntimeHealth { observed_at, status, source, details } = observation;
        listing.row([cell(relative(*observed_at)), cell(status), cell(source), cell(details)]);
    }
    listing.print()?;
    Ok(Exit::Done)
}

/// Prints a response as it arrives.
async fn print(mut response: client::ResponseStream) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout();
    while let Some(chunk) = response.chunk().await? {
        out.write_all(&chunk)?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_args;

    fn before() -> RuntimeRequest {
        RuntimeRequest {
            image: "acme/web:1.0.0".into(),
            env: Some([("A".to_owned(), "***".to_owned())].into()),
            ports: Some(vec![port("8080").unwrap()]),
            memory_mb: Some(512),
            ttl_s: Some(60),
            movable: Some(true),
            ..RuntimeRequest::default()
        }
    }

    fn check(flags: &[&str], after: &RuntimeRequest) {
        let request = parse_args::<RuntimeSetArgs>(&[&["web"], flags].concat()).apply(before()).unwrap();
        let json = |request: &RuntimeRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    /// Requirement R1.
    #[test]
    fn an_unnamed_runtime_setting_is_unchanged_and_unset_removes_one() {
        check(&[], &before());
        check(&["--memory-mb", "256"], &RuntimeRequest { memory_mb: Some(256), ..before() });
        check(&["--port", "80:8080"], &RuntimeRequest { ports: Some(vec![port("80:8080").unwrap()]), ..before() });
        check(&["--", "serve"], &RuntimeRequest { command: Some(vec!["serve".into()]), ..before() });
        check(
            &["--unset", "memory_mb", "--unset", "ttl_s"],
            &RuntimeRequest { memory_mb: None, ttl_s: None, ..before() },
        );
        check(&["--unset", "movable", "--unset", "ports"], &RuntimeRequest { movable: None, ports: None, ..before() });
        let env = Some([("B".to_owned(), "c".to_owned())].into());
        check(&["--unset", "env", "--env", "B=c"], &RuntimeRequest { env, ..before() });
    }
}
