//! Reads signals from a program's signal descriptor: one JSON object per line.

use client::JobContext;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// Longer lines are not signals.
const LINE_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 4 << 10;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct SignalLine {
    phase: Option<String>,
    progress: Option<f64>,
    summary: Option<String>,
    state: Option<String>,
    eta_s: Option<f64>,
}

/// Passes signals on until the program closes the descriptor. Invalid lines are logged once per job: a program that
/// uses the descriptor for something else would fill the log.
pub(super) async fn read(mut pipe: Receiver, job: &JobContext) {
    let mut warned = false;
    let mut on_line = |line: Result<&[u8], TooLong>| {
        let parsed = line.map_err(|TooLong| "it is too long".to_owned()).and_then(signal);
        match parsed {
            Ok(Some(line)) => pass_on(line, job),
            Ok(None) => {}
            Err(error) if !warned => {
                warned = true;
                tracing::warn!(job = %job.id(), error, "invalid line on the signal descriptor");
            }
            Err(_) => {}
        }
    };
    let mut lines = LineReader::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        lines.push(&chunk[..length], &mut on_line);
    }
    lines.end(&mut on_line);
}

/// Parses a line; `None` for an empty one.
fn signal(line: &[u8]) -> Result<Option<SignalLine>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line: SignalLine = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match line.progress {
        // Probably a percentage.
        Some(progress) if !(0.0..=1.0).contains(&progress) => {
            Err(format!("progress must be from 0 to 1, not {progress}"))
        }
        _ => Ok(Some(line)),
    }
}

fn pass_on(line: SignalLine, job: &JobContext) {
    job.refine(|signal| {
        signal.phase = line.phase.or(signal.phase.take());
        signal.progress = line.progress.or(signal.progress);
        signal.summary = line.summary.or(signal.summary.take());
        signal.state = line.state.or(signal.state.take());
        signal.eta_s = line.eta_s.or(signal.eta_s);
    });
}

struct TooLong;

#[derive(Default)]
struct LineReader {
    partial: Vec<u8>,
    too_long: bool,
}

impl LineReader {
    fn push(&mut self, bytes: &[u8], mut on_line: impl FnMut(Result<&[u8], TooLong>)) {
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

    fn end(&mut self, mut on_line: impl FnMut(Result<&[u8], TooLong>)) {
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
    fn a_line_that_is_not_a_signal_is_rejected_with_a_reason() {
        let parsed = signal(br#"{"phase": "fetch", "progress": 1}"#).unwrap();
        assert_eq!(
            parsed,
            Some(SignalLine { phase: Some("fetch".into()), progress: Some(1.0), ..SignalLine::default() })
        );
        assert_eq!(signal(b" \n"), Ok(None));
        for (line, why) in
            [("nonsense", "expected"), (r#"{"stage": 1}"#, "stage"), (r#"{"progress": 7}"#, "from 0 to 1")]
        {
            let error = signal(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
