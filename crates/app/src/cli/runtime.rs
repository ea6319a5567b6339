//! `windlass runtime`: containers that are started, watched and stopped (R1 to R5, R9).

use std::io::Write;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use client::{Client, Operated, RuntimeVerb};
use serde_json::json;
use wire::{
    OperationView, PlacementSettings, PortSettings, ProbeSettings, RuntimeRequest, RuntimeView, VolumeSettings,
};

use super::drive::labels;
use super::exit::{Exit, UsageError};
use super::list;
use super::output::{self, Details, Listing, Output, cell, moment, relative, relative_maybe};
use super::value::finite;

/// How long a verb waits for its operation.
const WAIT: Duration = Duration::from_secs(60);

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List runtimes.
    List,
    /// Show one runtime.
    Show { name: String },
    /// Declare a runtime, or change what is named of one.
    Set(Box<SetArgs>),
    /// Start it, with the declared image unless another is given.
    Start {
        name: String,
        #[arg(long)]
        image: Option<String>,
    },
    /// Stop it.
    Stop { name: String },
    /// Stop it and start it as it is declared now.
    Restart { name: String },
    /// Replace its image by another patch of the same major and minor version.
    Patch { name: String, image: String },
    /// Remove its container; the runtime and its state path stay.
    CleanUp { name: String },
    /// Move it to another node; it must not run, or its node be lost. What is in its volumes stays behind.
    Move {
        name: String,
        /// The one with the most free slots among those that will do, unless given.
        #[arg(long)]
        node: Option<String>,
    },
    /// Take it away, its container first; its state path stays.
    Delete { name: String },
    /// Show what was done to it, newest first.
    Operations {
        name: String,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show how it is and how it was.
    Health { name: String },
    /// Print what it wrote.
    Logs {
        name: String,
        /// Stay, and print what it writes from now on.
        #[arg(short, long)]
        follow: bool,
        /// Lines to begin with.
        #[arg(long, value_name = "LINES")]
        tail: Option<u32>,
    },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    name: String,
    #[arg(long)]
    image: Option<String>,
    /// A variable of the environment: NAME=VALUE. May be given again.
    #[arg(long = "env", value_name = "NAME=VALUE")]
    env: Vec<String>,
    /// A port to publish on loopback: CONTAINER or HOST:CONTAINER. May be given again.
    #[arg(long = "port", value_name = "PORT")]
    ports: Vec<String>,
    /// A folder of the container that outlives it. May be given again.
    #[arg(long = "volume", value_name = "PATH")]
    volumes: Vec<String>,
    #[arg(long)]
    network: Option<String>,
    #[arg(long, value_name = "MB")]
    memory_mb: Option<i64>,
    #[arg(long, value_name = "N", value_parser = finite)]
    cpus: Option<f64>,
    /// What to ask for to see that it is well: PORT/PATH.
    #[arg(long, value_name = "PORT/PATH")]
    probe: Option<String>,
    /// running or stopped, whatever happens.
    #[arg(long)]
    desired: Option<String>,
    /// Stop it so long after it was started.
    #[arg(long, value_name = "SECONDS")]
    ttl_s: Option<i64>,
    /// How long it gets to end by itself when it is stopped.
    #[arg(long, value_name = "SECONDS")]
    stop_grace_s: Option<i64>,
    /// A label that its node must have: NAME=VALUE. May be given again.
    #[arg(long = "placement", value_name = "NAME=VALUE")]
    placement: Vec<String>,
    /// Whether it is started on another node when its own is lost.
    #[arg(long, value_name = "true|false")]
    movable: Option<bool>,
    /// Put a setting back to its default; with `env`, every variable goes.
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<Setting>,
    /// What to run instead of the image's own command.
    #[arg(last = true)]
    command: Vec<String>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
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

impl SetArgs {
    /// The settings with what was named here changed.
    fn over(self, mut before: RuntimeRequest) -> Result<RuntimeRequest, UsageError> {
        for setting in &self.unset {
            match setting {
                Setting::Command => before.command = None,
                Setting::Env => before.env = None,
                Setting::Ports => before.ports = None,
                Setting::Volumes => before.volumes = None,
                Setting::Network => before.network = None,
                Setting::MemoryMb => before.memory_mb = None,
                Setting::Cpus => before.cpus = None,
                Setting::Probe => before.probe = None,
                Setting::Desired => before.desired = None,
                Setting::TtlS => before.ttl_s = None,
                Setting::StopGraceS => before.stop_grace_s = None,
                Setting::Placement => before.placement = None,
                Setting::Movable => before.movable = None,
            }
        }
        let mut env = before.env.unwrap_or_default();
        for pair in &self.env {
            let (name, value) =
                pair.split_once('=').ok_or_else(|| UsageError(format!("--env takes NAME=VALUE, not `{pair}`")))?;
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

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => list(client, format).await,
        Verb::Show { name } => shown(&client.runtime(&name).await?, format),
        Verb::Set(args) => set(client, *args, format).await,
        Verb::Start { name, image } => operate(client, &name, RuntimeVerb::Start, image.as_deref(), format).await,
        Verb::Stop { name } => operate(client, &name, RuntimeVerb::Stop, None, format).await,
        Verb::Restart { name } => operate(client, &name, RuntimeVerb::Restart, None, format).await,
        Verb::Patch { name, image } => operate(client, &name, RuntimeVerb::Patch, Some(&image), format).await,
        Verb::CleanUp { name } => operate(client, &name, RuntimeVerb::CleanUp, None, format).await,
        Verb::Move { name, node } => shown(&client.move_runtime(&name, node.as_deref()).await?, format),
        Verb::Delete { name } => operate(client, &name, RuntimeVerb::Delete, None, format).await,
        Verb::Operations { name, cursor } => operations(client, &name, cursor.as_deref(), format).await,
        Verb::Health { name } => health(client, &name, format).await,
        Verb::Logs { name, follow: false, tail } => print(client.runtime_logs(&name, tail).await?).await,
        Verb::Logs { name, follow: true, tail } => print(client.follow_runtime_logs(&name, tail).await?).await,
    }
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.runtimes(cursor).await).await?;
    list::print(
        format,
        &page,
        "There are no runtimes yet.",
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
        .maybe("in flight", runtime.in_flight.as_ref())
        .maybe("health", runtime.health.as_ref().map(|health| format!("{}: {}", health.status, health.details)))
        .text("image", &runtime.image)
        .maybe("runs", runtime.current_image.as_ref().filter(|image| **image != runtime.image))
        .maybe("command", joined(runtime.command.clone()))
        .maybe("environment", joined(runtime.env.keys().cloned().collect()))
        .maybe("ports", joined(runtime.ports.iter().map(port).collect()))
        .maybe("volumes", joined(runtime.volumes.iter().map(|volume| volume.path.clone()).collect()))
        .maybe("memory", runtime.memory_mb.map(|mb| format!("{mb} MB")))
        .maybe("cpus", runtime.cpus)
        .maybe("probe", runtime.probe.as_ref().map(|probe| format!("{}{}", probe.port, probe.path)))
        .maybe("desired", runtime.desired.as_ref())
        .maybe("placement", joined(written(&runtime.placement)))
        .maybe("movable", runtime.movable.then_some("yes"))
        .maybe("stopped after", runtime.ttl_s.map(|seconds| format!("{seconds} s")))
        .maybe("endpoint", runtime.endpoint.as_ref())
        .maybe("container", runtime.container_id.as_ref())
        .maybe("state path", runtime.state_path.as_ref())
        .maybe("node", runtime.node.as_ref())
        .maybe("started", runtime.started_at.map(moment))
        .maybe("stopped", runtime.stopped_at.map(moment));
    details.print()?;
    Ok(Exit::Done)
}

/// As it would be given to `set`.
pub(super) fn written(placement: &PlacementSettings) -> Vec<String> {
    placement.labels.iter().map(|(name, value)| format!("{name}={value}")).collect()
}

/// The route replaces everything, and a person means what is named: so the present settings are read first.
async fn set(client: &Client, args: SetArgs, format: Output) -> anyhow::Result<Exit> {
    let name = args.name.clone();
    let before = match client.runtime(&name).await {
        Ok(runtime) => declared(runtime),
        Err(error) if error.status() == Some(404) => RuntimeRequest::default(),
        Err(error) => return Err(error.into()),
    };
    let request = args.over(before)?;
    if request.image.is_empty() {
        return Err(UsageError("a new runtime needs --image".into()).into());
    }
    shown(&client.set_runtime(&name, &request).await?, format)
}

/// A runtime as it would be declared to be what it is.
fn declared(runtime: RuntimeView) -> RuntimeRequest {
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
        part.parse::<u16>().map_err(|_| UsageError(format!("--port takes CONTAINER or HOST:CONTAINER, not `{text}`")))
    };
    let (host, container) = match text.split_once(':') {
        Some((host, container)) => (Some(number(host)?), number(container)?),
        None => (None, number(text)?),
    };
    Ok(PortSettings { container, host, address: None })
}

fn probe(text: &str) -> Result<ProbeSettings, UsageError> {
    let usage = || UsageError(format!("--probe takes PORT/PATH, not `{text}`"));
    let slash = text.find('/').ok_or_else(usage)?;
    Ok(ProbeSettings { port: text[..slash].parse().map_err(|_| usage())?, path: text[slash..].to_owned() })
}

async fn operate(
    client: &Client,
    name: &str,
    verb: RuntimeVerb,
    image: Option<&str>,
    format: Output,
) -> anyhow::Result<Exit> {
    match client.operate_runtime(name, verb, image, WAIT, "cli").await? {
        Operated::Gone => {
            output::done(format, &format!("Runtime {name} is gone."), &json!({"name": name, "deleted": true}))?;
            Ok(Exit::Done)
        }
        Operated::Accepted(accepted) => {
            match format {
                Output::Json => output::json(&accepted)?,
                Output::Table => output::line(&format!("{} is not done yet", accepted.operation_id))?,
            }
            output::note(&format!("It goes on: windlass runtime operations {name}"));
            Ok(Exit::TimedOut)
        }
        Operated::Ended(operation) => {
            let last = last_try(client, name, &operation).await?;
            match (format, last.outcome.as_deref()) {
                (Output::Json, _) => output::json(&last)?,
                (Output::Table, Some(outcome)) => output::line(&sentence(&last, outcome))?,
                (Output::Table, None) => {
                    let why = sentence(&operation, "is not done yet");
                    output::line(&format!("{why}; it is tried again by itself"))?;
                }
            }
            Ok(match last.outcome.as_deref() {
                Some("failure") => Exit::Failed,
                Some(_) => Exit::Done,
                // A script must not take it for done.
                None => Exit::TimedOut,
            })
        }
    }
}

/// How an operation stands of which a try has ended. One that met an engine or a node that was away is not the last.
async fn last_try(client: &Client, name: &str, ended: &OperationView) -> anyhow::Result<OperationView> {
    let mut last = ended.clone();
    if ended.outcome.as_deref() != Some("success") {
        let lines = client.runtime_operations(name, None).await?.items;
        let of_the_same = |line: &OperationView| line.job_id.is_some() && line.job_id == ended.job_id;
        last = lines.into_iter().find(of_the_same).unwrap_or(last);
    }
    Ok(last)
}

fn sentence(operation: &OperationView, how: &str) -> String {
    let mut text = format!("{} {how}", operation.kind);
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
    let mut listing = Listing::new(&["WHEN", "OPERATION", "OUTCOME", "CODE", "BY", "IMAGE", "WHY"]);
    for operation in &page.items {
        let why = operation.error_message.as_ref().or(operation.source_ref.as_ref());
        listing.row([
            cell(relative(operation.requested_at)),
            cell(&operation.kind),
            cell(operation.outcome.as_deref().unwrap_or("under way")),
            cell(operation.error_code.as_deref().unwrap_or_default()),
            cell(&operation.source),
            cell(operation.image_ref.as_deref().unwrap_or_default()),
            cell(why.map_or("", String::as_str)),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("There are more: --cursor {cursor}"));
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
        output::note("Nothing has been seen of it yet.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["WHEN", "HEALTH", "SEEN BY", "DETAILS"]);
    for seen in &health.items {
        listing.row([cell(relative(seen.observed_at)), cell(&seen.status), cell(&seen.source), cell(&seen.details)]);
    }
    listing.print()?;
    Ok(Exit::Done)
}

/// Prints an answer as it comes.
async fn print(mut answer: client::Answer) -> anyhow::Result<Exit> {
    let mut out = std::io::stdout();
    while let Some(chunk) = answer.chunk().await? {
        out.write_all(&chunk)?;
        out.flush()?;
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::typed;

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
        let request = typed::<SetArgs>(&[&["web"], flags].concat()).over(before()).unwrap();
        let json = |request: &RuntimeRequest| serde_json::to_value(request).unwrap();
        assert_eq!(json(&request), json(after), "{flags:?}");
    }

    #[test]
    fn r1_what_is_not_named_of_a_runtime_stays_and_a_setting_goes_by_name() {
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
