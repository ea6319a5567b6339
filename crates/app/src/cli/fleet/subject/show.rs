//! Terminal output for subjects.

use client::Client;
use wire::{BackoffView, Page, StandingView, SubjectView, TimelineItem};

use crate::cli::exit::Exit;
use crate::cli::output::{self, Details, Listing, Output, cell, moment, relative, relative_maybe};

/// Number of recent events shown for a subject.
const RECENT_EVENTS: usize = 8;

pub(super) fn list(page: &Page<SubjectView>, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No subjects match. Create one with `windlass subject set ID NAME=VALUE`.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["ID", "KIND", "FACTS", "CHANGED", "BACKOFFS"]);
    for subject in &page.items {
        let backoffs: Vec<String> = subject.backoffs.iter().map(backoff_text).collect();
        listing.row([
            cell(&subject.id),
            cell(subject.kind.as_deref().unwrap_or_default()),
            cell(subject.facts.len()),
            cell(relative(subject.updated_at)),
            cell(backoffs.join("; ")),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// For example `install in 5 m: boom`.
fn backoff_text(backoff: &BackoffView) -> String {
    let process = if backoff.process == "*" { "every process" } else { &backoff.process };
    let until = backoff.until.map_or("until released".into(), relative);
    format!("{process} {until}: {}", backoff.cause)
}

/// Shows identity and state, then backoffs, work, facts and recent events, in the order in which an operator needs
/// them.
pub(super) async fn card(client: &Client, subject: &SubjectView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(subject)?;
        return Ok(Exit::Done);
    }
    let mut head = Details::new();
    head.text("subject", &subject.id).maybe("kind", subject.kind.as_ref());
    head.text("state", state(subject)).text("since", moment(subject.created_at));
    head.print()?;
    if !subject.backoffs.is_empty() {
        output::line("\nBACKOFFS")?;
        let mut listing = Listing::new(&["PROCESS", "UNTIL", "BY", "CAUSE"]);
        for backoff in &subject.backoffs {
            listing.row([
                cell(if backoff.process == "*" { "every process" } else { &backoff.process }),
                cell(backoff.until.map_or("released".into(), moment)),
                cell(short(&backoff.by)),
                cell(&backoff.cause),
            ]);
        }
        listing.print()?;
    }
    let processes = subject.processes.as_deref().unwrap_or_default();
    let work = subject.work.as_deref().unwrap_or_default();
    if !(processes.is_empty() && work.is_empty()) {
        output::line("\nWORK")?;
        let mut listing = Listing::new(&["PROCESS", "STATE", "WHEN", "JOB"]);
        for one in work {
            let when = one.started_at.map_or("waiting for a worker".into(), |at| format!("started {}", relative(at)));
            listing.row([cell(&one.process), output::state(&one.state), cell(when), cell(one.job_id)]);
        }
        for process in processes.iter().filter(|process| process.standing != "active") {
            listing.row([cell(&process.process), cell(&process.standing), cell(when(process)), cell("")]);
        }
        listing.print()?;
    }
    if !subject.facts.is_empty() {
        output::line("\nFACTS")?;
        let mut listing = Listing::new(&["NAME", "REPORTED", "VALUE"]);
        for (name, fact) in &subject.facts {
            listing.row([cell(name), cell(relative(fact.at)), cell(fact.value.get())]);
        }
        listing.print()?;
    }
    let recent = client.subject_history(&subject.id, Some(RECENT_EVENTS), None).await?;
    output::line("\nRECENT EVENTS")?;
    rows(&recent.items)?;
    if recent.next_cursor.is_some() {
        output::note(&format!("Full history: windlass subject history {}", subject.id));
    }
    Ok(Exit::Done)
}

/// A one-line summary of the subject's state.
fn state(subject: &SubjectView) -> String {
    if let Some(lockout) = subject.backoffs.iter().find(|backoff| backoff.process == "*") {
        return format!("LOCKED OUT by {}: {}", short(&lockout.by), lockout.cause);
    }
    let running = subject.work.iter().flatten().find(|work| work.started_at.is_some());
    if let Some(work) = running {
        return format!("{} is running", work.process);
    }
    match subject.backoffs.len() {
        0 => "available".into(),
        1 => format!("{} in backoff", subject.backoffs[0].process),
        n => format!("{n} processes in backoff"),
    }
}

fn when(process: &StandingView) -> String {
    match process.standing.as_str() {
        "eligible" => format!("since {}", relative_maybe(process.since)),
        "ineligible" => process.check_at.map_or(String::new(), |at| format!("rechecked {}", relative(at))),
        _ => process.ready_at.map_or("until released".into(), |at| format!("ready {}", relative(at))),
    }
}

pub(super) fn backoff(subject: &str, backoff: &BackoffView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(backoff)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("subject", subject)
        .text("process", if backoff.process == "*" { "every process" } else { &backoff.process })
        .text("until", backoff.until.map_or("released".into(), moment))
        .text("by", &backoff.by)
        .text("cause", &backoff.cause);
    details.print()?;
    Ok(Exit::Done)
}

pub(super) fn history(page: &Page<TimelineItem>, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(page)?;
        return Ok(Exit::Done);
    }
    rows(&page.items)?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

fn rows(items: &[TimelineItem]) -> anyhow::Result<()> {
    let mut listing = Listing::new(&["AT", "EVENT", "PROCESS", "BY", "CAUSE"]);
    for item in items {
        let worker = item.worker.map(|worker| short(&format!("worker {worker}")));
        let process = match item.process.as_deref() {
            Some("*") => "every process",
            other => other.unwrap_or_default(),
        };
        listing.row([
            cell(format!("{:.3}", item.at)),
            output::state_of_event(&item.event),
            cell(process),
            cell(item.actor.clone().or(worker).unwrap_or_default()),
            cell(cause_of(item)),
        ]);
    }
    listing.print()
}

/// The cause of an event with its message, or the changed facts.
fn cause_of(item: &TimelineItem) -> String {
    #[derive(serde::Deserialize)]
    struct Detail {
        message: Option<String>,
        until: Option<String>,
        facts: Option<serde_json::Map<String, serde_json::Value>>,
    }
    let detail = item.detail.as_ref().and_then(|detail| serde_json::from_str::<Detail>(detail.get()).ok());
    let cause = item.cause.clone().unwrap_or_default();
    let Some(Detail { message, until, facts }) = detail else { return cause };
    if let Some(facts) = facts {
        let pairs: Vec<String> = facts.iter().map(|(name, value)| format!("{name}={value}")).collect();
        return pairs.join(" ");
    }
    let message = message.filter(|message| !message.trim().is_empty());
    let message = message.or_else(|| until.map(|until| format!("until {}", until.split('.').next().unwrap_or(&until))));
    match message {
        Some(message) => format!("{cause}: {message}"),
        None => cause,
    }
}

/// Shortens ids (`worker 01a1dda7…`): this output is for reading, not for copying ids.
fn short(by: &str) -> String {
    match by.split_once(' ') {
        Some((noun @ ("worker" | "job"), id)) if id.len() == 36 => format!("{noun} {}…", &id[..8]),
        _ => by.to_owned(),
    }
}
