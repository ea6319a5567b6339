//! Webhook delivery by the real binary: killed during delivery, and restricted to allowed networks.

use std::collections::BTreeSet;

use client::wire::WebhookSettings;
use client::{Client, DeliveryFilter};
use serde_json::json;
use testkit::receiver::{Behavior, Receiver};

use crate::support::{Serve, Server, eventually, job, on_both};

const JOBS: usize = 10;

async fn count_in_state(client: &Client, state: &str) -> usize {
    let filter = DeliveryFilter { state: Some(state.into()), ..DeliveryFilter::default() };
    client.deliveries(&filter).await.map_or(0, |page| page.items.len())
}

/// Enqueues and cancels jobs with a webhook, which sends one request for each job.
async fn cancel_jobs(client: &Client, url: String) {
    for n in 0..JOBS {
        let webhook = WebhookSettings { url: url.clone(), ..WebhookSettings::default() };
        let mut request = job("hooked", json!(n));
        request.webhook = Some(webhook);
        let id = client.enqueue(&request).await.expect("the job is accepted").id;
        client.cancel(id).await.expect("the job is canceled");
    }
}

/// Requirement Q10.
#[tokio::test(flavor = "multi_thread")]
async fn no_webhook_is_lost_when_the_server_is_killed_during_delivery() {
    on_both(async |fixture| {
        let receiver = Receiver::start(Behavior::Hang).await;
        let mut server = Serve::on(&fixture).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        cancel_jobs(&server.client(), receiver.url()).await;
        receiver.wait_for(2).await;
        server.program.kill().await;
        receiver.set_behavior(Behavior::Respond(200));
        let again = Serve::on(&fixture).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = again.client();
        eventually("all requests are delivered", async || {
            (count_in_state(&client, "delivered").await == JOBS).then_some(())
        })
        .await;
        let ids: BTreeSet<String> =
            receiver.requests().iter().filter_map(|seen| seen.header("webhook-id").map(str::to_owned)).collect();
        assert_eq!(ids.len(), JOBS, "each delivery has its own id, which a retry reuses");
    })
    .await;
}

/// Requirement Q10.
#[tokio::test(flavor = "multi_thread")]
async fn a_webhook_to_loopback_is_refused_unless_its_network_is_allowed() {
    on_both(async |fixture| {
        let canary = Receiver::start(Behavior::Respond(200)).await;
        let closed = Server::start(&fixture).await;
        cancel_jobs(&closed.client(), canary.url()).await;
        let client = closed.client();
        eventually("all deliveries have failed", async || {
            (count_in_state(&client, "failed").await == JOBS).then_some(())
        })
        .await;
        assert_eq!(canary.connections(), 0);
        let page = client.deliveries(&DeliveryFilter::default()).await.expect("deliveries are listed");
        let error = page.items[0].error.clone().unwrap_or_default();
        assert!(error.contains("private or special"), "{error}");
        drop(closed);
        let open = Serve::on(&fixture).env("WINDLASS_ALLOW_NETWORK", "127.0.0.0/8").start().await;
        open.client().redeliver(page.items[0].id).await.expect("the delivery is queued again");
        canary.wait_for(1).await;
    })
    .await;
}
