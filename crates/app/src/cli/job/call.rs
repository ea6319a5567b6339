//! `windlass job call` and `windlass job abandoned`: a job and its answer at once, and answers nobody waited for (Q5).

use clap::Args;
use client::Client;
use wire::JobRequest;

use super::push;
use super::show;
use crate::cli::exit::Exit;
use crate::cli::output::{self, Listing, Output, cell, relative};

#[derive(Args)]
pub(crate) struct CallArgs {
    #[arg(long)]
    queue: String,
    #[arg(long)]
    kind: String,
    /// JSON, @FILE, or - for stdin.
    #[arg(long, value_name = "JSON")]
    payload: Option<String>,
    /// What a worker must have loaded to run it.
    #[arg(long)]
    affinity: Option<String>,
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i64>,
    /// How long to wait for the answer; 30 unless set.
    #[arg(long, value_name = "SECONDS")]
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
    let answer = client.call(&request).await?;
    match format {
        Output::Json => output::json(&answer)?,
        Output::Table => {
            if let Some(result) = &answer.result {
                output::line(&show::pretty(result.get()))?;
            }
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn abandoned(client: &Client, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.abandoned(cursor).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("Every call was answered while its caller was there.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["JOB", "STATE", "QUEUE", "KIND", "CALLED", "ANSWER"]);
    for execution in &page.items {
        let answer = match (&execution.result, &execution.error) {
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
            cell(answer),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}
