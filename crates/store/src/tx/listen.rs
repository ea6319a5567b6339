//! Hints between nodes on PostgreSQL: one connection of its own, past any pooler, that listens and notifies.
//!
//! Nothing is notified inside a transaction that does work: that would serialise every commit of the server. Hints are
//! gathered, sent after the fact, and may be lost.

use std::future::poll_fn;
use std::time::Duration;

use domain::{Name, TenantId, WorkerId};
use tokio_postgres::{AsyncMessage, Client};

use super::tls::Address;
use crate::error::StoreError;
use crate::hints::{Hints, Topic};
use crate::store::Store;

const CHANNEL: &str = "windlass_hint";
/// PostgreSQL takes just under 8000 bytes.
const PAYLOAD_BYTES: usize = 7_000;
const RECONNECT: Duration = Duration::from_secs(1);

impl Store {
    /// Carries hints between this node and the others until dropped; a broken connection is made anew.
    pub async fn relay_hints(&self, url: &str) {
        let mut told = false;
        loop {
            let result = relay(self.hints(), url, &mut told).await;
            self.hints().set_relayed(false);
            // Once, however long it lasts.
            if !std::mem::replace(&mut told, true) {
                let error = result.err().map_or_else(|| "it was closed".into(), |error| error.to_string());
                tracing::warn!(error, "hints of other nodes are not heard: their connection broke and is made anew");
            }
            // What was missed meanwhile is found by everyone looking once.
            self.hints().wake_all();
            tokio::time::sleep(RECONNECT).await;
        }
    }
}

async fn relay(hints: &Hints, url: &str, told: &mut bool) -> Result<(), StoreError> {
    let Address { mut config, tls } = Address::parse(url)?;
    config.application_name("windlass hints").connect_timeout(Duration::from_secs(5));
    let (client, mut connection) = config.connect(tls).await.map_err(broken)?;
    let receive = async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(message))) => {
                    message.payload().lines().filter_map(parse).for_each(|topic| hints.wake(&topic));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    };
    tokio::select! {
        result = receive => result.map_err(broken),
        result = send(hints, &client, told) => result.map_err(broken),
    }
}

fn broken(error: tokio_postgres::Error) -> StoreError {
    StoreError::Unavailable { reason: error.to_string(), source: Some(Box::new(error)) }
}

async fn send(hints: &Hints, client: &Client, told: &mut bool) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("listen {CHANNEL}")).await?;
    hints.set_relayed(true);
    if std::mem::take(told) {
        tracing::info!("hints of other nodes are heard again");
    }
    hints.wake_all();
    loop {
        let mut lines = String::new();
        for topic in hints.outgoing().await {
            let Some(line) = format(&topic) else { continue };
            if lines.len() + line.len() >= PAYLOAD_BYTES {
                notify(client, &lines).await?;
                lines.clear();
            }
            lines.push_str(&line);
            lines.push('\n');
        }
        notify(client, &lines).await?;
    }
}

async fn notify(client: &Client, lines: &str) -> Result<(), tokio_postgres::Error> {
    if lines.is_empty() {
        return Ok(());
    }
    client.execute("select pg_notify($1, $2)", &[&CHANNEL, &lines]).await.map(|_| ())
}

fn format(topic: &Topic) -> Option<String> {
    match topic {
        Topic::Ready(tenant, queue) => Some(format!("ready {} {queue}", tenant.0)),
        Topic::Worker(worker) => Some(format!("worker {worker}")),
        Topic::Ended(_)
        | Topic::Due
        | Topic::Deliveries
        | Topic::Scan
        | Topic::Outbox
        | Topic::Runtimes
        | Topic::Batches => None,
    }
}

fn parse(line: &str) -> Option<Topic> {
    let (what, rest) = line.split_once(' ')?;
    match what {
        "ready" => {
            let (tenant, queue) = rest.split_once(' ')?;
            Some(Topic::Ready(TenantId(tenant.parse().ok()?), Name::new(queue).ok()?))
        }
        "worker" => Some(Topic::Worker(WorkerId::new(rest.parse().ok()?))),
        _ => None,
    }
}
