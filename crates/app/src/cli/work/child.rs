//! One job in one child process: payload in, result, log and signals out.

use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use client::{HandlerError, JobContext};
use command_fds::{CommandFdExt, FdMapping};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe;
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::timeout;
use wire::RawValue;

use super::log::Log;
use super::signals;

/// How long after the program's end its pipes may stay open in processes it left behind.
pub(super) const PIPES: Duration = Duration::from_secs(2);
const SIGNAL_FD: i32 = 3;
/// EX_DATAERR: the payload is wrong and will stay wrong.
const DATA_ERROR: i32 = 65;
/// As much of stdout as a result may have, in bytes of JSON.
const RESULT_BYTES: usize = 1 << 20;
const MESSAGE_BYTES: usize = 4 << 10;
const CHUNK_BYTES: usize = 16 << 10;
/// How often whoever looks on is told the end of a log that grows, and how much of it.
const TELL_LOG: Duration = Duration::from_secs(1);
const TOLD_BYTES: usize = 8 << 10;
/// How long a job is left to others, or to a better moment, when the program could not be started.
const START_AGAIN: Duration = Duration::from_secs(10);
/// How long the worker then waits before the next job: it would otherwise race through its queue.
const AFTER_NO_START: Duration = Duration::from_secs(1);

pub(super) struct Program {
    pub(super) command: Vec<OsString>,
    pub(super) grace: Duration,
}

pub(super) async fn run(program: Arc<Program>, job: JobContext) -> Result<Option<Box<RawValue>>, HandlerError> {
    let (mut child, signals) = match spawn(&program, &job) {
        Ok(spawned) => spawned,
        Err(error) => return Err(not_started(&error, &job).await),
    };
    let group = Group::of(&child);
    let (stdin, stdout, stderr) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
    let mut output = Output::default();
    let log = Mutex::new(Log::default());
    let status = {
        let pipes = async {
            let read = async {
                tokio::join!(
                    feed(stdin, &job),
                    collect(stdout, |bytes| output.push(bytes)),
                    collect(stderr, |bytes| held(&log).push(bytes)),
                    signals::read(signals, &job),
                )
            };
            tokio::select! {
                _ = read => {}
                () = tell_log(&log, &job) => {}
            }
        };
        let ending = end(&mut child, &group, &program, &job);
        tokio::pin!(pipes, ending);
        let mut open = true;
        let status = loop {
            tokio::select! {
                status = &mut ending => break status,
                // A program that closes everything and goes on is still running.
                () = &mut pipes, if open => open = false,
            }
        };
        if open && timeout(PIPES, &mut pipes).await.is_err() {
            // Processes it left behind hold the pipes open; nothing of a job outlives it.
            group.signal(Signal::KILL);
        }
        status
    };
    group.has_ended();
    let status = status.map_err(|error| HandlerError::retryable("wait_failed", error.to_string()))?;
    let log = log.into_inner().unwrap_or_else(PoisonError::into_inner);
    let verdict = verdict(status, output, &log, &job);
    keep_log(log, &job).await;
    verdict
}

fn spawn(program: &Program, job: &JobContext) -> anyhow::Result<(Child, pipe::Receiver)> {
    let (reader, writer) = std::io::pipe()?;
    let mut command = Command::new(&program.command[0]);
    command
        .args(&program.command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true)
        .env("WINDLASS_JOB_ID", job.id().to_string())
        .env("WINDLASS_JOB_KIND", job.kind())
        .env("WINDLASS_QUEUE", job.queue())
        .env("WINDLASS_ATTEMPT", job.attempt().to_string())
        .env("WINDLASS_AFFINITY", job.affinity().unwrap_or_default())
        .env("WINDLASS_SUBJECT", job.subject().unwrap_or_default())
        .env("WINDLASS_SIGNAL_FD", SIGNAL_FD.to_string())
        .fd_mappings(vec![FdMapping { parent_fd: writer.into(), child_fd: SIGNAL_FD }])?;
    let child = command.spawn()?;
    // The command holds our end of the signal pipe; it must close, or the pipe would never end.
    drop(command);
    Ok((child, pipe::Receiver::from_owned_fd(OwnedFd::from(reader))?))
}

/// The job is not to blame, so it loses no attempt.
async fn not_started(error: &anyhow::Error, job: &JobContext) -> HandlerError {
    tracing::warn!(job = %job.id(), error = format!("{error:#}"), "the program cannot be started; the job waits");
    // Whoever calls the job off need not wait for this.
    let _called_off = timeout(AFTER_NO_START, job.cancellation().cancelled()).await;
    HandlerError::snooze(START_AGAIN)
}

/// Waits for the program's end, and hurries it when the job is called off.
async fn end(child: &mut Child, group: &Group, program: &Program, job: &JobContext) -> std::io::Result<ExitStatus> {
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

fn verdict(
    status: ExitStatus,
    output: Output,
    log: &Log,
    job: &JobContext,
) -> Result<Option<Box<RawValue>>, HandlerError> {
    if status.success() {
        return output.result();
    }
    if job.cancellation().is_cancelled() {
        return Err(HandlerError::cancel());
    }
    let message = headed(&log.last(MESSAGE_BYTES));
    Err(match (status.code(), status.signal()) {
        (Some(code @ DATA_ERROR), _) => HandlerError::permanent(format!("exit_{code}"), message),
        (Some(code), _) => HandlerError::retryable(format!("exit_{code}"), message),
        (None, Some(signal)) => HandlerError::retryable(format!("signal_{signal}"), message),
        (None, None) => HandlerError::retryable("unknown_end", message),
    })
}

/// What programs add after they said what they died of.
const AFTERTHOUGHTS: [&str; 4] = ["note: ", "Node.js v", "... ", "exit status "];

/// The line first that says what the program died of: the last that is neither part of a trace nor an afterthought. Whoever
/// tells of an error in one line, or looks for its like, takes the first.
fn headed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    let says = |line: &&str| {
        !line.starts_with(char::is_whitespace) && !AFTERTHOUGHTS.iter().any(|start| line.starts_with(start))
    };
    let Some(at) = lines.iter().rposition(says).or(lines.len().checked_sub(1)) else { return String::new() };
    let others = lines.iter().enumerate().filter(|(place, _)| *place != at).map(|(_, line)| *line);
    let told: Vec<&str> = std::iter::once(lines[at].trim()).chain(others).collect();
    told.join("\n")
}

fn held(log: &Mutex<Log>) -> MutexGuard<'_, Log> {
    log.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Says the last lines of the log while it grows, as `diagnostics.log` of the job's signal: the whole of it is kept as an
/// artifact, but only when the attempt has ended. Never returns.
async fn tell_log(log: &Mutex<Log>, job: &JobContext) {
    let mut told = 0;
    loop {
        tokio::time::sleep(TELL_LOG).await;
        let (written, last) = {
            let log = held(log);
            (log.written(), if log.written() > told { log.last(TOLD_BYTES) } else { String::new() })
        };
        if written > told {
            told = written;
            let diagnostics = serde_json::value::to_raw_value(&serde_json::json!({ "log": last }));
            job.refine(|signal| signal.diagnostics = Some(diagnostics.expect("plain data has a JSON form")));
        }
    }
}

/// A log that cannot be kept does not change how the job ended.
async fn keep_log(log: Log, job: &JobContext) {
    if log.is_empty() {
        return;
    }
    // An artifact never changes, and the claim before may have left one.
    let name = match job.job().epoch {
        1 => "log".to_owned(),
        epoch => format!("log-{epoch}"),
    };
    if let Err(error) = job.put_artifact(&name, "text/plain; charset=utf-8", log.into_bytes()).await {
        tracing::warn!(job = %job.id(), %error, "the log was not kept");
    }
}

async fn feed(stdin: Option<ChildStdin>, job: &JobContext) {
    if let Some(mut stdin) = stdin {
        // A program may well not care for its payload.
        let _closed = stdin.write_all(job.raw_payload().as_bytes()).await;
    }
}

/// Reads to the end whatever becomes of it: a full pipe would stop the program.
async fn collect(pipe: Option<impl AsyncRead + Unpin>, mut take: impl FnMut(&[u8])) {
    let Some(mut pipe) = pipe else { return };
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        take(&chunk[..length]);
    }
}

#[derive(Default)]
struct Output {
    bytes: Vec<u8>,
    too_much: bool,
}

impl Output {
    fn push(&mut self, bytes: &[u8]) {
        if self.bytes.len() + bytes.len() > RESULT_BYTES {
            self.too_much = true;
        } else {
            self.bytes.extend_from_slice(bytes);
        }
    }

    fn result(self) -> Result<Option<Box<RawValue>>, HandlerError> {
        if self.too_much {
            let message = format!("Stdout has more than {RESULT_BYTES} bytes; keep large results as artifacts.");
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

/// The program and what it started. If this is dropped before the program has ended, they are all killed.
struct Group(Option<Pid>);

impl Group {
    fn of(child: &Child) -> Self {
        Self(child.id().and_then(|id| Pid::from_raw(id as i32)))
    }

    fn signal(&self, signal: Signal) {
        if let Some(leader) = self.0 {
            // It may just have ended by itself.
            let _gone = kill_process_group(leader, signal);
        }
    }

    fn has_ended(mut self) {
        self.0 = None;
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result_of(stdout: &[u8]) -> Option<String> {
        let mut output = Output::default();
        output.push(stdout);
        output.result().unwrap().map(|result| result.get().to_owned())
    }

    #[test]
    fn json_is_the_result_and_anything_else_becomes_a_string() {
        assert_eq!(result_of(b"{\"a\": 1}\n").as_deref(), Some("{\"a\": 1}"));
        assert_eq!(result_of(b"all well\n").as_deref(), Some("\"all well\""));
        assert_eq!(result_of(b"\n"), None);
        assert_eq!(result_of(b"\xff").as_deref(), Some("\"\u{fffd}\""));
    }

    #[test]
    fn an_error_says_first_what_the_program_said_last() {
        assert_eq!(
            headed("Traceback:\n  File \"x\"\r\n\nValueError: no such row"),
            "ValueError: no such row\nTraceback:\n  File \"x\""
        );
        assert_eq!(["", "no good", "  indented"].map(headed), ["", "no good", "indented"]);
        let first = |text: &str| headed(text).lines().next().map(str::to_owned);
        for (said, trace) in [
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
            assert_eq!(first(trace).as_deref(), Some(said));
        }
    }

    #[test]
    fn a_result_that_is_too_large_fails_for_good() {
        let mut output = Output::default();
        output.push(&vec![b'1'; RESULT_BYTES + 1]);
        assert!(output.result().is_err());
    }
}
