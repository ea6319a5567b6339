//! What a program tells on its signal descriptor: one JSON object on each line.

use client::JobContext;
use serde::Deserialize;
use tokio::io::AsyncReadExt;
use tokio::net::unix::pipe::Receiver;

/// A line that is longer is no signal.
const LINE_BYTES: usize = 64 << 10;
const CHUNK_BYTES: usize = 4 << 10;

#[derive(Debug, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    phase: Option<String>,
    progress: Option<f64>,
    summary: Option<String>,
    state: Option<String>,
    eta_s: Option<f64>,
}

/// Passes on what comes until the program closes its end. What is no signal is told once for each job: a program that means
/// something else by this descriptor would fill the log.
pub(super) async fn read(mut pipe: Receiver, job: &JobContext) {
    let mut told = false;
    let mut take = |line: Result<&[u8], TooLong>| {
        let said = line.map_err(|TooLong| "it is too long".to_owned()).and_then(signal);
        match said {
            Ok(Some(line)) => pass_on(line, job),
            Ok(None) => {}
            Err(error) if !told => {
                told = true;
                tracing::warn!(job = %job.id(), error, "a line on the signal descriptor is not a signal");
            }
            Err(_) => {}
        }
    };
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        lines.push(&chunk[..length], &mut take);
    }
    lines.end(&mut take);
}

/// What a line says, or why it says nothing that can be passed on.
fn signal(line: &[u8]) -> Result<Option<Line>, String> {
    if line.trim_ascii().is_empty() {
        return Ok(None);
    }
    let line: Line = serde_json::from_slice(line).map_err(|error| error.to_string())?;
    match line.progress {
        // Percent, most likely, and then 7 is not all of it.
        Some(progress) if !(0.0..=1.0).contains(&progress) => {
            Err(format!("progress goes from 0 to 1, and {progress} does not"))
        }
        _ => Ok(Some(line)),
    }
}

fn pass_on(line: Line, job: &JobContext) {
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
struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut take: impl FnMut(Result<&[u8], TooLong>)) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            if self.begun.len() + part.len() > LINE_BYTES {
                self.too_long = true;
                self.begun.clear();
            }
            if !self.too_long {
                self.begun.extend_from_slice(part);
            }
            if part.ends_with(b"\n") {
                self.end(&mut take);
            }
        }
    }

    fn end(&mut self, mut take: impl FnMut(Result<&[u8], TooLong>)) {
        take(if self.too_long { Err(TooLong) } else { Ok(&self.begun) });
        self.begun.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut seen = Vec::new();
        let text = |line: &[u8]| String::from_utf8_lossy(line).trim().to_owned();
        let mut take = |line: Result<&[u8], TooLong>| seen.push(line.map_or("too long".into(), text));
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.push(chunk, &mut take);
        }
        lines.end(&mut take);
        seen.retain(|line| !line.is_empty());
        seen
    }

    #[test]
    fn lines_are_found_however_they_are_cut() {
        assert_eq!(lines(&[b"on", b"e\ntwo\nth", b"ree"]), ["one", "two", "three"]);
    }

    #[test]
    fn a_line_that_is_too_long_does_not_take_the_next_with_it() {
        let long = vec![b'x'; LINE_BYTES];
        assert_eq!(lines(&[&long, &long, b"\nnext\n"]), ["too long", "next"]);
    }

    #[test]
    fn s1_what_is_no_signal_is_refused_with_a_reason() {
        let said = signal(br#"{"phase": "fetch", "progress": 1}"#).unwrap();
        assert_eq!(said, Some(Line { phase: Some("fetch".into()), progress: Some(1.0), ..Line::default() }));
        assert_eq!(signal(b" \n"), Ok(None));
        for (line, why) in
            [("nonsense", "expected"), (r#"{"stage": 1}"#, "stage"), (r#"{"progress": 7}"#, "from 0 to 1")]
        {
            let error = signal(line.as_bytes()).unwrap_err();
            assert!(error.contains(why), "{line}: {error}");
        }
    }
}
