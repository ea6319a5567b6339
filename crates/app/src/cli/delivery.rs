//! `windlass delivery`: what was sent to whom, how it went, and sending it again (Q10).

use clap::{Args, Subcommand};
use client::{Client, DeliveryFilter};
use uuid::Uuid;
use wire::{DeliveryAttemptView, DeliveryDetails, DeliveryView};

use super::exit::{self, Exit};
use super::list;
use super::output::{self, Details, Output, cell, moment, relative};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List deliveries, newest first.
    List(ListArgs),
    /// Show one delivery with every attempt.
    Show { id: Uuid },
    /// Send deliveries again, at once, under the same id.
    Redeliver {
        #[arg(required = true)]
        id: Vec<Uuid>,
    },
}

#[derive(Args)]
pub(crate) struct ListArgs {
    /// One of pending, delivering, delivered, failed.
    #[arg(long)]
    state: Option<String>,
    /// Only what tells of this job.
    #[arg(long, value_name = "ID")]
    job: Option<Uuid>,
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Where the page before ended.
    #[arg(long)]
    cursor: Option<String>,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List(args) => list(client, args, format).await,
        Verb::Show { id } => show(&client.delivery(id).await?, format),
        Verb::Redeliver { id } => {
            // One that is not there must not keep the others back.
            let mut worst = Exit::Done;
            for id in id {
                match (client.redeliver(id).await, format) {
                    (Ok(delivery), Output::Json) => output::json(&delivery)?,
                    (Ok(delivery), Output::Table) => {
                        output::line(&format!("{id} {}", output::clean(&delivery.delivery.state)))?;
                    }
                    (Err(error), _) => worst = exit::report_of(error, &format!("cannot redeliver {id}")),
                }
            }
            Ok(worst)
        }
    }
}

async fn list(client: &Client, args: ListArgs, format: Output) -> anyhow::Result<Exit> {
    let ListArgs { state, job, limit, cursor } = args;
    let page = client.deliveries(&DeliveryFilter { state, job, limit, cursor }).await?;
    list::print(
        format,
        &page,
        "No delivery matches.",
        ["ID", "STATE", "WHAT", "URL", "ATTEMPT", "CREATED", "NOTE"],
        |delivery| {
            [
                cell(delivery.id),
                output::state(&delivery.state),
                cell(format!("{}.{}", delivery.source, delivery.op)),
                cell(&delivery.url),
                cell(format!("{}/{}", delivery.attempt, delivery.max_attempts)),
                cell(relative(delivery.created_at)),
                cell(note(delivery)),
            ]
        },
    )?;
    if let (Output::Table, Some(cursor)) = (format, &page.next_cursor) {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// The one thing worth knowing beside the state.
fn note(delivery: &DeliveryView) -> String {
    match (&delivery.circuit_open_until, &delivery.error, delivery.next_attempt_at) {
        (Some(until), _, _) => format!("its receiver is down, again {}", relative(*until)),
        (None, Some(error), Some(next)) => format!("{error}, again {}", relative(next)),
        (None, Some(error), None) => error.clone(),
        (None, None, _) => delivery.status.map(|status| status.to_string()).unwrap_or_default(),
    }
}

fn show(whole: &DeliveryDetails, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(whole)?;
        return Ok(Exit::Done);
    }
    let delivery = &whole.delivery;
    let mut details = Details::new();
    details
        .text("delivery", delivery.id)
        .add("state", output::state(&delivery.state))
        .text("message", &delivery.message_id)
        .text("what", format!("{}.{}", delivery.source, delivery.op))
        .maybe("job", delivery.job_id)
        .maybe("trigger", delivery.trigger_id)
        .text("url", &delivery.url)
        .text("method", &delivery.method)
        .text("attempt", format!("{} of {}", delivery.attempt, delivery.max_attempts))
        .text("created", moment(delivery.created_at))
        .maybe("next attempt", delivery.next_attempt_at.map(moment))
        .maybe("circuit open until", delivery.circuit_open_until.map(moment))
        .maybe("ended", delivery.ended_at.map(moment))
        .text("body", whole.body.get());
    for attempt in &whole.attempts {
        details.text(&format!("attempt {}", attempt.attempt), told(attempt));
    }
    details.print()?;
    Ok(Exit::Done)
}

fn told(attempt: &DeliveryAttemptView) -> String {
    let how = match (&attempt.error, attempt.status) {
        (Some(error), _) => error.clone(),
        (None, status) => status.map(|status| status.to_string()).unwrap_or_default(),
    };
    let said = attempt.response.as_deref().map(|response| format!(": {response}")).unwrap_or_default();
    format!("{} after {} ms, {how}{said}", moment(attempt.at), attempt.duration_ms)
}
