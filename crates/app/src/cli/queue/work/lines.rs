//! The lines of a program on its descriptor 3, one JSON object each: signals, steps, facts, artifacts and its error. Steps
//! and artifacts are answered on descriptor 5.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};

use client::{HandlerError, JobContext, Workflow};
use serde::{Deserialize, Deserializer, Serialize};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::unix::pipe::{Receiver, Sender};
use wire::{JobError, RawValue};

/// Longer lines are refused: the largest result of a step, and the rest of its line.
const LINE_BYTES: usize = (1 << 20) + (4 << 10);
const CHUNK_BYTES: usize = 4 << 10;
/// Maximum size of an artifact from a file.
const ARTIFACT_BYTES: u64 = 64 << 20;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProgramLine {
    phase: Option<String>,
    progress: Option<f64>,
    summary: Option<String>,
    state: Option<String>,
    eta_s: Option<f64>,
    /// The key of a step to look up, or with `result` to record.
    step: Option<String>,
    #[serde(default, deserialize_with = "present")]
    result: Option<Box<RawValue>>,
    facts: Option<BTreeMap<String, Box<RawValue>>>,
    artifact: Option<ArtifactLine>,
    error: Option<JobError>,
}

/// A file to store with the job.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ArtifactLine {
    name: String,
    path: PathBuf,
    #[serde(default = "binary")]
    content_type: String,
}

fn binary() -> String {
    "application/octet-stream".into()
}

/// `null` is a result.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Box<RawValue>>, D::Error> {
    Box::<RawValue>::deserialize(deserializer).map(Some)
}

/// The answer to a line.
#[derive(Debug, Default, Serialize)]
struct Answer<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    step: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    recorded: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    result: Option<Box<RawValue>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    artifact: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<JobError>,
}

/// What a program said about the end of its job.
#[derive(Default)]
pub(super) struct Report(Mutex<ReportedEnd>);

#[derive(Default)]
struct ReportedEnd {
    /// The error to use if the program fails.
    error: Option<JobError>,
    /// Why the job cannot succeed.
    refused: Option<HandlerError>,
}

impl Report {
    fn change(&self, change: impl FnOnce(&mut ReportedEnd)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn error(&self) -> Option<JobError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).error.take()
    }

    pub(super) fn refused(&self) -> Option<HandlerError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).refused.take()
    }
}

/// Both descriptors of a program.
pub(super) struct Channel {
    lines: Receiver,
    answers: Sender,
    reader: LineReader,
}

impl Channel {
    pub(super) fn new(lines: Receiver, answers: Sender) -> Self {
        Self { lines, answers, reader: LineReader::default() }
    }

    /// Handles lines until the program closes the descriptor. Invalid lines are logged once per job: a program that uses
    /// the descriptor for something else would fill the log.
    pub(super) async fn serve(&mut self, workflow: &Workflow, report: &Report) {
        let mut warned = false;
        let mut chunk = vec![0; CHUNK_BYTES];
        loop {
            let length = self.lines.read(&mut chunk).await.unwrap_or(0);
            let mut lines = Vec::new();
            let mut collect = |line: Result<&[u8], TooLong>| {
                lines.push(line.map(<[u8]>::to_vec).map_err(|TooLong| "it is too long".to_owned()));
            };
            match length {
                0 => self.reader.end(&mut collect),
                length => self.reader.push(&chunk[..length], &mut collect),
            }
            for line in lines {
                match line.and_then(|line| parse(&line)) {
                    Ok(Some(line)) => self.handle(line, workflow, report).await,
                    Ok(None) => {}
                    Err(error) => {
                        if !std::mem::replace(&mut warned, true) {
                            tracing::warn!(job = %workflow.job().id(), error, "invalid line on the signal descriptor");
                        }
                    }
                }
            }
            if length == 0 {
                return;
            }
        }
    }

    async fn handle(&mut self, line: ProgramLine, workflow: &Workflow, report: &Report) {
        let job = workflow.job();
        pass_on(&line, job);
        if let Some(error) = line.error {
            report.change(|end| end.error = Some(error));
        }
        for (name, value) in line.facts.into_iter().flatten() {
            if let Err(error) = job.fact(name, &value) {
                report.change(|end| end.refused = Some(error));
            }
        }
        if let Some(key) = &line.step {
            let answer = answer_step(workflow, key, line.result).await;
            self.answer(&answer).await;
        }
        if let Some(artifact) = &line.artifact {
            let error = store_artifact(job, artifact).await.err();
            if let Some(JobError { code, message, .. }) = error.clone() {
                report.change(|end| end.refused = Some(HandlerError::retryable(code, message)));
            }
            self.answer(&Answer { artifact: Some(&artifact.name), error, ..Answer::default() }).await;
        }
    }

    async fn answer(&mut self, answer: &Answer<'_>) {
        let mut line = serde_json::to_vec(answer).expect("an answer is JSON");
        line.push(b'\n');
        // The program may not read its answers.
        let _closed = self.answers.write_all(&line).await;
    }
}

async fn answer_step<'a>(workflow: &Workflow, key: &'a str, result: Option<Box<RawValue>>) -> Answer<'a> {
    let answer = Answer { step: Some(key), ..Answer::default() };
    let recorded = match (workflow.recorded(key), result) {
        (Some(recorded), _) => recorded,
        (None, None) => return Answer { recorded: Some(false), ..answer },
        (None, Some(result)) => workflow.record(key, result).await.map_err(|error| error.to_job_error()),
    };
    match recorded {
        Ok(result) => Answer { recorded: Some(true), result: Some(result), ..answer },
        Err(error) => Answer { error: Some(error), ..answer },
    }
}

async fn store_artifact(job: &JobContext, artifact: &ArtifactLine) -> Result<(), JobError> {
    let failed = |message: String| JobError { code: "artifact_failed".into(), message, retryable: true };
    let path = artifact.path.display();
    let size = tokio::fs::metadata(&artifact.path).await.map_err(|error| failed(format!("{path}: {error}")))?.len();
    if size > ARTIFACT_BYTES {
        return Err(failed(format!("{path} has {size} bytes; the limit is {ARTIFACT_BYTES}")));
    }
    let bytes = tokio::fs::read(&artifact.path).await.map_err(|error| failed(format!("{path}: {error}")))?;
    let stored = job.put_artifact(&artifact.name, &artifact.content_type, bytes).await;
    stored.map(drop).map_err(|error| failed(error.to_string()))
}

/// Parses a line; `None` for an empty one.
fn parse(line: &[u8]) -> Result<Option<ProgramLine>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line: ProgramLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match line.progress {
        // Probably a percentage.
        Some(progress) if !(0.0..=1.0).contains(&progress) => {
            Err(format!("progress must be from 0 to 1, not {progress}"))
        }
        _ if line.result.is_some() && line.step.is_none() => Err("result requires step".into()),
        _ => Ok(Some(line)),
    }
}

fn pass_on(line: &ProgramLine, job: &JobContext) {
    let ProgramLine { phase, progress, summary, state, eta_s, .. } = line;
    if phase.is_none() && progress.is_none() && summary.is_none() && state.is_none() && eta_s.is_none() {
        return;
    }
    job.refine(|signal| {
        signal.phase = phase.clone().or(signal.phase.take());
        signal.progress = progress.or(signal.progress);
        signal.summary = summary.clone().or(signal.summary.take());
        signal.state = state.clone().or(signal.state.take());
        signal.eta_s = eta_s.or(signal.eta_s);
    });
}

pub(super) struct TooLong;

#[derive(Default)]
pub(super) struct LineReader {
    partial: Vec<u8>,
    too_long: bool,
}

impl LineReader {
    pub(super) fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(Result<&[u8], TooLong>)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.partial.len() + part.len() > LINE_BYTES {
                self.too_long = true;
                self.partial.clear();
            }
            if !self.too_long {
                self.partial.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.end(&mut on_line);
            }
        }
    }

    pub(super) fn end(&mut self, mut on_line: impl FnMut(Result<&[u8], TooLong>)) {
        on_line(if self.too_long { Err(TooLong) } else { Ok(&self.partial) });
        self.partial.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut seen = Vec::new();
        let text = |line: &[u8]| String::from_utf8_lossy(line).trim().to_owned();
        let mut on_line = |line: Result<&[u8], TooLong>| seen.push(line.map_or("too long".into(), text));
        let mut lines = LineReader::default();
        for chunk in chunks {
            lines.push(chunk, &mut on_line);
        }
        lines.end(&mut on_line);
        seen.retain(|line| !line.is_empty());
        seen
    }

    #[test]
    fn lines_are_reassembled_across_chunks() {
        assert_eq!(lines(&[b"on", b"e\ntwo\nth", b"ree"]), ["one", "two", "three"]);
    }

    #[test]
    fn a_line_over_the_limit_does_not_affect_the_next_line() {
        let long = vec![b'x'; LINE_BYTES];
        assert_eq!(lines(&[&long, &long, b"\nnext\n"]), ["too long", "next"]);
    }

    /// Requirement S1.
    #[test]
    fn an_invalid_line_is_rejected_with_a_reason() {
        let line = parse(br#"{"phase": "fetch", "progress": 1}"#).unwrap().unwrap();
        assert_eq!((line.phase.as_deref(), line.progress), (Some("fetch"), Some(1.0)));
        assert!(parse(b" \n").unwrap().is_none());
        for (line, why) in [
            ("nonsense", "expected"),
            (r#"{"stage": 1}"#, "stage"),
            (r#"{"progress": 7}"#, "from 0 to 1"),
            (r#"{"result": 7}"#, "requires step"),
            (r#"{"artifact": {"name": "a"}}"#, "path"),
        ] {
            let error = parse(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }

    #[test]
    fn a_step_is_recorded_with_any_result_and_looked_up_without_one() {
        let of = |line: &str| parse(line.as_bytes()).unwrap().unwrap();
        assert!(of(r#"{"step": "a"}"#).result.is_none());
        assert_eq!(of(r#"{"step": "a", "result": null}"#).result.unwrap().get(), "null");
    }
}
