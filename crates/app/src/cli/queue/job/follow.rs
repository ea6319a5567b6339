//! Follows a job until it ends, for `job push --wait` and `job watch`.

use std::io::IsTerminal;
use std::time::Duration;

use client::{Client, ClientError};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::SignedDuration;
use tokio::time::{Instant, sleep};
use uuid::Uuid;
use wire::{EtaRange, JobView, SignalView};

use super::show;
use crate::cli::exit::Exit;
use crate::cli::output::{self, Output, clean};
use crate::cli::signals::ttfs::FirstSignal;

const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// Consecutive failed requests after which the command gives up.
const MAX_FAILURES: u32 = 30;
/// The progress bar counts in thousandths.
const PROGRESS_STEPS: u64 = 1_000;

/// Waits for the end and prints only the result, for use in scripts.
pub(super) async fn wait(client: &Client, id: Uuid, timeout: Option<Duration>, format: Output) -> anyhow::Result<Exit> {
    let job = match follow(client, id, timeout).await? {
        Followed::Ended(job) => job,
        Followed::TimedOut => {
            output::note(&format!("Timed out; the job continues. Follow it with `windlass job watch {id}`."));
            return Ok(Exit::TimedOut);
        }
        Followed::Interrupted => {
            output::note(&format!("Interrupted; the job continues. Follow it with `windlass job watch {id}`."));
            return Ok(Exit::Interrupted);
        }
    };
    match format {
        Output::Json => output::json(&*job)?,
        Output::Table => {
            if let Some(result) = &job.result {
                output::line(&show::pretty(result.get()))?;
            }
        }
    }
    Ok(exit_of(&job))
}

/// Follows the job and shows it once it has ended.
pub(super) async fn watch(client: &Client, id: Uuid, format: Output) -> anyhow::Result<Exit> {
    match follow(client, id, None).await? {
        Followed::Ended(job) => {
            show::job(&job, format)?;
            Ok(exit_of(&job))
        }
        Followed::TimedOut => Ok(Exit::TimedOut),
        Followed::Interrupted => Ok(Exit::Interrupted),
    }
}

fn exit_of(job: &JobView) -> Exit {
    if job.state == "succeeded" {
        return Exit::Done;
    }
    let error = show::error(job).map(|error| format!(": {error}")).unwrap_or_default();
    output::error(&format!("the job {}{error}", if job.state == "canceled" { "was canceled" } else { "failed" }));
    Exit::Failed
}

enum Followed {
    Ended(Box<JobView>),
    TimedOut,
    Interrupted,
}

async fn follow(client: &Client, id: Uuid, timeout: Option<Duration>) -> anyhow::Result<Followed> {
    let line = StatusLine::new(id);
    let deadline = timeout.map(|timeout| Instant::now() + timeout);
    let followed = tokio::select! {
        biased;
        interrupted = tokio::signal::ctrl_c() => {
            interrupted?;
            Ok(Followed::Interrupted)
        }
        () = async { tokio::time::sleep_until(deadline.unwrap_or_else(Instant::now)).await }, if deadline.is_some() => {
            Ok(Followed::TimedOut)
        }
        job = until_ended(client, id, &line) => job.map(Box::new).map(Followed::Ended),
    };
    line.clear();
    Ok(followed?)
}

async fn until_ended(client: &Client, id: Uuid, line: &StatusLine) -> Result<JobView, ClientError> {
    let mut failures = 0;
    let mut first = FirstSignal::start(client, id);
    // The first request returns at once, so that the status appears immediately.
    let mut wait = Duration::ZERO;
    loop {
        match client.wait_for_job(id, std::mem::replace(&mut wait, POLL_INTERVAL)).await {
            Ok(job) if matches!(job.state.as_str(), "succeeded" | "failed" | "canceled") => return Ok(job),
            Ok(job) => {
                failures = 0;
                // The signal only adds details; the wait does not depend on it.
                match client.signal_with_meta(id).await {
                    Ok(Some(response)) => {
                        line.show(&job, Some(&response.signal));
                        first.rendered(&response).await;
                    }
                    Ok(None) => line.show(&job, None),
                    Err(error) => {
                        line.show(&job, None);
                        first.failed(&error).await;
                    }
                }
            }
            Err(error) if failures < MAX_FAILURES && is_transient(&error) => {
                failures += 1;
                line.say("cannot reach the server; retrying");
                sleep(POLL_INTERVAL).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn is_transient(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } => true,
        ClientError::Problem(problem) => problem.status >= 500 || problem.status == 429,
        _ => false,
    }
}

/// The status of a job: one line that is updated on a terminal, else one line per change.
enum StatusLine {
    Live(ProgressBar),
    Log { id: Uuid, last: std::cell::RefCell<String> },
}

impl StatusLine {
    fn new(id: Uuid) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Log { id, last: std::cell::RefCell::default() };
        }
        let bar = ProgressBar::new(PROGRESS_STEPS);
        bar.set_style(spinner());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("{id}"));
        Self::Live(bar)
    }

    fn show(&self, job: &JobView, signal: Option<&SignalView>) {
        let progress = job.progress.filter(|_| job.state == "working");
        if let Self::Live(bar) = self {
            bar.set_style(if progress.is_some() { progress_bar() } else { spinner() });
            bar.set_position(progress.map_or(0, |progress| (progress * PROGRESS_STEPS as f64) as u64));
        }
        self.say(&describe(job, signal));
    }

    fn say(&self, text: &str) {
        match self {
            Self::Live(bar) => bar.set_message(text.to_owned()),
            Self::Log { id, last } => {
                if *last.borrow() != text {
                    output::note(&format!("{id} {text}"));
                    last.replace(text.to_owned());
                }
            }
        }
    }

    fn clear(&self) {
        if let Self::Live(bar) = self {
            bar.finish_and_clear();
        }
    }
}

fn spinner() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {wide_msg} {elapsed:.dim}").expect("the template is valid")
}

fn progress_bar() -> ProgressStyle {
    ProgressStyle::with_template("{spinner:.cyan} {bar:30.cyan/dim} {percent:>3} % {wide_msg} {elapsed:.dim}")
        .expect("the template is valid")
}

/// The signal's summary, or a summary of the job's own fields if there is no signal.
fn describe(job: &JobView, signal: Option<&SignalView>) -> String {
    let mut parts = vec![job.state.clone()];
    match signal {
        Some(signal) => {
            parts.extend(job.phase.clone());
            parts.push(signal.summary.clone());
            parts.extend(signal.eta_seconds.and_then(|eta| eta_text(eta, &signal.summary)));
        }
        None => {
            if job.attempt > 1 {
                parts.push(format!("attempt {} of {}", job.attempt, job.max_attempts));
            }
            match job.state.as_str() {
                "scheduled" => parts.push(format!("due {}", output::relative(job.run_at))),
                _ => parts.extend(job.phase.clone()),
            }
        }
    }
    clean(&parts.join(" · ")).replace('\n', " ")
}

/// The ETA, unless the summary already contains it. The server's summaries do, rounded; showing other numbers next to
/// them would look contradictory. A worker's summary usually does not.
fn eta_text(eta: EtaRange, summary: &str) -> Option<String> {
    if summary.ends_with(" left.") || summary.contains("; done in ") {
        return None;
    }
    let [p50, p90] = [eta.p50, eta.p90].map(|seconds| output::span(SignedDuration::from_secs(seconds.ceil() as i64)));
    Some(if p50 == p90 { format!("ETA {p50}") } else { format!("ETA {p50} (p50), {p90} (p90)") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(summary: &str, p50: f64, p90: f64, expected: Option<&str>) {
        assert_eq!(eta_text(EtaRange { p50, p90 }, summary).as_deref(), expected, "{summary}");
    }

    /// Requirement S3.
    #[test]
    fn the_eta_is_shown_once_and_as_one_number_if_both_percentiles_agree() {
        check("Attempt 1 of 3 has been running for 10 s; about 1 s left.", 1.96, 30.0, None);
        check("2nd in line; done in about 40 s.", 40.0, 60.0, None);
        check("Next in line; done in less than 1 s.", 0.4, 0.8, None);
        check("reading page 7 of 9", 20.0, 30.0, Some("ETA 20 s (p50), 30 s (p90)"));
        check("reading page 7 of 9", 1.2, 1.8, Some("ETA 2 s"));
    }
}
