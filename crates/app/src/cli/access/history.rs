//! `windlass history`: changes to subjects, runtimes, queues, triggers and tokens, and the principals that made them.

use clap::Args;
use client::{Client, HistoryFilter};
use serde_json::Value;
use wire::TimelineItem;

use crate::cli::exit::Exit;
use crate::cli::output;
use crate::cli::output::{Listing, Output, cell, relative};

#[derive(Args)]
pub(crate) struct HistoryArgs {
    /// Show only events of this subject
    #[arg(long, conflicts_with = "runtime")]
    subject: Option<String>,
    /// Show only events of this runtime
    #[arg(long)]
    runtime: Option<String>,
    /// Maximum number of events
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
    /// Continue from the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) async fn run(client: &Client, args: HistoryArgs, format: Output) -> anyhow::Result<Exit> {
    let HistoryArgs { subject, runtime, limit, cursor } = args;
    let page = client.tenant_history(&HistoryFilter { subject, runtime, limit: Some(limit), cursor }).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["AT", "EVENT", "OBJECT", "BY", "CAUSE"]);
    for item in &page.items {
        listing.row([
            cell(relative(item.at)),
            output::state_of_event(&item.event),
            cell(object(item)),
            cell(item.actor.as_deref().unwrap_or_default()),
            cell(item.cause.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()?;
    if let Some(cursor) = &page.next_cursor {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// The object of an event: `subject node-7`, `token ci`.
fn object(item: &TimelineItem) -> String {
    if let Some(subject) = &item.subject {
        return format!("subject {subject}");
    }
    if let Some(runtime) = &item.runtime {
        return format!("runtime {runtime}");
    }
    let detail = item.detail.as_ref().and_then(|detail| serde_json::from_str::<Value>(detail.get()).ok());
    let object = ["token", "queue", "trigger"].into_iter().find_map(|noun| {
        let name = detail.as_ref()?.get(noun)?.as_str()?;
        Some(format!("{noun} {name}"))
    });
    object.unwrap_or_default()
}
