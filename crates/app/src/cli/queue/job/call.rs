//! `windlass job call` and `windlass job abandoned`: synchronous calls, and their abandoned responses.

use clap::Args;
use client::{Client, ClientError};
use wire::JobRequest;

use super::push;
use super::show;
use crate::cli::exit::Exit;
use crate::cli::output::{self, Listing, Output, cell, relative};
use crate::cli::value::seconds;

#[derive(Args)]
pub(crate) struct CallArgs {
    #[arg(long)]
    queue: String,
    #[arg(long)]
    kind: String,
    /// Payload: JSON, @FILE, or - for stdin
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// What a worker must have loaded to run the job
    #[arg(long)]
    affinity: Option<String>,
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// Seconds to wait for the response [default: 30]
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    timeout_s: Option<i64>,
}

pub(super) async fn run(client: &Client, args: CallArgs, format: Output) -> anyhow::Result<Exit> {
    let request = JobRequest {
        queue: args.queue,
        kind: args.kind,
        payload: args.payload.as_deref().map(|text| push::json_argument("--payload", text)).transpose()?,
        affinity: args.affinity,
        priority: args.priority,
        timeout_s: args.timeout_s,
        ..JobRequest::default()
    };
    let response = client.call(&request).await.map_err(with_job)?;
    match format {
        Output::Json => output::json(&response)?,
        Output::Table => {
            if let Some(result) = &response.result {
                output::line(&show::pretty(result.get()))?;
            }
        }
    }
    Ok(Exit::Done)
}

/// Adds the job's id and error code to an error, so that the user can look up the job.
fn with_job(error: ClientError) -> anyhow::Error {
    let job = match &error {
        ClientError::Problem(problem) => problem.job_id.map(|job| match &problem.error {
            // A failure without a message has its code as the detail.
            Some(error) if error.code != problem.detail => format!("job {job} failed with {}", error.code),
            Some(_) => format!("job {job} failed"),
            None => format!("job {job}"),
        }),
        _ => None,
    };
    match job {
        Some(job) => anyhow::Error::from(error).context(job),
        None => error.into(),
    }
}

pub(super) async fn abandoned(client: &Client, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.abandoned(cursor).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No abandoned responses.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["JOB", "STATE", "QUEUE", "KIND", "CALLED", "RESPONSE"]);
    for execution in &page.items {
        let response = match (&execution.result, &execution.error) {
            (_, Some(error)) => format!("{}: {}", error.code, error.message),
            (Some(result), None) => result.get().chars().take(60).collect(),
            (None, None) => String::new(),
        };
        listing.row([
            cell(execution.job_id),
            output::state(&execution.state),
            cell(&execution.queue),
            cell(&execution.kind),
            cell(relative(execution.called_at)),
            cell(response),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;
    use wire::{JobError, Problem};

    fn message(detail: &str, job_id: Option<Uuid>, code: Option<&str>) -> String {
        let error = |code: &str| JobError { code: code.into(), message: String::new(), retryable: true };
        let (detail, error) = (detail.into(), code.map(error));
        let problem = Problem { detail, job_id, error, ..Problem::default() };
        format!("{:#}", with_job(ClientError::Problem(Box::new(problem))))
    }

    #[test]
    fn a_failed_call_names_its_job_and_its_code() {
        let id = Uuid::nil();
        assert_eq!(message("no good", Some(id), Some("exit_7")), format!("job {id} failed with exit_7: no good"));
        assert_eq!(message("exit_7", Some(id), Some("exit_7")), format!("job {id} failed: exit_7"));
        assert_eq!(
            message("the handler is not done yet", Some(id), None),
            format!("job {id}: the handler is not done yet")
        );
        assert_eq!(message("must be JSON", None, None), "must be JSON");
    }
}
