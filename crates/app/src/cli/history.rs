//! `windlass history`: who did what to subjects, runtimes, queues, triggers and tokens (X5).

use clap::Args;
use client::{Client, HistoryFilter};
use serde_json::Value;
use wire::TimelineItem;

use super::exit::Exit;
use super::output::{self, Listing, Output, cell, relative};

#[derive(Args)]
pub(crate) struct HistoryArgs {
    /// Only what was done to this subject.
    #[arg(long, conflicts_with = "runtime")]
    subject: Option<String>,
    /// Only what was done to this runtime.
    #[arg(long)]
    runtime: Option<String>,
    /// Items to list.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
    /// Where the page before ended.
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn run(client: &Client, args: HistoryArgs, format: Output) -> anyhow::Result<Exit> {
    let HistoryArgs { subject, runtime, limit, cursor } = args;
    let page = client.tenant_history(&HistoryFilter { subject, runtime, limit: Some(limit), cursor }).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["AT", "EVENT", "WHAT", "BY", "CAUSE"]);
    for item in &page.items {
        listing.row([
            cell(relative(item.at)),
            output::state_of_event(&item.event),
            cell(what(item)),
            cell(item.actor.as_deref().unwrap_or_default()),
            cell(item.cause.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// What it was done to: `subject node-7`, `token ci`.
fn what(item: &TimelineItem) -> String {
    if let Some(subject) = &item.subject {
        return format!("subject {subject}");
    }
    if let Some(runtime) = &item.runtime {
        return format!("runtime {runtime}");
    }
    let detail = item.detail.as_ref().and_then(|detail| serde_json::from_str::<Value>(detail.get()).ok());
    let named = ["token", "queue", "trigger"].into_iter().find_map(|noun| {
        let name = detail.as_ref()?.get(noun)?.as_str()?;
        Some(format!("{noun} {name}"))
    });
    named.unwrap_or_default()
}
