//! Following a job until it ends: `job push --wait` and `job watch`.

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
use crate::cli::ttfs::FirstSignal;

const EVERY: Duration = Duration::from_secs(1);
/// How often in a row the server may fail to answer before we give up.
const FAILURES: u32 = 30;
/// The bar counts in thousandths.
const WHOLE: u64 = 1_000;

/// Waits for the end and prints the result alone, so that a script can use it.
pub(super) async fn wait(client: &Client, id: Uuid, timeout: Option<Duration>, format: Output) -> anyhow::Result<Exit> {
    let job = match follow(client, id, timeout).await? {
        Followed::Ended(job) => job,
        Followed::TimedOut => {
            output::note(&format!("The job has not ended yet and goes on: windlass job watch {id}"));
            return Ok(Exit::TimedOut);
        }
        Followed::Interrupted => {
            output::note(&format!("The job goes on: windlass job watch {id}"));
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
    Ok(told(&job))
}

/// Follows the job and shows it once it has ended.
pub(super) async fn watch(client: &Client, id: Uuid, format: Output) -> anyhow::Result<Exit> {
    match follow(client, id, None).await? {
        Followed::Ended(job) => {
            show::job(&job, format)?;
            Ok(told(&job))
        }
        Followed::TimedOut => Ok(Exit::TimedOut),
        Followed::Interrupted => Ok(Exit::Interrupted),
    }
}

fn told(job: &JobView) -> Exit {
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
    let line = Line::new(id);
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

async fn until_ended(client: &Client, id: Uuid, line: &Line) -> Result<JobView, ClientError> {
    let mut failures = 0;
    let mut first = FirstSignal::start(client, id);
    // The first look does not wait: something is to be seen at once.
    let mut wait = Duration::ZERO;
    loop {
        match client.job_when_ended(id, std::mem::replace(&mut wait, EVERY)).await {
            Ok(job) if matches!(job.state.as_str(), "succeeded" | "failed" | "canceled") => return Ok(job),
            Ok(job) => {
                failures = 0;
                // The signal tells more, but nothing that waiting depends on.
                match client.told_signal(id).await {
                    Ok(Some(told)) => {
                        line.show(&job, Some(&told.signal));
                        first.rendered(&told).await;
                    }
                    Ok(None) => line.show(&job, None),
                    Err(error) => {
                        line.show(&job, None);
                        first.failed(&error).await;
                    }
                }
            }
            Err(error) if failures < FAILURES && may_pass(&error) => {
                failures += 1;
                line.say("the server cannot be reached; trying again");
                sleep(EVERY).await;
            }
            Err(error) => return Err(error),
        }
    }
}

fn may_pass(error: &ClientError) -> bool {
    match error {
        ClientError::Unreachable { .. } => true,
        ClientError::Problem(problem) => problem.status >= 500 || problem.status == 429,
        _ => false,
    }
}

/// One line that changes on a terminal; elsewhere, a new line for each change.
enum Line {
    Live(ProgressBar),
    Log { id: Uuid, last: std::cell::RefCell<String> },
}

impl Line {
    fn new(id: Uuid) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self::Log { id, last: std::cell::RefCell::default() };
        }
        let bar = ProgressBar::new(WHOLE);
        bar.set_style(spinner());
        bar.enable_steady_tick(Duration::from_millis(120));
        bar.set_message(format!("{id}"));
        Self::Live(bar)
    }

    fn show(&self, job: &JobView, signal: Option<&SignalView>) {
        let progress = job.progress.filter(|_| job.state == "working");
        if let Self::Live(bar) = self {
            bar.set_style(if progress.is_some() { progress_bar() } else { spinner() });
            bar.set_position(progress.map_or(0, |progress| (progress * WHOLE as f64) as u64));
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

/// What the signal says; without one, what the job's own row says.
fn describe(job: &JobView, signal: Option<&SignalView>) -> String {
    let mut parts = vec![job.state.clone()];
    match signal {
        Some(signal) => {
            parts.extend(job.phase.clone());
            parts.push(signal.summary.clone());
            parts.extend(signal.eta_seconds.and_then(|eta| untold(eta, &signal.summary)));
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

/// When it will be done, unless the sentence says so. The server's own does, and rounds as a sentence does: beside it another
/// number would only seem to disagree. A worker's may not.
fn untold(eta: EtaRange, summary: &str) -> Option<String> {
    if summary.ends_with(" left.") || summary.contains("; done in ") {
        return None;
    }
    let [soon, late] = [eta.p50, eta.p90].map(|seconds| output::span(SignedDuration::from_secs(seconds.ceil() as i64)));
    Some(if soon == late { format!("{soon} left") } else { format!("{soon} to {late} left") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(summary: &str, p50: f64, p90: f64, told: Option<&str>) {
        assert_eq!(untold(EtaRange { p50, p90 }, summary).as_deref(), told, "{summary}");
    }

    #[test]
    fn s3_the_time_left_is_told_once_and_as_one_number_where_it_is_one() {
        check("Attempt 1 of 3 has been running for 10 s; about 1 s left.", 1.96, 30.0, None);
        check("2nd in line; done in about 40 s.", 40.0, 60.0, None);
        check("Next in line; done in less than 1 s.", 0.4, 0.8, None);
        check("reading page 7 of 9", 20.0, 30.0, Some("20 s to 30 s left"));
        check("reading page 7 of 9", 1.2, 1.8, Some("2 s left"));
    }
}
