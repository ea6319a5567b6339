//! Programs that stay: one process runs many jobs, one JSON line per job on stdin and one per outcome on stdout.

use std::process::ExitStatus;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::{HandlerError, JobContext, Workflow};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout};
use tokio::time::timeout;
use wire::{JobError, RawValue};

use super::child::{
    ProcessGroup, Program, RESULT_BYTES, collect, end, locked, report_log, spawn, start_failed, store_log, verdict,
};
use super::lines::{Channel, Report};
use super::log::BoundedLog;

/// Longest line of an outcome: a result and the rest of the line.
const OUTCOME_BYTES: u64 = RESULT_BYTES as u64 + (64 << 10);
/// How long lines that a program wrote before its outcome may take to arrive.
const SETTLE_GRACE: Duration = Duration::from_millis(20);

/// Idle processes of one program.
pub(super) struct ProcessPool {
    program: Program,
    idle: Mutex<Vec<Process>>,
}

struct Process {
    child: Child,
    group: ProcessGroup,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    channel: Channel,
}

/// A job as the program receives it.
#[derive(Serialize)]
struct JobLine<'a> {
    id: uuid::Uuid,
    queue: &'a str,
    kind: &'a str,
    attempt: i64,
    payload: &'a RawValue,
    #[serde(skip_serializing_if = "Option::is_none")]
    affinity: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    subject: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    inputs: Option<&'a std::collections::BTreeMap<String, Box<RawValue>>>,
}

/// The outcome of a job as the program writes it: `{"result": …}` or `{"error": {…}}`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct OutcomeLine {
    result: Option<Box<RawValue>>,
    error: Option<JobError>,
}

impl ProcessPool {
    pub(super) fn new(program: Program) -> Arc<Self> {
        Arc::new(Self { program, idle: Mutex::default() })
    }

    /// Runs one job in an idle process, or in a new one.
    pub(super) async fn run(self: Arc<Self>, workflow: Workflow) -> Result<Option<Box<RawValue>>, HandlerError> {
        let job = workflow.job().clone();
        let mut process = match self.take() {
            Some(process) => process,
            None => match Process::start(&self.program) {
                Ok(process) => process,
                Err(error) => return Err(start_failed(&error, &job).await),
            },
        };
        let log = Mutex::new(BoundedLog::default());
        let outcome = process.run(&self.program, &workflow, &log).await;
        let log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
        let verdict = match outcome {
            ProcessEnd::Answered(verdict) => {
                self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(process);
                verdict
            }
            ProcessEnd::Exited(status, report) => {
                process.group.has_ended();
                let status = status.map_err(|error| HandlerError::retryable("wait_failed", error.to_string()))?;
                Err(verdict(status, &log, &job, &report).unwrap_or_else(|| {
                    HandlerError::retryable("no_outcome", "The program exited without an outcome for the job.")
                }))
            }
        };
        store_log(log, &job).await;
        verdict
    }

    /// An idle process that still runs.
    fn take(&self) -> Option<Process> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        while let Some(mut process) = idle.pop() {
            if matches!(process.child.try_wait(), Ok(None)) {
                return Some(process);
            }
            process.group.has_ended();
        }
        None
    }
}

enum ProcessEnd {
    Answered(Result<Option<Box<RawValue>>, HandlerError>),
    Exited(std::io::Result<ExitStatus>, Report),
}

impl Process {
    fn start(program: &Program) -> anyhow::Result<Self> {
        let (mut child, channel) = spawn(program, None)?;
        let group = ProcessGroup::of(&child);
        let (Some(stdin), Some(stdout), Some(stderr)) = (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            anyhow::bail!("the program has no pipes");
        };
        Ok(Self { child, group, stdin, stdout: BufReader::new(stdout), stderr, channel })
    }

    async fn run(&mut self, program: &Program, workflow: &Workflow, log: &Mutex<BoundedLog>) -> ProcessEnd {
        let (job, report) = (workflow.job(), Report::default());
        let Self { child, group, stdin, stdout, stderr, channel } = self;
        let line = job_line(job);
        let mut answer = Vec::new();
        let answered = {
            let exchange = async {
                // A program that has exited is noticed below.
                let _closed = stdin.write_all(&line).await;
                let read = (&mut *stdout).take(OUTCOME_BYTES).read_until(b'\n', &mut answer).await;
                match read {
                    Ok(1..) if answer.ends_with(b"\n") || answer.len() as u64 == OUTCOME_BYTES => {}
                    // The program has closed its stdout: its end decides.
                    _ => std::future::pending().await,
                }
            };
            let side = async {
                tokio::select! {
                    _ = async { tokio::join!(channel.serve(workflow, &report), collect(Some(&mut *stderr), |bytes| locked(log).push(bytes))) } => {}
                    () = report_log(log, job) => {}
                }
                // The program may close these pipes and continue to run.
                std::future::pending::<()>().await;
            };
            let ending = end(child, group, program, job);
            tokio::pin!(exchange, side, ending);
            tokio::select! {
                biased;
                () = &mut exchange => {
                    // Lines that the program wrote before its outcome belong to this job.
                    let _elapsed = timeout(SETTLE_GRACE, &mut side).await;
                    None
                }
                status = &mut ending => {
                    let _elapsed = timeout(SETTLE_GRACE, &mut side).await;
                    Some(status)
                }
                () = &mut side => unreachable!("it never ends"),
            }
        };
        match answered {
            Some(status) => ProcessEnd::Exited(status, report),
            None => match outcome(&answer) {
                Ok(result) => ProcessEnd::Answered(match (result, report.refused()) {
                    (Ok(_), Some(refused)) => Err(refused),
                    (result, _) => result,
                }),
                Err(message) => {
                    // What follows on stdout cannot be attributed to a job.
                    group.signal(Signal::KILL);
                    let _status = child.wait().await;
                    ProcessEnd::Answered(Err(HandlerError::retryable("invalid_outcome", message)))
                }
            },
        }
    }
}

fn job_line(job: &JobContext) -> Vec<u8> {
    let claimed = job.job();
    let line = JobLine {
        id: job.id(),
        queue: job.queue(),
        kind: job.kind(),
        attempt: job.attempt(),
        payload: &claimed.payload,
        affinity: job.affinity(),
        subject: job.subject(),
        run: claimed.run.as_deref(),
        inputs: claimed.inputs.as_ref(),
    };
    let mut line = serde_json::to_vec(&line).expect("a job is JSON");
    // A payload may have line breaks between its members.
    line.iter_mut().filter(|byte| matches!(byte, b'\n' | b'\r')).for_each(|byte| *byte = b' ');
    line.push(b'\n');
    line
}

/// Parses the outcome. An error says why the line is none.
fn outcome(line: &[u8]) -> Result<Result<Option<Box<RawValue>>, HandlerError>, String> {
    let OutcomeLine { result, error } = serde_json::from_slice(line)
        .map_err(|error| format!("The program must write one JSON object per job, with result or error: {error}"))?;
    Ok(match error {
        None => match result.as_ref().map_or(0, |result| result.get().len()) {
            size if size > RESULT_BYTES => Err(HandlerError::permanent(
                "result_too_large",
                format!("The result has {size} bytes; the limit is {RESULT_BYTES}. Store it as an artifact."),
            )),
            _ => Ok(result),
        },
        Some(JobError { code, message, retryable: true }) => Err(HandlerError::retryable(code, message)),
        Some(JobError { code, message, retryable: false }) => Err(HandlerError::permanent(code, message)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_a_result_or_an_error() {
        let text = |line: &str| outcome(line.as_bytes()).unwrap().unwrap().map(|result| result.get().to_owned());
        assert_eq!(text(r#"{"result": {"a": 1}}"#).as_deref(), Some(r#"{"a": 1}"#));
        assert_eq!(text("{}"), None);
        let error = outcome(br#"{"error": {"code": "boom", "retryable": false}}"#).unwrap().unwrap_err();
        assert_eq!(error, HandlerError::permanent("boom", ""));
        for line in ["", "progress: 1", r#"{"outcome": 1}"#] {
            assert!(outcome(line.as_bytes()).is_err(), "{line}");
        }
    }
}
