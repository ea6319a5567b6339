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

/// Passes on what comes until the program closes its end.
pub(super) async fn read(mut pipe: Receiver, job: &JobContext) {
    let mut lines = Lines::default();
    let mut chunk = vec![0; CHUNK_BYTES];
    while let Ok(length @ 1..) = pipe.read(&mut chunk).await {
        lines.push(&chunk[..length], |line| pass_on(line, job));
    }
    lines.end(|line| pass_on(line, job));
}

fn pass_on(line: &[u8], job: &JobContext) {
    if line.trim_ascii().is_empty() {
        return;
    }
    match serde_json::from_slice::<Line>(line) {
        Ok(line) => job.refine(|signal| {
            signal.phase = line.phase.or(signal.phase.take());
            signal.progress = line.progress.map(|progress| progress.clamp(0.0, 1.0)).or(signal.progress);
            signal.summary = line.summary.or(signal.summary.take());
            signal.state = line.state.or(signal.state.take());
            signal.eta_s = line.eta_s.or(signal.eta_s);
        }),
        Err(error) => tracing::warn!(job = %job.id(), %error, "a line on the signal descriptor is not a signal"),
    }
}

#[derive(Default)]
struct Lines {
    begun: Vec<u8>,
    too_long: bool,
}

impl Lines {
    fn push(&mut self, bytes: &[u8], mut take: impl FnMut(&[u8])) {
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

    fn end(&mut self, mut take: impl FnMut(&[u8])) {
        if self.too_long {
            tracing::warn!("a line on the signal descriptor is too long");
        } else {
            take(&self.begun);
        }
        self.begun.clear();
        self.too_long = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        let mut seen = Vec::new();
        let mut take = |line: &[u8]| seen.push(String::from_utf8_lossy(line).trim().to_owned());
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
        assert_eq!(lines(&[&long, &long, b"\nnext\n"]), ["next"]);
    }
}
