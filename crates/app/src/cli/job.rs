//! `windlass job`: push, look at, cancel and retry jobs.

mod artifact;
mod call;
mod follow;
mod push;
mod show;

use clap::{Args, Subcommand};
use client::{Client, JobFilter};
use jiff::Timestamp;
use uuid::Uuid;
use wire::RetryRequest;

use super::exit::{self, Exit, UsageError};
use super::output::{self, Output};
use super::value::past;

pub(super) use push::{RetryArgs, json_argument};
pub(super) use show::pretty;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Hand over a job and print its id.
    Push(Box<push::PushArgs>),
    /// Show a job.
    #[command(visible_alias = "show")]
    Get { id: Uuid },
    /// List jobs, newest first.
    List(ListArgs),
    /// Follow a job until it ends.
    Watch { id: Uuid },
    /// Tell why a job is not running.
    Why { id: Uuid },
    /// Tell what happened to a job, oldest first.
    History { id: Uuid },
    /// Call jobs off.
    Cancel(CancelArgs),
    /// Make a new job like an ended one, and print its id.
    Retry {
        id: Uuid,
        /// Another payload: JSON, @FILE, or - for stdin.
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Run a job once and print its result.
    Call(call::CallArgs),
    /// List answers to calls whose caller was gone.
    Abandoned {
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// List the artifacts of a job.
    Artifacts { id: Uuid },
    /// Fetch or keep an artifact.
    #[command(subcommand)]
    Artifact(artifact::Verb),
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// One of scheduled, queued, loading, working, succeeded, failed, canceled.
    #[arg(long)]
    state: Option<String>,
    #[arg(long)]
    queue: Option<String>,
    #[arg(long)]
    kind: Option<String>,
    #[arg(long)]
    affinity: Option<String>,
    #[arg(long)]
    subject: Option<String>,
    #[arg(long)]
    run: Option<String>,
    #[arg(long)]
    tag: Option<String>,
    /// Created at this time or later, or within this long: 2026-01-31T12:00:00Z, 2h.
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<Timestamp>,
    /// Created before this time, or longer ago than this.
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<Timestamp>,
    /// The beginning of a kind, a tag, a unique key or an error's code.
    #[arg(long)]
    text: Option<String>,
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Where the page before ended.
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Args)]
pub(crate) struct CancelArgs {
    #[arg(required_unless_present = "unique_key", conflicts_with = "unique_key")]
    id: Vec<Uuid>,
    /// The queue of the unique key.
    #[arg(long, requires = "unique_key")]
    queue: Option<String>,
    /// Cancel the job that holds this key.
    #[arg(long, requires = "queue")]
    unique_key: Option<String>,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Push(args) => push::run(client, *args, format).await,
        Verb::Get { id } => show::job(&client.job(id).await?, format),
        Verb::List(args) => list(client, args, format).await,
        Verb::Watch { id } => follow::watch(client, id, format).await,
        Verb::Why { id } => show::why(&client.why(id).await?, format),
        Verb::History { id } => show::history(&client.history(id).await?, format),
        Verb::Cancel(args) => cancel(client, args, format).await,
        Verb::Retry { id, payload } => {
            let payload = payload.map(|payload| json_argument("--payload", &payload)).transpose()?;
            let job = client.retry(id, &RetryRequest { payload }).await?;
            match format {
                Output::Json => output::json(&job)?,
                Output::Table => output::line(&job.id.to_string())?,
            }
            Ok(Exit::Done)
        }
        Verb::Call(args) => call::run(client, args, format).await,
        Verb::Abandoned { cursor } => call::abandoned(client, cursor.as_deref(), format).await,
        Verb::Artifacts { id } => artifact::list(client, id, format).await,
        Verb::Artifact(verb) => artifact::run(client, verb, format).await,
    }
}

async fn list(client: &Client, args: ListArgs, format: Output) -> anyhow::Result<Exit> {
    let filter = JobFilter {
        state: args.state,
        queue: args.queue,
        kind: args.kind,
        affinity: args.affinity,
        subject: args.subject,
        run: args.run,
        tag: args.tag,
        since: args.since,
        until: args.until,
        text: args.text,
        limit: args.limit,
        cursor: args.cursor,
    };
    show::jobs(&client.jobs(&filter).await?, format)
}

async fn cancel(client: &Client, args: CancelArgs, format: Output) -> anyhow::Result<Exit> {
    if let Some(unique_key) = args.unique_key {
        let queue = args.queue.ok_or_else(|| UsageError("--unique-key needs --queue".into()))?;
        let canceled = client.cancel_by_key(&queue, &unique_key).await?;
        show::canceled(&canceled, format)?;
        return Ok(Exit::Done);
    }
    // One that has ended already must not keep the others running.
    let mut worst = Exit::Done;
    for id in args.id {
        match client.cancel(id).await {
            Ok(canceled) => show::canceled(&canceled, format)?,
            Err(error) => worst = exit::report_of(error, &format!("cannot cancel {id}")),
        }
    }
    Ok(worst)
}
