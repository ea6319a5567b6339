//! `windlass work`: any program becomes a worker.

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

use super::exit::Exit;
use super::output;
use super::value::duration;
use crate::config::program_folders;
use crate::telemetry::{Telemetry, TelemetryArgs};
use child::Program;

const CONTRACT: &str = "\
The program gets a job's payload on stdin, as JSON, and these in its environment:
  WINDLASS_JOB_ID, WINDLASS_JOB_KIND, WINDLASS_QUEUE, WINDLASS_ATTEMPT, WINDLASS_AFFINITY, WINDLASS_SUBJECT,
  WINDLASS_SIGNAL_FD=3.

It answers with:
  stdout     The result: JSON as it is, anything else as a JSON string.
  stderr     Kept as the artifact `log`, or `log-EPOCH` for later claims; its last lines are the error's message,
             the very last of them first.
  exit 0     The job succeeded.
  exit 65    The job failed for good (EX_DATAERR).
  exit N     The attempt failed with code exit_N and may be tried again; so does signal_N when it was killed.
  fd 3       How it goes, one JSON object on each line: {\"phase\": \"fetch\", \"progress\": 0.4, \"summary\": \"…\",
             \"state\": \"loading\" or \"working\", \"eta_s\": 12}. Progress goes from 0 to 1.
             What is no such line is left out, and told once for each job in the worker's own log.

The program must be there when the worker starts. When it cannot be started later, the worker's log says why, and the job
waits a while and loses no attempt.

A canceled job's program and its children get SIGTERM, then SIGKILL. SIGTERM or SIGINT to windlass work drains it: what
runs may end, nothing new is begun. A second one ends it at once.";

#[derive(Args)]
#[command(after_help = CONTRACT)]
pub(crate) struct WorkArgs {
    /// A queue to take jobs from; may be given more than once.
    #[arg(long = "queue", required = true, value_name = "QUEUE")]
    queues: Vec<String>,
    /// A kind to take; all when left out.
    #[arg(long = "kind", value_name = "KIND")]
    kinds: Vec<String>,
    /// An affinity that the program can bring up; all when left out.
    #[arg(long = "affinity", value_name = "AFFINITY")]
    affinities: Vec<String>,
    /// Jobs that run at once.
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..), value_name = "N")]
    concurrency: u16,
    /// Seconds of silence after which the jobs go to others.
    #[arg(long, value_name = "SECONDS")]
    lease_s: Option<i64>,
    /// What people see; the machine's name unless set.
    #[arg(long)]
    name: Option<String>,
    /// How long a program may take to end after SIGTERM.
    #[arg(long, default_value = "10s", value_name = "DURATION", value_parser = duration)]
    grace: Duration,
    /// How long running programs may go on once the worker is to stop.
    #[arg(long, default_value = "30s", value_name = "DURATION", value_parser = duration)]
    drain: Duration,
    #[command(flatten)]
    telemetry: TelemetryArgs,
    /// The program and its arguments.
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

pub(super) async fn run(client: Client, args: WorkArgs) -> anyhow::Result<Exit> {
    if let Some(name) = args.program.first() {
        program::check(name, &program_folders())?;
    }
    let telemetry = Telemetry::start(&args.telemetry)?;
    let program = Arc::new(Program { command: args.program, grace: args.grace });
    let mut builder = Worker::builder(client)
        .name(args.name.unwrap_or_else(machine_name))
        .queues(args.queues)
        .concurrency(usize::from(args.concurrency))
        // Programs take their time: a job that waits here is one that nobody else can take.
        .prefetch(0)
        .drain_grace(args.drain)
        .stop_grace(args.grace + child::PIPES + Duration::from_secs(1))
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
            // Dropping the run kills what still runs.
            return Ok(Exit::Interrupted);
        }
        output::note("Draining: what runs may end. Once more to end at once.");
        shutdown.cancel();
    };
    let client::Statistics { done, failed, canceled, released, .. } = statistics;
    output::note(&format!("{done} done, {failed} failed, {canceled} canceled, {released} given back."));
    telemetry.stop();
    Ok(Exit::Done)
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
