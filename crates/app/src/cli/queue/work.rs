//! `windlass work`: runs any program as a worker.

mod child;
mod lines;
mod log;
mod persistent;
mod program;

use std::ffi::OsString;
use std::io::IsTerminal;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Args;
use client::{Client, HandlerError, JobContext, Worker, Workflow};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;
use wire::RawValue;

use crate::cli::exit::Exit;
use crate::cli::output;
use crate::cli::value::duration;
use crate::config::{program_folders, withheld_variables};
use crate::telemetry::{Telemetry, TelemetryArgs};
use child::Program;
use persistent::ProcessPool;

const CONTRACT: &str = "\
The program receives the payload of a job on stdin as JSON, and these environment variables:
  WINDLASS_JOB_ID, WINDLASS_JOB_KIND, WINDLASS_QUEUE, WINDLASS_ATTEMPT, WINDLASS_AFFINITY, WINDLASS_SUBJECT,
  WINDLASS_RUN, WINDLASS_INPUTS (a file with the results of the needs), WINDLASS_SIGNAL_FD=3, WINDLASS_ANSWER_FD=5.
It inherits the environment of the worker, but not its WINDLASS_TOKEN, the credentials in WINDLASS_URL and
WINDLASS_WEBHOOK_SECRET. A program that calls the server needs a token of its own, in another variable.

It responds with:
  stdout     The result: JSON is stored unchanged, anything else as a JSON string.
  stderr     Stored as the artifact `log`, or `log-EPOCH` for later claims. The last lines become the error message,
             starting with the line that names the error.
  exit 0     The job succeeded.
  exit 65    The job failed permanently (EX_DATAERR).
  exit N     The attempt failed with code exit_N and may be retried; a killed program fails with signal_N.
  fd 3       One JSON object per line; any of these members:
               {\"phase\": \"fetch\", \"progress\": 0.4, \"summary\": \"…\", \"state\": \"loading\" or \"working\",
                \"eta_s\": 12}                                  Progress, from 0 to 1.
               {\"step\": KEY}                                  Look up a recorded step.
               {\"step\": KEY, \"result\": JSON}                Record a finished step. The first record counts.
               {\"facts\": {NAME: JSON}}                        Facts of the subject, set if the job succeeds.
               {\"artifact\": {\"name\": …, \"path\": …}}         Store a file with the job.
               {\"error\": {\"code\": …, \"message\": …, \"retryable\": true}}
                                                              The error to use if the program fails.
             Invalid lines are ignored and reported once per job in the worker's own log.
  fd 5       Answers to steps and artifacts, one JSON object per line: {\"step\": KEY, \"recorded\": false}, or with
             \"recorded\": true and \"result\". A step is recorded when its answer arrives.

With --persistent one process runs many jobs. It reads one JSON object per line on stdin ({\"id\", \"queue\", \"kind\",
\"attempt\", \"payload\", …}) and writes one per job on stdout: {\"result\": JSON} or {\"error\": {\"code\": …, \"message\": …,
\"retryable\": true}}. A process that exits fails its job and is started again for the next one.

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
    /// Run many jobs in one process, one JSON line per job on stdin and stdout
    #[arg(long)]
    persistent: bool,
    /// Print no start line and no line per job
    #[arg(long, short)]
    quiet: bool,
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
    let reporter = JobReporter { is_on: !args.quiet && std::io::stderr().is_terminal() };
    reporter.started(&args);
    let runner = Runner::of(
        Program { command: args.program, grace: args.grace, withheld: withheld_variables() },
        args.persistent,
    );
    let mut builder = Worker::builder(client)
        .name(args.name.unwrap_or_else(machine_name))
        .queues(args.queues)
        .concurrency(usize::from(args.concurrency))
        // Programs usually run long: a prefetched job could not be claimed by another worker meanwhile.
        .prefetch(0)
        .drain_grace(args.drain)
        .stop_grace(args.grace + child::PIPE_GRACE + Duration::from_secs(1))
        .workflow_any(move |workflow| {
            let runner = runner.clone();
            async move {
                let (began, job) = (Instant::now(), workflow.job().clone());
                let verdict = runner.run(workflow).await;
                reporter.ended(&job, began.elapsed(), &verdict);
                verdict
            }
        });
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

/// How the program runs.
#[derive(Clone)]
enum Runner {
    /// One process per job.
    Single(Arc<Program>),
    /// Processes that stay.
    Persistent(Arc<ProcessPool>),
}

impl Runner {
    fn of(program: Program, is_persistent: bool) -> Self {
        if is_persistent { Self::Persistent(ProcessPool::new(program)) } else { Self::Single(Arc::new(program)) }
    }

    async fn run(self, workflow: Workflow) -> Result<Option<Box<RawValue>>, HandlerError> {
        match self {
            Self::Single(program) => child::run(program, workflow).await,
            Self::Persistent(pool) => pool.run(workflow).await,
        }
    }
}

/// Prints what happens, on a terminal.
#[derive(Clone, Copy)]
struct JobReporter {
    is_on: bool,
}

impl JobReporter {
    fn started(self, args: &WorkArgs) {
        if self.is_on {
            let program = args.program.first().map(|program| program.display().to_string()).unwrap_or_default();
            let count = output::many(usize::from(args.concurrency), "job");
            let queues = args.queues.join(", ");
            output::note(&format!("Working on {queues} with {program}, {count} at a time. Interrupt to stop."));
        }
    }

    fn ended(self, job: &JobContext, took: Duration, verdict: &Result<Option<Box<RawValue>>, HandlerError>) {
        if self.is_on {
            let end = match verdict.as_ref().map_err(HandlerError::to_job_error) {
                Ok(_) => "succeeded".to_owned(),
                Err(error) => {
                    let message = error.message.lines().next().unwrap_or_default().to_owned();
                    format!("ended with {}: {message}", error.code)
                }
            };
            let (id, kind, attempt) = (job.id(), job.kind(), job.attempt());
            let took = took.as_secs_f64();
            output::note(&output::clean(&format!("{id} {kind} {end} (attempt {attempt}, {took:.1} s)")));
        }
    }
}

fn machine_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
