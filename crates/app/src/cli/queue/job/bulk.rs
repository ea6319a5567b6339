//! `windlass job cancel` and `windlass job retry` for many jobs: those that match a filter.

use client::{Client, ClientError, JobFilter};
use futures_util::{StreamExt, stream};
use serde_json::json;
use uuid::Uuid;
use wire::{JobView, RetryRequest};

use crate::cli::exit::{Exit, UsageError};
use crate::cli::output::{self, Listing, Output, cell, many, relative};
use crate::cli::value::past;

/// Jobs that one command changes at most.
pub(crate) const BULK_JOBS: usize = 10_000;
/// Requests that are sent at the same time.
const CONCURRENT: usize = 8;
/// Jobs that a dry run lists for people.
const SHOWN: usize = 20;
const PAGE: usize = 500;

const FIELDS: &str = "state, queue, kind, affinity, subject, run, tag, text, since or until";
const UNFINISHED: [&str; 5] = ["waiting", "scheduled", "queued", "loading", "working"];

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum BulkAction {
    Cancel,
    Retry,
}

impl BulkAction {
    /// The states of jobs that the action can change; the first is not always the default.
    fn states(self) -> &'static [&'static str] {
        match self {
            Self::Cancel => &UNFINISHED,
            Self::Retry => &["failed", "canceled", "succeeded"],
        }
    }

    fn default_states(self) -> &'static [&'static str] {
        match self {
            Self::Cancel => &UNFINISHED,
            // Repeating work that succeeded must be asked for.
            Self::Retry => &["failed"],
        }
    }

    pub(crate) fn past_tense(self) -> &'static str {
        match self {
            Self::Cancel => "canceled",
            Self::Retry => "retried",
        }
    }
}

/// Parses repeated `FIELD=VALUE` arguments. Several states are separated by commas.
pub(crate) fn parse(action: BulkAction, matching: &[String]) -> Result<Vec<JobFilter>, UsageError> {
    let mut filter = JobFilter { limit: Some(PAGE), ..JobFilter::default() };
    let mut states: Vec<String> = Vec::new();
    for text in matching {
        let pair = text.split_once('=').filter(|(_, value)| !value.is_empty());
        let (field, value) = pair.ok_or_else(|| UsageError(format!("--where must be FIELD=VALUE, not `{text}`")))?;
        let time = || past(value).map(Some).map_err(|error| UsageError(format!("--where {field}: {error}")));
        let text = || Some(value.to_owned());
        match field {
            "state" => states.extend(value.split(',').map(str::to_owned)),
            "queue" => filter.queue = text(),
            "kind" => filter.kind = text(),
            "affinity" => filter.affinity = text(),
            "subject" => filter.subject = text(),
            "run" => filter.run = text(),
            "tag" => filter.tag = text(),
            "text" => filter.text = text(),
            "since" => filter.since = time()?,
            "until" => filter.until = time()?,
            _ => return Err(UsageError(format!("--where does not support `{field}`; use {FIELDS}"))),
        }
    }
    if let Some(wrong) = states.iter().find(|state| !action.states().contains(&state.as_str())) {
        let possible = action.states().join(", ");
        return Err(UsageError(format!(
            "jobs in the state `{wrong}` cannot be {}; use {possible}",
            action.past_tense()
        )));
    }
    if states.is_empty() {
        states = action.default_states().iter().map(ToString::to_string).collect();
    }
    Ok(states.into_iter().map(|state| JobFilter { state: Some(state), ..filter.clone() }).collect())
}

/// Changes all jobs that match one of the filters, or shows them.
pub(crate) async fn run(
    client: &Client,
    action: BulkAction,
    filters: Vec<JobFilter>,
    dry_run: bool,
    format: Output,
) -> anyhow::Result<Exit> {
    let (jobs, may_have_more) = find(client, filters).await?;
    if dry_run {
        return show(action, &jobs, may_have_more, format);
    }
    let results: Vec<(Uuid, Result<Option<Uuid>, ClientError>)> = stream::iter(jobs.iter().map(|job| job.id))
        .map(|id| async move {
            let result = match action {
                BulkAction::Cancel => client.cancel(id).await.map(|_| None),
                BulkAction::Retry => client.retry(id, &RetryRequest::default()).await.map(|job| Some(job.id)),
            };
            (id, result)
        })
        .buffered(CONCURRENT)
        .collect()
        .await;
    let mut exit = Exit::Done;
    let (mut changed, mut unchanged) = (Vec::new(), 0);
    for (id, result) in results {
        match result {
            Ok(new) => changed.push(new.unwrap_or(id)),
            // The job ended or was retried in the meantime.
            Err(error) if error.status() == Some(409) => unchanged += 1,
            Err(error) => exit = crate::cli::exit::report_of(error, &format!("{id} was not {}", action.past_tense())),
        }
    }
    match format {
        Output::Json => output::json(&json!({
            "matched": jobs.len(), action.past_tense(): changed, "unchanged": unchanged, "more": may_have_more,
        }))?,
        Output::Table => {
            let unchanged = if unchanged > 0 { format!(", {unchanged} unchanged") } else { String::new() };
            output::line(&format!("{} {}{unchanged}.", many(changed.len(), "job"), action.past_tense()))?;
        }
    }
    note_more(may_have_more);
    Ok(exit)
}

/// Reads the matching jobs before any is changed, because a change moves jobs between the pages.
pub(crate) async fn find(client: &Client, filters: Vec<JobFilter>) -> Result<(Vec<JobView>, bool), ClientError> {
    let mut found = Vec::new();
    for mut filter in filters {
        loop {
            let page = client.jobs(&filter).await?;
            found.extend(page.items);
            if found.len() > BULK_JOBS {
                found.truncate(BULK_JOBS);
                return Ok((found, true));
            }
            filter.cursor = page.next_cursor;
            if filter.cursor.is_none() {
                break;
            }
        }
    }
    Ok((found, false))
}

fn show(action: BulkAction, jobs: &[JobView], may_have_more: bool, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        let ids: Vec<Uuid> = jobs.iter().map(|job| job.id).collect();
        output::json(&json!({"matched": jobs.len(), "ids": ids, "more": may_have_more, "dry_run": true}))?;
        return Ok(Exit::Done);
    }
    if !jobs.is_empty() {
        let mut listing = Listing::new(&["ID", "STATE", "QUEUE", "KIND", "CREATED"]);
        for job in jobs.iter().take(SHOWN) {
            let (id, created) = (cell(job.id), cell(relative(job.created_at)));
            listing.row([id, output::state(&job.state), cell(&job.queue), cell(&job.kind), created]);
        }
        listing.print()?;
        if jobs.len() > SHOWN {
            output::line(&format!("… and {} more", jobs.len() - SHOWN))?;
        }
    }
    output::line(&format!("{} would be {}.", many(jobs.len(), "job"), action.past_tense()))?;
    note_more(may_have_more);
    Ok(Exit::Done)
}

fn note_more(may_have_more: bool) {
    if may_have_more {
        output::note(&format!(
            "One command is limited to {BULK_JOBS} jobs; more may match. Repeat the command for those."
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states(action: BulkAction, matching: &[&str]) -> Result<Vec<String>, String> {
        let matching: Vec<String> = matching.iter().map(ToString::to_string).collect();
        let filters = parse(action, &matching).map_err(|error| error.to_string())?;
        Ok(filters.into_iter().filter_map(|filter| filter.state).collect())
    }

    #[test]
    fn a_filter_selects_only_jobs_that_the_action_can_change() {
        assert_eq!(states(BulkAction::Cancel, &["queue=mail"]).unwrap(), UNFINISHED);
        assert_eq!(states(BulkAction::Retry, &["queue=mail"]).unwrap(), ["failed"]);
        assert_eq!(states(BulkAction::Retry, &["state=failed,canceled"]).unwrap(), ["failed", "canceled"]);
        assert!(states(BulkAction::Cancel, &["state=failed"]).unwrap_err().contains("cannot be canceled"));
        assert!(states(BulkAction::Retry, &["state=queued"]).unwrap_err().contains("cannot be retried"));
    }

    #[test]
    fn an_invalid_filter_is_named() {
        assert!(states(BulkAction::Cancel, &["mail"]).unwrap_err().contains("FIELD=VALUE, not `mail`"));
        assert!(states(BulkAction::Cancel, &["queue="]).unwrap_err().contains("`queue=`"));
        assert!(states(BulkAction::Cancel, &["colour=red"]).unwrap_err().contains("`colour`"));
        assert!(states(BulkAction::Cancel, &["since=soon"]).unwrap_err().contains("--where since"));
    }
}
