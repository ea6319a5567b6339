//! `windlass work`: runs any program as a worker.

mod child;
mod log;
mod program;
mod signals;

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use client::{Client, Worker};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use crate::cli::exit::Exit;
use crate::cli::output;
use crate::cli::value::duration;
use crate::config::{program_folders, withheld_variables};
use crate::telemetry::{Telemetry, TelemetryArgs};
use child::Program;

const CONTRACT: &str = "\
The program receives the payload of a job on stdin as JSON, and these environment variables:
  WINDLASS_JOB_ID, WINDLASS_JOB_KIND, WINDLASS_QUEUE, WINDLASS_ATTEMPT, WINDLASS_AFFINITY, WINDLASS_SUBJECT,
  WINDLASS_SIGNAL_FD=3.
It inherits the environment of the worker, but not its WINDLASS_TOKEN, the credentials in WINDLASS_URL and
WINDLASS_WEBHOOK_SECRET. A program that calls the server needs a token of its own, in another variable.

It responds with:
  stdout     The result: JSON is stored unchanged, anything else as a JSON string.
  stderr     Stored as the artifact `log`, or `log-EPOCH` for later claims. The last lines become the error message,
             starting with the line that names the error.
  exit 0     The job succeeded.
  exit 65    The job failed permanently (EX_DATAERR).
  exit N     The attempt failed with code exit_N and may be retried; a killed program fails with signal_N.
  fd 3       Progress, one JSON object per line: {\"phase\": \"fetch\", \"progress\": 0.4, \"summary\": \"…\",
             \"state\": \"loading\" or \"working\", \"eta_s\": 12}. Progress is from 0 to 1.
             Invalid lines are ignored and reported once per job in the worker's own log.

The program must exist when the worker starts. If it cannot be started later, the worker logs the reason, and the job is
retried after a delay without using up an attempt.

If a job is canceled, the program and its children receive SIGTERM, then SIGKILL. SIGTERM or SIGINT to `windlass work`
drains it: running jobs may finish, and no new ones start. A second signal stops it immediately.

Example:
  windlass work --queue mail --concurrency 4 -- ./send-mail";

#[derive(Args)]
#[command(after_help = CONTRACT)]
pub(crate) struct WorkArgs {
    /// Queue to claim jobs from; may be repeated
    #[arg(long = "queue", required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// Kind to claim; may be repeated [default: all]
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// Affinity that the program can load; may be repeated [default: all]
    #[arg(long = "affinity", value_name = "AFFINITY")]
    affinities: Vec<String>,
    /// Maximum number of jobs that run at the same time
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    concurrency: u16,
    /// Seconds without a heartbeat after which the jobs are given to other workers [default: 30]
    #[arg(long, value_name = "SECONDS")]
    lease_s: Option<i64>,
    /// Name of the worker [default: the host name]
    #[arg(long)]
    name: Option<String>,
    /// Time between SIGTERM and SIGKILL for a canceled program
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    grace: Duration,
    /// Time for running programs to finish when the worker drains
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    drain: Duration,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    /// Program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(crate) async fn run(client: Client, args: WorkArgs) -> anyhow::Result<Exit> {
    if let Some(name) = args.program.first() {
        program::check(name, &program_folders())?;
    }
    let telemetry = Telemetry::start(&args.telemetry)?;
    let program = Arc::new(Program { command: args.program, grace: args.grace, withheld: withheld_variables() });
    let mut builder = Worker::builder(client)
        .name(args.name.unwrap_or_else(machine_name))
        .queues(args.queues)
        .concurrency(usize::from(args.concurrency))
        // Programs usually run long: a prefetched job could not be claimed by another worker meanwhile.
        .prefetch(0)
        .drain_grace(args.drain)
        .stop_grace(args.grace + child::PIPE_GRACE + Duration::from_secs(1))
        .handle_any(move |job| child::run(program.clone(), job));
    if !args.kinds.is_empty() {
        builder = builder.kinds(args.kinds);
    }
    if !args.affinities.is_empty() {
        builder = builder.affinities(args.affinities);
    }
    if let Some(lease_s) = args.lease_s {
        builder = builder.lease_s(lease_s);
    }
    let worker = builder.build()?;

    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let shutdown = CancellationToken::new();
    let run = worker.run(shutdown.clone());
    tokio::pin!(run);
    let statistics = loop {
        tokio::select! {
            statistics = &mut run => break statistics?,
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
        }
        if shutdown.is_cancelled() {
            // Dropping the run kills the remaining programs.
            return Ok(Exit::Interrupted);
        }
        output::note("Draining: waiting for running jobs. Interrupt again to stop immediately.");
        shutdown.cancel();
    };
    let client::Statistics { done, failed, canceled, released, .. } = statistics;
    output::note(&format!("{done} done, {failed} failed, {canceled} canceled, {released} released."));
    telemetry.stop();
    Ok(Exit::Done)
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
