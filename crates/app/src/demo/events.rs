//! Events for the triggers of the demo, a receiver for its webhooks, and the bound of its dead letters.

use std::time::Duration;

use client::wire::{QueueSettings, WebhookSettings};
use client::{Client, DeadLetterPage};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::cli::setup;

const EVENTS_EVERY: Duration = Duration::from_secs(5);
/// Unresolved dead letters that the demo keeps.
const DEAD_LETTERS: usize = 12;
const RECEIVER: &str = "pipeline-changed";

/// Declares queues, processes and triggers.
pub(super) async fn declare(client: &Client, url: &str) -> anyhow::Result<()> {
    setup::apply_text(client, include_str!("setup.yaml")).await?;
    let triggers = client.triggers(None).await?.items;
    let receiver = triggers.into_iter().find(|trigger| trigger.name == RECEIVER).and_then(|trigger| trigger.hook);
    if let Some(hook) = receiver {
        let url = format!("{url}{hook}");
        let webhook = Some(WebhookSettings { url, ..WebhookSettings::default() });
        client.set_queue("pipeline", &QueueSettings { webhook, ..QueueSettings::default() }).await?;
    }
    Ok(())
}

/// Publishes messages and sets keys until it is stopped.
pub(super) async fn publish(client: Client, stop: CancellationToken) {
    for round in 0u64.. {
        if let Err(error) = publish_round(&client, round).await {
            tracing::warn!(%error, "the demo cannot publish events");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(EVENTS_EVERY) => {}
        }
    }
}

async fn publish_round(client: &Client, round: u64) -> anyhow::Result<()> {
    let (region, total) = (["eu", "us"][(round % 2) as usize], round * 37 % 180);
    client.publish(&format!("orders:{region}"), &json!({ "id": round, "total": total })).await?;
    client.set_kv("prices", ["anchor", "rope", "winch"][(round % 3) as usize], &(80 + round * 7 % 20)).await?;
    resolve_old_letters(client).await
}

/// Resolves the oldest dead letters, so that the list of a demo that runs for days stays short.
async fn resolve_old_letters(client: &Client) -> anyhow::Result<()> {
    let page = DeadLetterPage { resolved: Some(false), limit: Some(100), ..DeadLetterPage::default() };
    for letter in client.dead_letters(&page).await?.items.into_iter().skip(DEAD_LETTERS) {
        let note = format!("The demo keeps the {DEAD_LETTERS} newest letters.");
        client.resolve_dead_letter(letter.id, "ignored", Some(&note)).await?;
    }
    Ok(())
}
