//! `windlass run`: starts, shows, watches, cancels and retries runs.

use std::io::{IsTerminal, Read};
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};
use client::{Client, RunFilter};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::time::sleep;
use wire::{RunAccepted, RunNodeView, RunRequest, RunView};

use super::tree;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::list;
use crate::cli::output::{self, Details, Listing, Output, cell, clean, moment, relative, span};

const POLL_INTERVAL: Duration = Duration::from_millis(500);
/// Nodes that `watch` draws with a line each.
const WATCHED_NODES: usize = 50;
const PROGRESS_STEPS: u64 = 100;

#[derive(Subcommand)]
pub(crate) enum RunVerb {
    /// Start a run from a file
    Start(StartArgs),
    /// List runs, newest first
    List(ListArgs),
    /// Show a run and its nodes as a tree
    Show { id: String },
    /// Follow a run until it ends
    Watch { id: String },
    /// Cancel a run and all its jobs that have not ended
    Cancel { id: String },
    /// Start a new run with the nodes that did not succeed and everything behind them
    Retry { id: String },
}

#[derive(Args)]
pub(crate) struct StartArgs {
    /// YAML or JSON with the fields of `POST /runs`; - for stdin
    #[arg(short, long, value_name = "FILE")]
    file: PathBuf,
    /// Id of the run [default: a new id]
    #[arg(long)]
    id: Option<String>,
    /// Follow the run until it ends
    #[arg(long)]
    watch: bool,
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// State: running, succeeded, failed or canceled
    #[arg(long)]
    state: Option<String>,
    /// Name of the runs
    #[arg(long)]
    name: Option<String>,
    /// Tag of the runs
    #[arg(long)]
    tag: Option<String>,
    /// Items per page
    #[arg(long)]
    limit: Option<usize>,
    /// Continue from the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) async fn run(client: &Client, verb: RunVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        RunVerb::Start(args) => {
            let mut request = read(&args.file)?;
            request.id = args.id.or(request.id);
            let accepted = client.start_run(&request).await?;
            if args.watch {
                return watch(client, &accepted.id, format).await;
            }
            started(&accepted, format)
        }
        RunVerb::List(args) => {
            let ListArgs { state, name, tag, limit, cursor } = args;
            list(client, RunFilter { state, name, tag, limit, cursor }, format).await
        }
        RunVerb::Show { id } => show(&client.run(&id).await?, format),
        RunVerb::Watch { id } => watch(client, &id, format).await,
        RunVerb::Cancel { id } => show(&client.cancel_run(&id).await?, format),
        RunVerb::Retry { id } => started(&client.retry_run(&id).await?, format),
    }
}

/// Reads a run. YAML contains JSON, so one parser reads both.
fn read(file: &PathBuf) -> anyhow::Result<RunRequest> {
    let name = file.display();
    let wrong = |error: &dyn std::fmt::Display| UsageError(format!("cannot read {name}: {error}"));
    let text = if file.as_os_str() == "-" {
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).map_err(|error| wrong(&error))?;
        text
    } else {
        std::fs::read_to_string(file).map_err(|error| wrong(&error))?
    };
    let value: serde_json::Value = serde_yaml_ng::from_str(&text).map_err(|error| wrong(&error))?;
    Ok(serde_json::from_str(&value.to_string()).map_err(|error| wrong(&error))?)
}

fn started(accepted: &RunAccepted, format: Output) -> anyhow::Result<Exit> {
    match format {
        Output::Json => output::json(accepted)?,
        Output::Table => output::line(&accepted.id)?,
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, filter: RunFilter, format: Output) -> anyhow::Result<Exit> {
    let page = client.runs(&filter).await?;
    list::print(
        format,
        &page,
        "No runs match.",
        ["ID", "STATE", "NAME", "LIVE", "SUCCEEDED", "FAILED", "CANCELED", "CREATED"],
        |run| {
            [
                cell(&run.id),
                output::state(&run.state),
                cell(run.name.as_deref().unwrap_or_default()),
                cell(run.counts.live),
                cell(run.counts.succeeded),
                cell(run.counts.failed),
                cell(run.counts.canceled),
                cell(relative(run.created_at)),
            ]
        },
    )?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

fn show(run: &RunView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(run)?;
        return Ok(Exit::Done);
    }
    let counts = run.counts;
    let mut details = Details::new();
    details
        .text("run", &run.id)
        .maybe("name", run.name.as_ref())
        .add("state", output::state(&run.state))
        .text(
            "jobs",
            format!(
                "{} live, {} succeeded, {} failed, {} canceled",
                counts.live, counts.succeeded, counts.failed, counts.canceled
            ),
        )
        .maybe("tags", Some(run.tags.join(", ")).filter(|tags| !tags.is_empty()))
        .maybe("canceled by", run.canceled_by.as_ref())
        .maybe("retry of", run.parent.as_ref())
        .maybe("retried as", run.retried_as.as_ref())
        .text("created", moment(run.created_at))
        .maybe("finished", run.finished_at.map(moment));
    details.print()?;
    let nodes = run.nodes.as_deref().unwrap_or_default();
    if !nodes.is_empty() {
        let mut listing = Listing::new(&["NODE", "STATE", "ATTEMPT", "JOB", "NOTE"]);
        for line in tree::lines(nodes) {
            let node = line.node;
            listing.row([
                cell(format!("{}{}", line.indent, clean(&node.name))),
                output::state(&node.state),
                cell(node.attempt),
                cell(node.job_id),
                cell(note(node)),
            ]);
        }
        listing.print()?;
    }
    Ok(Exit::Done)
}

/// The most relevant detail of a node.
fn note(node: &RunNodeView) -> String {
    if let (Some(start), Some(end), None) = (node.started_at, node.finished_at, &node.error) {
        return span(end.duration_since(start));
    }
    let text = match (node.state.as_str(), &node.error) {
        (_, Some(error)) => format!("{}: {}", error.code, error.message),
        ("waiting", None) => format!("needs {}", node.needs.join(", ")),
        _ => node.phase.clone().unwrap_or_default(),
    };
    clean(&text).replace('\n', " ")
}

/// Draws one line per node until the run ends. Without a terminal it prints each change of a state.
async fn watch(client: &Client, id: &str, format: Output) -> anyhow::Result<Exit> {
    let bars = std::io::stderr().is_terminal().then(MultiProgress::new);
    let mut drawn: Vec<(String, ProgressBar)> = Vec::new();
    let mut states: std::collections::HashMap<String, String> = std::collections::HashMap::new();
    loop {
        let run = client.run(id).await?;
        let nodes = run.nodes.as_deref().unwrap_or_default();
        match &bars {
            Some(bars) => draw(bars, &mut drawn, nodes),
            None => {
                for node in nodes {
                    let before = states.insert(node.name.clone(), node.state.clone());
                    if before.as_deref() != Some(&node.state) {
                        output::note(&format!("{} {}", clean(&node.name), node.state));
                    }
                }
            }
        }
        if run.state != "running" {
            drawn.iter().for_each(|(_, bar)| bar.abandon());
            show(&run, format)?;
            return Ok(if run.state == "succeeded" { Exit::Done } else { Exit::Failed });
        }
        tokio::select! {
            () = sleep(POLL_INTERVAL) => {}
            _ = tokio::signal::ctrl_c() => {
                output::note(&format!("Interrupted; the run continues. Follow it with `windlass run watch {id}`."));
                return Ok(Exit::Interrupted);
            }
        }
    }
}

fn draw(bars: &MultiProgress, drawn: &mut Vec<(String, ProgressBar)>, nodes: &[RunNodeView]) {
    for line in tree::lines(nodes).into_iter().take(WATCHED_NODES) {
        let node = line.node;
        let position = drawn.iter().position(|(name, _)| *name == node.name);
        let bar = match position {
            Some(position) => &drawn[position].1,
            None => {
                let style = ProgressStyle::with_template("{prefix} {bar:20} {msg}").expect("the template is valid");
                let bar = bars.add(ProgressBar::new(PROGRESS_STEPS).with_style(style));
                bar.set_prefix(format!("{:30}", format!("{}{}", line.indent, clean(&node.name))));
                drawn.push((node.name.clone(), bar));
                &drawn[drawn.len() - 1].1
            }
        };
        let share = match node.state.as_str() {
            "succeeded" | "failed" | "canceled" => 1.0,
            _ => node.progress.unwrap_or(0.0),
        };
        bar.set_position((share * PROGRESS_STEPS as f64) as u64);
        bar.set_message(format!("{} {}", node.state, note(node)).trim().to_owned());
    }
}
