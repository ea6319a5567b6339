//! Runs one job in one child process: passes the payload in, and the result, log and signals out.

use std::ffi::OsString;
use std::io::Seek;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{HandlerError, JobContext, Workflow};
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;
use wire::{JobError, RawValue};

use super::lines::{Channel, Report};
use super::log::BoundedLog;

/// How long the pipes may stay open after the program has exited, because processes that it started still hold them.
pub(super) const PIPE_GRACE: Duration = Duration::from_secs(2);
const SIGNAL_FD: i32 = 3;
const INPUTS_FD: i32 = 4;
const ANSWER_FD: i32 = 5;
/// EX_DATAERR: the payload is invalid, so a retry would fail again.
const DATA_ERROR: i32 = 65;
/// Maximum size of stdout, equal to the maximum size of a result in bytes of JSON.
pub(super) const RESULT_BYTES: usize = 1 << 20;
const MESSAGE_BYTES: usize = 4 << 10;
const CHUNK_BYTES: usize = 16 << 10;
/// How often the end of a growing log is reported with the job's signal, and its size.
const LOG_REPORT_INTERVAL: Duration = Duration::from_secs(1);
const LOG_REPORT_BYTES: usize = 8 << 10;
/// Delay of a job after its program could not be started.
const START_RETRY_DELAY: Duration = Duration::from_secs(10);
/// Pause before the next claim after a failed start, so that the worker does not cycle through its whole queue.
const PAUSE_AFTER_FAILED_START: Duration = Duration::from_secs(1);

pub(super) struct Program {
    pub(super) command: Vec<OsString>,
    pub(super) grace: Duration,
    /// Variables to remove, or to pass with another value.
    pub(super) withheld: Vec<(&'static str, Option<String>)>,
}

pub(super) async fn run(program: Arc<Program>, workflow: Workflow) -> Result<Option<Box<RawValue>>, HandlerError> {
    let (job, report) = (workflow.job().clone(), Report::default());
    let spawned = inputs(&job).and_then(|inputs| spawn(&program, Some((&job, inputs))));
    let (mut child, mut channel) = match spawned {
        Ok(spawned) => spawned,
        Err(error) => return Err(start_failed(&error, &job).await),
    };
    let group = ProcessGroup::of(&child);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut output = ResultBuffer::default();
    let log = Mutex::new(BoundedLog::default());
    let status = {
        let pipes = async {
            let read = async {
                tokio::join!(
                    feed(stdin, &job),
                    collect(stdout, |bytes| output.push(bytes)),
                    collect(stderr, |bytes| locked(&log).push(bytes)),
                    channel.serve(&workflow, &report),
                )
            };
            tokio::select! {
                _ = read => {}
                () = report_log(&log, &job) => {}
            }
        };
        let ending = end(&mut child, &group, &program, &job);
        tokio::pin!(pipes, ending);
        let mut open = true;
        let status = loop {
            tokio::select! {
                status = &mut ending => break status,
                // A program may close all pipes and continue to run.
                () = &mut pipes, if open => open = false,
            }
        };
        if open && timeout(PIPE_GRACE, &mut pipes).await.is_err() {
            // Processes that the program left behind hold the pipes open. Nothing of a job may outlive it.
            group.signal(Signal::KILL);
        }
        status
    };
    group.has_ended();
    let status = status.map_err(|error| HandlerError::retryable("wait_failed", error.to_string()))?;
    let log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
    let verdict = match verdict(status, &log, &job, &report) {
        Some(error) => Err(error),
        None => report.refused().map_or_else(|| output.result(), Err),
    };
    store_log(log, &job).await;
    verdict
}

/// Starts the program: for one job with its inputs, or for many.
pub(super) fn spawn(
    program: &Program,
    job: Option<(&JobContext, Option<OwnedFd>)>,
) -> anyhow::Result<(Child, Channel)> {
    let (reader, writer) = std::io::pipe()?;
    let (answer_reader, answer_writer) = std::io::pipe()?;
    let mut command = Command::new(&program.command[0]);
    for (variable, value) in &program.withheld {
        match value {
            Some(value) => command.env(variable, value),
            None => command.env_remove(variable),
        };
    }
    command
        .args(&program.command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .env("WINDLASS_SIGNAL_FD", SIGNAL_FD.to_string())
        .env("WINDLASS_ANSWER_FD", ANSWER_FD.to_string());
    let mut mappings = vec![
        FdMapping { parent_fd: writer.into(), child_fd: SIGNAL_FD },
        FdMapping { parent_fd: answer_reader.into(), child_fd: ANSWER_FD },
    ];
    if let Some((job, inputs)) = job {
        command
            .env("WINDLASS_JOB_ID", job.id().to_string())
            .env("WINDLASS_JOB_KIND", job.kind())
            .env("WINDLASS_QUEUE", job.queue())
            .env("WINDLASS_ATTEMPT", job.attempt().to_string())
            .env("WINDLASS_AFFINITY", job.affinity().unwrap_or_default())
            .env("WINDLASS_RUN", job.job().run.as_deref().unwrap_or_default())
            .env("WINDLASS_SUBJECT", job.subject().unwrap_or_default());
        if let Some(inputs) = inputs {
            command.env("WINDLASS_INPUTS", format!("/dev/fd/{INPUTS_FD}"));
            mappings.push(FdMapping { parent_fd: inputs, child_fd: INPUTS_FD });
        }
    }
    command.fd_mappings(mappings)?;
    let child = command.spawn()?;
    // The command holds the program's ends of the pipes, which must be closed for the reader to see its end.
    drop(command);
    let lines = pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?;
    let answers = pipe::Sender::from_owned_fd(OwnedFd::from(answer_writer))?;
    Ok((child, Channel::new(lines, answers)))
}

/// A file without a name that holds the results of the jobs that this one needs, as a JSON object by their names.
fn inputs(job: &JobContext) -> anyhow::Result<Option<OwnedFd>> {
    let Some(inputs) = &job.job().inputs else { return Ok(None) };
    let mut file = tempfile::tempfile()?;
    serde_json::to_writer(&mut file, inputs)?;
    // A program may read the descriptor itself instead of the path.
    file.rewind()?;
    Ok(Some(file.into()))
}

/// Delays the job without using up an attempt, because the job did not cause the failure.
pub(super) async fn start_failed(error: &anyhow::Error, job: &JobContext) -> HandlerError {
    tracing::warn!(job = %job.id(), error = format!("{error:#}"), "the program cannot be started; the job is delayed");
    // A cancellation ends the pause early.
    let _canceled = timeout(PAUSE_AFTER_FAILED_START, job.cancellation().cancelled()).await;
    HandlerError::snooze(START_RETRY_DELAY)
}

/// Waits until the program exits, and terminates it if the job is canceled.
pub(super) async fn end(
    child: &mut Child,
    group: &ProcessGroup,
    program: &Program,
    job: &JobContext,
) -> std::io::Result<ExitStatus> {
    tokio::select! {
        status = child.wait() => return status,
        () = job.cancellation().cancelled() => group.signal(Signal::TERM),
    }
    if let Ok(status) = timeout(program.grace, child.wait()).await {
        return status;
    }
    group.signal(Signal::KILL);
    child.wait().await
}

/// The failure of a program that has exited: the one that it reported, or one with its exit code.
pub(super) fn verdict(status: ExitStatus, log: &BoundedLog, job: &JobContext, report: &Report) -> Option<HandlerError> {
    if status.success() {
        return None;
    }
    if job.cancellation().is_cancelled() {
        return Some(HandlerError::cancel());
    }
    let last_lines = cause_first(&log.last(MESSAGE_BYTES));
    if let Some(JobError { code, message, retryable }) = report.error() {
        let message = if message.is_empty() { last_lines } else { message };
        let is_final = !retryable || status.code() == Some(DATA_ERROR);
        return Some(if is_final {
            HandlerError::permanent(code, message)
        } else {
            HandlerError::retryable(code, message)
        });
    }
    let message = last_lines;
    Some(match (status.code(), status.signal()) {
        (Some(code @ DATA_ERROR), _) => HandlerError::permanent(format!("exit_{code}"), message),
        (Some(code), _) => HandlerError::retryable(format!("exit_{code}"), message),
        (None, Some(signal)) => HandlerError::retryable(format!("signal_{signal}"), message),
        (None, None) => HandlerError::retryable("unknown_end", message),
    })
}

/// Prefixes of lines that programs print after the actual error.
const TRAILERS: [&str; 4] = ["note: ", "Node.js v", "... ", "exit status "];

/// Moves the line that names the error to the front: the last line that is neither part of a stack trace nor a trailer.
/// Failure groups and one-line displays use the first line of an error message.
fn cause_first(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let names_error =
        |line: &&str| !line.starts_with(char::is_whitespace) && !TRAILERS.iter().any(|start| line.starts_with(start));
    let Some(at) = lines.iter().rposition(names_error).or(lines.len().checked_sub(1)) else { return String::new() };
    let others = lines.iter().enumerate().filter(|(index, _)| *index != at).map(|(_, line)| *line);
    let reordered: Vec<&str> = std::iter::once(lines[at].trim()).chain(others).collect();
    reordered.join("\n")
}

pub(super) fn locked(log: &Mutex<BoundedLog>) -> MutexGuard<'_, BoundedLog> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Reports the last lines of a growing log as `diagnostics.log` of the job's signal. The complete log is stored as an
/// artifact only when the attempt has ended. Never returns.
pub(super) async fn report_log(log: &Mutex<BoundedLog>, job: &JobContext) {
    let mut reported = 0;
    loop {
        tokio::time::sleep(LOG_REPORT_INTERVAL).await;
        let (written, last) = {
            let log = locked(log);
            (log.written(), if log.written() > reported { log.last(LOG_REPORT_BYTES) } else { String::new() })
        };
        if written > reported {
            reported = written;
            let diagnostics = serde_json::value::to_raw_value(&serde_json::json!({ "log": last }));
            job.refine(|signal| signal.diagnostics = Some(diagnostics.expect("plain data has a JSON form")));
        }
    }
}

/// Stores the log as an artifact. A failure to do so does not change the outcome of the job.
pub(super) async fn store_log(log: BoundedLog, job: &JobContext) {
    if log.is_empty() {
        return;
    }
    // Artifacts are immutable, and an earlier claim may have stored one.
    let name = match job.job().epoch {
        1 => "log".to_owned(),
        epoch => format!("log-{epoch}"),
    };
    if let Err(error) = job.put_artifact(&name, "text/plain; charset=utf-8", log.into_bytes()).await {
        tracing::warn!(job = %job.id(), %error, "cannot store the log");
    }
}

async fn feed(stdin: Option<ChildStdin>, job: &JobContext) {
    if let Some(mut stdin) = stdin {
        // The program may close stdin without reading the payload.
        let _closed = stdin.write_all(job.raw_payload().as_bytes()).await;
    }
}

/// Reads the pipe to its end even if the output is discarded, because a full pipe would block the program.
pub(super) async fn collect(pipe: Option<impl AsyncRead + Unpin>, mut on_chunk: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        on_chunk(&chunk[..length]);
    }
}

#[derive(Default)]
struct ResultBuffer {
    bytes: Vec<u8>,
    is_too_large: bool,
}

impl ResultBuffer {
    fn push(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > RESULT_BYTES {
            self.is_too_large = true;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn result(self) -> Result<Option<Box<RawValue>>, HandlerError> {
        if self.is_too_large {
            let message = format!("Stdout exceeds {RESULT_BYTES} bytes; store large results as artifacts.");
            return Err(HandlerError::permanent("result_too_large", message));
        }
        let text = String::from_utf8_lossy(&self.bytes);
        if text.trim().is_empty() {
            return Ok(None);
        }
        if let Ok(json) = serde_json::from_str(text.trim()) {
            return Ok(Some(json));
        }
        Ok(Some(serde_json::value::to_raw_value(text.trim_end_matches('\n'))?))
    }
}

/// The process group of the program. Dropping it before the program has exited kills the group.
pub(super) struct ProcessGroup(Option<Pid>);

impl ProcessGroup {
    pub(super) fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id as i32)))
    }

    pub(super) fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // The group may have exited already.
            let _exited = kill_process_group(leader, signal);
        }
    }

    pub(super) fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(stdout: &[u8]) -> Option<String> {
        let mut output = ResultBuffer::default();
        output.push(stdout);
        output.result().unwrap().map(|result| result.get().to_owned())
    }

    #[test]
    fn json_output_is_the_result_and_other_output_becomes_a_string() {
        assert_eq!(result_of(b"{\"a\": 1}\n").as_deref(), Some("{\"a\": 1}"));
        assert_eq!(result_of(b"all well\n").as_deref(), Some("\"all well\""));
        assert_eq!(result_of(b"\n"), None);
        assert_eq!(result_of(b"\xff").as_deref(), Some("\"\u{fffd}\""));
    }

    #[test]
    fn an_error_message_starts_with_the_cause_from_the_output() {
        assert_eq!(
            cause_first("Traceback:\n  File \"x\"\r\n\nValueError: no such row"),
            "ValueError: no such row\nTraceback:\n  File \"x\""
        );
        assert_eq!(["", "no good", "  indented"].map(cause_first), ["", "no good", "indented"]);
        let first = |text: &str| cause_first(text).lines().next().map(str::to_owned);
        for (cause, trace) in [
            (
                "thread 'main' panicked at src/main.rs:2:5:",
                "thread 'main' panicked at src/main.rs:2:5:\nnote: run with `RUST_BACKTRACE=1`",
            ),
            ("Error: no such row", "Error: no such row\n    at main (x.js:1:1)\n\nNode.js v20.11.0"),
            (
                "Caused by: java.io.IOException: gone",
                "Exception in main\n\tat A.b\nCaused by: java.io.IOException: gone\n\tat C.d\n\t... 3 more",
            ),
            ("goroutine 1 [running]:", "panic: gone\n\ngoroutine 1 [running]:\n\tmain.go:3\nexit status 2"),
        ] {
            assert_eq!(first(trace).as_deref(), Some(cause));
        }
    }

    #[test]
    fn output_over_the_result_limit_is_an_error() {
        let mut output = ResultBuffer::default();
        output.push(&vec![b'1'; RESULT_BYTES + 1]);
        assert!(output.result().is_err());
    }
}
