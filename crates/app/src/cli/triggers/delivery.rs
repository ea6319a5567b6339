//! `windlass delivery`: shows and repeats outgoing HTTP requests.

use clap::{Args, Subcommand};
use client::{Client, DeliveryFilter};
use wire::{DeliveryAttemptView, DeliveryDetails, DeliveryView};

use crate::cli::exit;
use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Output, cell, moment, relative};

#[derive(Subcommand)]
pub(crate) enum DeliveryVerb {
    /// List deliveries, newest first
    List(DeliveryListArgs),
    /// Show a delivery with every attempt
    Show { id: IdArgument },
    /// Send deliveries again immediately, with the same message id
    Redeliver {
        #[arg(required = true)]
        id: Vec<IdArgument>,
    },
}

#[derive(Args)]
pub(crate) struct DeliveryListArgs {
    /// State: pending, delivering, delivered or failed
    #[arg(long)]
    state: Option<String>,
    /// Show only deliveries about this job
    #[arg(long, value_name = "ID")]
    job: Option<IdArgument>,
    #[arg(long, value_name = "N")]
    limit: Option<usize>,
    /// Continue from the cursor of the previous page
    #[arg(long)]
    cursor: Option<String>,
}

pub(crate) async fn run(client: &Client, verb: DeliveryVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        DeliveryVerb::List(args) => list(client, args, format).await,
        DeliveryVerb::Show { id } => show(&client.delivery(id.delivery(client).await?).await?, format),
        DeliveryVerb::Redeliver { id } => {
            // An unknown id must not prevent the redelivery of the others.
            let mut worst = Exit::Done;
            for id in id {
                match (redeliver(client, &id).await, format) {
                    (Ok(delivery), Output::Json) => output::json(&delivery)?,
                    (Ok(delivery), Output::Table) => {
                        output::line(&format!("{} {}", delivery.delivery.id, output::clean(&delivery.delivery.state)))?;
                    }
                    (Err(error), _) => worst = exit::report_of(error, &format!("cannot redeliver {id}")),
                }
            }
            Ok(worst)
        }
    }
}

async fn redeliver(client: &Client, id: &IdArgument) -> anyhow::Result<DeliveryDetails> {
    Ok(client.redeliver(id.delivery(client).await?).await?)
}

async fn list(client: &Client, args: DeliveryListArgs, format: Output) -> anyhow::Result<Exit> {
    let DeliveryListArgs { state, job, limit, cursor } = args;
    let job = match job {
        Some(job) => Some(job.job(client).await?),
        None => None,
    };
    let page = client.deliveries(&DeliveryFilter { state, job, limit, cursor }).await?;
    list::print(
        format,
        &page,
        "No deliveries match.",
        ["ID", "STATE", "EVENT", "URL", "ATTEMPT", "CREATED", "NOTE"],
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
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

/// The most relevant detail for a delivery's state.
fn note(delivery: &DeliveryView) -> String {
    match (&delivery.circuit_open_until, &delivery.error, delivery.next_attempt_at) {
        (Some(until), _, _) => format!("circuit open, retry {}", relative(*until)),
        (None, Some(error), Some(next)) => format!("{error}, retry {}", relative(next)),
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
        .text("event", format!("{}.{}", delivery.source, delivery.op))
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
        details.text(&format!("attempt {}", attempt.attempt), describe_attempt(attempt));
    }
    details.print()?;
    Ok(Exit::Done)
}

fn describe_attempt(attempt: &DeliveryAttemptView) -> String {
    let outcome = match (&attempt.error, attempt.status) {
        (Some(error), _) => error.clone(),
        (None, status) => status.map(|status| status.to_string()).unwrap_or_default(),
    };
    let response = attempt.response.as_deref().map(|response| format!(": {response}")).unwrap_or_default();
    format!("{} after {} ms, {outcome}{response}", moment(attempt.at), attempt.duration_ms)
}
