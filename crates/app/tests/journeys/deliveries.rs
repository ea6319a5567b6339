//! Webhooks through the real program: killed in the middle of sending, and refused where they may not go (Q10).

use std::collections::BTreeSet;

use client::wire::WebhookSettings;
use client::{Client, DeliveryFilter};
use serde_json::json;
use testkit::receiver::{Manner, Receiver};

use crate::support::{Serve, Server, job, on_both, until};

const JOBS: usize = 10;

async fn in_state(client: &Client, state: &str) -> usize {
    let filter = DeliveryFilter { state: Some(state.into()), ..DeliveryFilter::default() };
    client.deliveries(&filter).await.map_or(0, |page| page.items.len())
}

/// Jobs that are called off at once: each owes its webhook one request.
async fn call_off(client: &Client, url: String) {
    for n in 0..JOBS {
        let webhook = WebhookSettings { url: url.clone(), ..WebhookSettings::default() };
        let mut request = job("hooked", json!(n));
        request.webhook = Some(webhook);
        let id = client.enqueue(&request).await.expect("the job is accepted").id;
        client.cancel(id).await.expect("it is canceled");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn q10_no_webhook_is_lost_when_the_server_is_killed_while_it_sends() {
    on_both(async |place| {
        let receiver = Receiver::start(Manner::Hang).await;
        let mut server = Serve::on(&place).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        call_off(&server.client(), receiver.url()).await;
        until("requests are under way", async || (receiver.seen().len() >= 2).then_some(())).await;
        server.program.kill().await;
        receiver.behave(Manner::Answer(200));
        let again = Serve::on(&place).env("WINDLASS_ALLOW_PRIVATE", "true").start().await;
        let client = again.client();
        until("all are delivered", async || (in_state(&client, "delivered").await == JOBS).then_some(())).await;
        let ids: BTreeSet<String> =
            receiver.seen().iter().filter_map(|seen| seen.header("webhook-id").map(str::to_owned)).collect();
        assert_eq!(ids.len(), JOBS, "each came under its own id, the interrupted ones under the same again");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q10_a_webhook_to_this_machine_is_refused_unless_it_is_allowed() {
    on_both(async |place| {
        let canary = Receiver::start(Manner::Answer(200)).await;
        let closed = Server::start(&place).await;
        call_off(&closed.client(), canary.url()).await;
        let client = closed.client();
        until("all are refused", async || (in_state(&client, "failed").await == JOBS).then_some(())).await;
        assert_eq!(canary.connections(), 0);
        let page = client.deliveries(&DeliveryFilter::default()).await.expect("they are listed");
        let error = page.items[0].error.clone().unwrap_or_default();
        assert!(error.contains("private or special"), "{error}");
        drop(closed);
        let open = Serve::on(&place).env("WINDLASS_ALLOW_NETWORK", "127.0.0.0/8").start().await;
        open.client().redeliver(page.items[0].id).await.expect("it is sent again");
        canary.saw(1).await;
    })
    .await;
}
