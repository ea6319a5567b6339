//! `windlass failures`: shows failure groups and replays their jobs.

use clap::Subcommand;
use client::Client;
use wire::FailureView;

use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Listing, Output, cell, relative, spark};

#[derive(Subcommand)]
pub(crate) enum FailureVerb {
    /// List failure groups, most recently seen first
    List,
    /// Show a failure group
    Show { group: IdArgument },
    /// Replay the failed jobs of a group, each as a new job
    Replay {
        group: IdArgument,
        /// Maximum number of jobs, newest first [default: 500]
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
    },
}

pub(crate) async fn run(client: &Client, verb: FailureVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        FailureVerb::List => list(client, format).await,
        FailureVerb::Show { group } => show(&client.failure(group.failure(client).await?).await?, format),
        FailureVerb::Replay { group, limit } => {
            let replayed = client.replay_failures(group.failure(client).await?, limit).await?;
            match format {
                Output::Json => output::json(&replayed)?,
                Output::Table => {
                    for job in &replayed.jobs {
                        output::line(&job.to_string())?;
                    }
                    match replayed.jobs.len() {
                        1 => output::note("Replayed 1 job."),
                        jobs => output::note(&format!("Replayed {jobs} jobs.")),
                    }
                }
            }
            Ok(Exit::Done)
        }
    }
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.failures(cursor).await).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("No failures.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["GROUP", "COUNT", "LAST", "LAST 24 H", "TREND", "KIND", "CODE", "MESSAGE"]);
    for failure in &page.items {
        listing.short_row([
            cell(failure.group_id),
            cell(failure.count),
            cell(relative(failure.last_seen)),
            cell(spark(&failure.hourly)),
            cell(&failure.trend),
            cell(&failure.kind),
            cell(&failure.error_code),
            cell(&failure.message_pattern),
        ]);
    }
    listing.print()?;
    Ok(Exit::Done)
}

fn show(failure: &FailureView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(failure)?;
        return Ok(Exit::Done);
    }
    let more = failure.subject_count - failure.subjects.len() as i64;
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let mut details = Details::new();
    details
        .text("group", failure.group_id)
        .text("code", &failure.error_code)
        .text("message", &failure.message_pattern)
        .text("example", &failure.example)
        .text("kind", &failure.kind)
        .maybe("phase", failure.phase.as_ref())
        .text("count", failure.count)
        .text("last 24 h", spark(&failure.hourly))
        .text("trend", &failure.trend)
        .text("first", output::moment(failure.first_seen))
        .text("last", output::moment(failure.last_seen))
        .text("last job", failure.last_job_id)
        .maybe("subjects", (failure.subject_count > 0).then(|| failure.subjects.join(", ") + more.as_str()))
        .maybe("median time to repair", failure.repair_p50_seconds.map(|seconds| format!("{seconds:.0} s")))
        .maybe("signature", failure.signature_id)
        .maybe("recurred", failure.recurred_at.map(output::moment));
    details.print()?;
    Ok(Exit::Done)
}
