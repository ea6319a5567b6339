//! Terminal output for jobs.

use client::Client;
use jiff::SignedDuration;
use serde::Serialize;
use serde_json::Value;
use uuid::Uuid;
use wire::{CancelView, EstimateView, EtaRange, HistoryItem, JobView, JournalView, Page, SignalView, WhyView};

use crate::cli::exit::Exit;
use crate::cli::output::{self, Details, Listing, Output, cell, clean, moment, relative, span};

/// A job with its signal, as JSON.
#[derive(Serialize)]
struct JobWithSignal<'a> {
    #[serde(flatten)]
    job: &'a JobView,
    signal: Option<&'a SignalView>,
}

/// Shows a job with its signal, which expires some time after the end.
pub(super) async fn job_with_signal(client: &Client, id: Uuid, format: Output) -> anyhow::Result<Exit> {
    let job = client.job(id).await?;
    let signal = client.signal(id).await?;
    if format == Output::Json {
        output::json(&JobWithSignal { job: &job, signal: signal.as_ref() })?;
        return Ok(Exit::Done);
    }
    details(&job, signal.as_ref()).print()?;
    Ok(Exit::Done)
}

pub(super) fn job(job: &JobView, format: Output) -> anyhow::Result<Exit> {
    match format {
        Output::Json => output::json(job)?,
        Output::Table => details(job, None).print()?,
    }
    Ok(Exit::Done)
}

fn details(job: &JobView, signal: Option<&SignalView>) -> Details {
    let mut details = Details::new();
    details
        .text("job", job.id)
        .add("state", output::state(&job.state))
        .text("queue", &job.queue)
        .text("kind", &job.kind)
        .text("attempt", format!("{} of {}", job.attempt, job.max_attempts))
        .maybe("phase", job.phase.as_ref())
        .maybe("progress", job.progress.map(percent))
        .maybe("affinity", job.affinity.as_ref())
        .maybe("priority", Some(job.priority).filter(|priority| *priority != 0))
        .maybe("subject", job.subject.as_ref())
        .maybe("process", job.process.as_ref())
        .maybe("run", job.run.as_ref())
        .maybe("unique key", job.unique_key.as_ref())
        .maybe("concurrency key", job.concurrency_key.as_ref())
        .maybe("tags", Some(job.tags.join(", ")).filter(|tags| !tags.is_empty()))
        .maybe("retry", job.retry.map(crate::cli::queue::queues::retry))
        .maybe("timeout", job.timeout_s.map(|timeout| format!("{timeout} s")))
        .maybe("deadline", job.deadline_s.map(|deadline| format!("{deadline} s")))
        .maybe("trace", job.traceparent.as_ref())
        .maybe("webhook", job.webhook_url.as_ref())
        .maybe("worker", job.worker)
        .maybe("retry of", job.parent)
        .maybe("retried as", job.retried_as)
        .text("created by", &job.principal)
        .text("created", moment(job.created_at));
    if matches!(job.state.as_str(), "scheduled") {
        details.text("due", moment(job.run_at));
    }
    details
        .maybe("started", job.started_at.map(moment))
        .maybe("finished", job.finished_at.map(moment))
        .maybe("duration", job.started_at.zip(job.finished_at).map(|(start, end)| span(end.duration_since(start))))
        .text("payload", pretty(job.payload.get()))
        .maybe("result", job.result.as_ref().map(|result| pretty(result.get())))
        .maybe("error", error(job));
    if let Some(signal) = signal {
        let basis = signal.eta_basis.as_ref();
        details
            .text("signal", &signal.summary)
            .maybe("ETA", signal.eta_seconds.map(eta))
            .maybe("finishes by", basis.map(|basis| format!("{} (90 %)", moment(basis.finishes_by))))
            .maybe("ETA basis", basis.map(|basis| &basis.text))
            .maybe("prediction", signal.predicted.as_ref().and_then(|predicted| described(predicted.get())))
            .maybe("likely cause", signal.signature.as_ref().and_then(|signature| described(signature.get())));
    }
    details
}

fn eta(eta: EtaRange) -> String {
    let [p50, p90] = [eta.p50, eta.p90].map(|seconds| span(SignedDuration::from_secs(seconds.ceil() as i64)));
    if p50 == p90 { p50 } else { format!("{p50} (p50), {p90} (p90)") }
}

/// A signature of a prediction or a failure: cause, action and confidence.
fn described(json: &str) -> Option<String> {
    let value: Value = serde_json::from_str(json).ok()?;
    let text = |name: &str| value[name].as_str().or_else(|| value["outcome"][name].as_str()).map(str::to_owned);
    let confidence = value["confidence"].as_f64().map(|share| format!("confidence {:.0} %", share * 100.0));
    let cause = text("cause").or_else(|| text("likely_cause"));
    let action = text("action").or_else(|| text("suggested_action"));
    let parts: Vec<String> = [cause, action, confidence].into_iter().flatten().collect();
    Some(if parts.is_empty() { pretty(json) } else { parts.join("; ") })
}

/// Indented JSON.
pub(in crate::cli) fn pretty(json: &str) -> String {
    serde_json::from_str::<Value>(json)
        .and_then(|value| serde_json::to_string_pretty(&value))
        .unwrap_or_else(|_| json.to_owned())
}

pub(super) fn error(job: &JobView) -> Option<String> {
    job.error.as_ref().map(|error| match error.message.trim() {
        "" => error.code.clone(),
        message => format!("{}: {message}", error.code),
    })
}

pub(super) fn percent(progress: f64) -> String {
    format!("{:.0} %", progress * 100.0)
}

pub(super) fn jobs(page: &Page<JobView>, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No jobs match.");
    } else {
        let mut listing = Listing::new(&["ID", "STATE", "QUEUE", "KIND", "ATTEMPT", "CREATED", "NOTE"]);
        for job in &page.items {
            listing.row([
                cell(job.id),
                output::state(&job.state),
                cell(&job.queue),
                cell(&job.kind),
                cell(format!("{}/{}", job.attempt, job.max_attempts)),
                cell(relative(job.created_at)),
                cell(note(job)),
            ]);
        }
        listing.print()?;
    }
    if page.partial {
        output::note("Only the newest jobs were searched; add a queue, a kind or a time range to search all jobs.");
    }
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// The most relevant detail for a job's state.
fn note(job: &JobView) -> String {
    match (job.state.as_str(), &job.error) {
        ("scheduled", None) => format!("due {}", relative(job.run_at)),
        ("scheduled", Some(error)) => format!("{}, retry {}", error.code, relative(job.run_at)),
        ("failed", Some(error)) => error.code.clone(),
        ("working" | "loading", _) => {
            let phase = job.phase.clone().unwrap_or_default();
            let progress = job.progress.map(percent).unwrap_or_default();
            format!("{phase} {progress}").trim().to_owned()
        }
        ("queued", _) => job.affinity.clone().unwrap_or_default(),
        _ => String::new(),
    }
}

pub(super) fn why(why: &WhyView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(why)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("reason", &why.reason)
        .text("detail", &why.detail)
        .maybe("until", why.until.map(moment))
        .maybe("position", why.position)
        .maybe("ETA", why.eta_seconds.map(|seconds| format!("{seconds} s")));
    details.print()?;
    Ok(Exit::Done)
}

pub(super) fn estimate(estimate: &EstimateView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(estimate)?;
        return Ok(Exit::Done);
    }
    let share = |share: f64| format!("{:.0} %", share * 100.0);
    let basis = estimate.eta_basis.as_ref();
    let mut details = Details::new();
    details
        .text("estimate", &estimate.summary)
        .maybe("finishes by", basis.map(|basis| format!("{} (90 %)", moment(basis.finishes_by))))
        .maybe("basis", basis.map(|basis| &basis.text))
        .maybe("p90 held for", basis.and_then(|basis| basis.p90_held).map(share))
        .text("ahead", estimate.ahead)
        .text("workers", estimate.workers);
    details.print()?;
    Ok(Exit::Done)
}

pub(super) fn history(page: &Page<HistoryItem>, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(page)?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["AT", "EVENT", "ATTEMPT", "BY", "CAUSE"]);
    for item in &page.items {
        let worker = item.worker.map(|worker| format!("worker {worker}"));
        listing.row([
            cell(format!("{:.3}", item.at)),
            cell(&item.event),
            cell(item.attempt),
            cell(item.actor.clone().or(worker).unwrap_or_default()),
            cell([item.cause.as_deref(), item.message.as_deref()].into_iter().flatten().collect::<Vec<_>>().join(": ")),
        ]);
    }
    listing.print()?;
    Ok(Exit::Done)
}

pub(super) fn journal(journal: &JournalView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(journal)?;
        return Ok(Exit::Done);
    }
    if journal.items.is_empty() {
        output::note("The journal is empty.");
    } else {
        let mut listing =
            Listing::new(&["KEY", "OPERATION", "STATUS", "ATTEMPT", "DURATION", "SIZE", "RECORDED", "NOTE"]);
        for entry in &journal.items {
            let error = entry.error.as_ref().map(|error| error.code.as_str());
            let last = entry.attempts.last().filter(|_| entry.resolved_at.is_none());
            listing.row([
                cell(&entry.key),
                cell(&entry.op),
                cell(&entry.status),
                cell(entry.attempt),
                cell(entry.duration_ms.map(|millis| span(SignedDuration::from_millis(millis))).unwrap_or_default()),
                cell(output::bytes(entry.bytes)),
                cell(format!("{:.3}", entry.resolved_at.unwrap_or(entry.created_at))),
                cell(error.or(last.map(|failed| failed.code.as_str())).unwrap_or_default()),
            ]);
        }
        listing.print()?;
    }
    journal.warnings.iter().for_each(|warning| output::note(&format!("Warning: {warning}.")));
    if let Some(cursor) = &journal.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

pub(super) fn canceled(canceled: &CancelView, format: Output) -> anyhow::Result<()> {
    match format {
        Output::Json => output::json(canceled),
        Output::Table => output::line(&format!("{} {}", canceled.id, clean(&canceled.state))),
    }
}
