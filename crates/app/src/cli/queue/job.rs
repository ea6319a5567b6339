//! `windlass job`: pushes, shows, lists, cancels and retries jobs.

mod artifact;
pub(in crate::cli) mod bulk;
mod call;
mod follow;
mod push;
mod show;

use clap::{Args, Subcommand};
use client::{Client, JobFilter};
use jiff::Timestamp;
use wire::{ApprovalRequest, ForkRequest, RetryRequest};

use crate::cli::exit;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::id_argument::IdArgument;
use crate::cli::output;
use crate::cli::output::Output;
use crate::cli::value::past;

use bulk::BulkAction;
pub(crate) use push::{RetryArgs, default_retry, json_argument};
pub(in crate::cli) use show::pretty;

#[derive(Subcommand)]
pub(crate) enum JobVerb {
    /// Enqueue a job and print its id
    Push(Box<push::PushArgs>),
    /// Estimate when a job would end; nothing is enqueued
    Estimate(Box<push::EstimateArgs>),
    /// Show a job with its signal, prediction and ETA
    #[command(visible_alias = "show")]
    Get { id: IdArgument },
    /// List jobs, newest first
    List(JobListArgs),
    /// Follow a job until it ends
    Watch { id: IdArgument },
    /// Show why a job is not running
    Why { id: IdArgument },
    /// Show the events of a job, oldest first
    History { id: IdArgument },
    /// Show the recorded operations of a job, in order
    Journal {
        id: IdArgument,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Enqueue a new job that starts with the part of a job's journal before one entry, and print its id
    Fork {
        id: IdArgument,
        /// Key of the first entry that is not copied
        #[arg(long, value_name = "KEY")]
        from: String,
        /// Replace the payload: JSON, @FILE, or - for stdin
        #[arg(long, value_name = "JSON")]
        payload: Option<String>,
    },
    /// Send a signal event to a job
    Send {
        id: IdArgument,
        /// Name of the event
        name: String,
        /// Data of the event: JSON, @FILE, or - for stdin
        #[arg(value_name = "JSON", default_value = "null")]
        data: String,
        /// A repeated command with the same key sends one event
        #[arg(long, value_name = "KEY")]
        idempotency_key: Option<String>,
    },
    /// Approve or reject an approval of a job
    Approve {
        id: IdArgument,
        /// Key of the approval in the journal
        key: String,
        /// Reject instead
        #[arg(long)]
        reject: bool,
        /// Note for the workflow
        #[arg(long)]
        note: Option<String>,
    },
    /// Cancel jobs
    Cancel(JobCancelArgs),
    /// Enqueue new jobs with the content of ended ones, and print their ids
    Retry(JobRetryArgs),
    /// Run a job synchronously and print its result
    Call(call::CallArgs),
    /// List responses to synchronous calls that arrived after the caller had disconnected
    Abandoned {
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// List the artifacts of a job
    Artifacts { id: IdArgument },
    /// Download or upload an artifact
    #[command(subcommand)]
    Artifact(artifact::ArtifactVerb),
}

#[derive(Args)]
pub(crate) struct JobListArgs {
    /// State: waiting, scheduled, queued, loading, working, succeeded, failed or canceled
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
    /// Only jobs that this token has enqueued directly
    #[arg(long)]
    mine: bool,
    /// Created at or after this time, or within this duration: 2026-01-31T12:00:00Z, 2h
    #[arg(long, value_name = "TIME", value_parser = past)]
    since: Option<Timestamp>,
    /// Created before this time, or longer ago than this duration
    #[arg(long, value_name = "TIME", value_parser = past)]
    until: Option<Timestamp>,
    /// Prefix of a kind, a tag, a unique key or an error code
    #[arg(long)]
    text: Option<String>,
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Continue from the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

#[derive(Args)]
pub(crate) struct JobCancelArgs {
    #[arg(required_unless_present_any = ["unique_key", "matching"], conflicts_with_all = ["unique_key", "matching"])]
    id: Vec<IdArgument>,
    /// Cancel all unfinished jobs that match: FIELD=VALUE with state, queue, kind, affinity, subject, run, tag, text, since
    /// or until; may be repeated
    #[arg(long = "where", value_name = "FIELD=VALUE", conflicts_with = "unique_key")]
    matching: Vec<String>,
    /// Show which jobs --where selects without canceling them
    #[arg(long, requires = "matching")]
    dry_run: bool,
    /// Queue of the unique key
    #[arg(long, requires = "unique_key")]
    queue: Option<String>,
    /// Let the handlers of jobs with a journal undo their steps first
    #[arg(long, conflicts_with_all = ["unique_key", "matching"])]
    compensate: bool,
    /// Cancel the unfinished job with this unique key
    #[arg(long, requires = "queue")]
    unique_key: Option<String>,
}

#[derive(Args)]
pub(crate) struct JobRetryArgs {
    #[arg(required_unless_present = "matching", conflicts_with = "matching")]
    id: Vec<IdArgument>,
    /// Retry all jobs that match: FIELD=VALUE with state, queue, kind, affinity, subject, run, tag, text, since or until;
    /// may be repeated. Without a state only failed jobs match
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    matching: Vec<String>,
    /// Show which jobs --where selects without retrying them
    #[arg(long, requires = "matching")]
    dry_run: bool,
    /// Replace the payload: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON", conflicts_with = "matching")]
    payload: Option<String>,
}

pub(crate) async fn run(client: &Client, verb: JobVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        JobVerb::Push(args) => push::run(client, *args, format).await,
        JobVerb::Estimate(args) => push::estimate(client, *args, format).await,
        JobVerb::Get { id } => show::job_with_signal(client, id.job(client).await?, format).await,
        JobVerb::List(args) => list(client, args, format).await,
        JobVerb::Watch { id } => follow::watch(client, id.job(client).await?, format).await,
        JobVerb::Why { id } => show::why(&client.why(id.job(client).await?).await?, format),
        JobVerb::History { id } => show::history(&client.history(id.job(client).await?).await?, format),
        JobVerb::Journal { id, cursor } => {
            show::journal(&client.job_journal(id.job(client).await?, cursor.as_deref()).await?, format)
        }
        JobVerb::Fork { id, from, payload } => {
            let payload = payload.map(|payload| json_argument("--payload", &payload)).transpose()?;
            let job = client.fork(id.job(client).await?, &ForkRequest { from, payload }).await?;
            match format {
                Output::Json => output::json(&job)?,
                Output::Table => output::line(&job.id.to_string())?,
            }
            Ok(Exit::Done)
        }
        JobVerb::Send { id, name, data, idempotency_key } => {
            let data = json_argument("JSON", &data)?;
            client.send_event(id.job(client).await?, &name, &data, idempotency_key.as_deref()).await?;
            Ok(Exit::Done)
        }
        JobVerb::Approve { id, key, reject, note } => {
            let answer = client
                .answer_approval(id.job(client).await?, &key, &ApprovalRequest { approve: !reject, note })
                .await?;
            match format {
                Output::Json => output::json(&answer)?,
                Output::Table => output::line(if answer.approved { "approved" } else { "rejected" })?,
            }
            Ok(Exit::Done)
        }
        JobVerb::Cancel(args) => cancel(client, args, format).await,
        JobVerb::Retry(args) => retry(client, args, format).await,
        JobVerb::Call(args) => call::run(client, args, format).await,
        JobVerb::Abandoned { cursor } => call::abandoned(client, cursor.as_deref(), format).await,
        JobVerb::Artifacts { id } => artifact::list(client, id.job(client).await?, format).await,
        JobVerb::Artifact(verb) => artifact::run(client, verb, format).await,
    }
}

async fn list(client: &Client, args: JobListArgs, format: Output) -> anyhow::Result<Exit> {
    let filter = JobFilter {
        state: args.state,
        queue: args.queue,
        kind: args.kind,
        affinity: args.affinity,
        subject: args.subject,
        run: args.run,
        tag: args.tag,
        mine: args.mine,
        since: args.since,
        until: args.until,
        text: args.text,
        limit: args.limit,
        cursor: args.cursor,
        ..JobFilter::default()
    };
    show::jobs(&client.jobs(&filter).await?, format)
}

async fn retry(client: &Client, args: JobRetryArgs, format: Output) -> anyhow::Result<Exit> {
    if !args.matching.is_empty() {
        let filters = bulk::parse(BulkAction::Retry, &args.matching)?;
        return bulk::run(client, BulkAction::Retry, filters, args.dry_run, format).await;
    }
    let payload = args.payload.map(|payload| json_argument("--payload", &payload)).transpose()?;
    let mut worst = Exit::Done;
    for id in args.id {
        let request = RetryRequest { payload: payload.clone() };
        let retried = match id.job(client).await {
            Ok(id) => client.retry(id, &request).await.map_err(anyhow::Error::from),
            Err(error) => Err(error),
        };
        match (retried, format) {
            (Ok(job), Output::Json) => output::json(&job)?,
            (Ok(job), Output::Table) => output::line(&job.id.to_string())?,
            (Err(error), _) => worst = exit::report_of(error, &format!("cannot retry {id}")),
        }
    }
    Ok(worst)
}

async fn cancel(client: &Client, args: JobCancelArgs, format: Output) -> anyhow::Result<Exit> {
    if !args.matching.is_empty() {
        let filters = bulk::parse(BulkAction::Cancel, &args.matching)?;
        return bulk::run(client, BulkAction::Cancel, filters, args.dry_run, format).await;
    }
    if let Some(unique_key) = args.unique_key {
        let queue = args.queue.ok_or_else(|| UsageError("--unique-key needs --queue".into()))?;
        let canceled = client.cancel_by_key(&queue, &unique_key).await?;
        show::canceled(&canceled, format)?;
        return Ok(Exit::Done);
    }
    // A job that has already ended must not prevent the cancellation of the others.
    let mut worst = Exit::Done;
    for id in args.id {
        let canceled = match id.job(client).await {
            Ok(id) if args.compensate => client.cancel_with_undo(id).await.map_err(anyhow::Error::from),
            Ok(id) => client.cancel(id).await.map_err(anyhow::Error::from),
            Err(error) => Err(error),
        };
        match canceled {
            Ok(canceled) => show::canceled(&canceled, format)?,
            Err(error) => worst = exit::report_of(error, &format!("cannot cancel {id}")),
        }
    }
    Ok(worst)
}
