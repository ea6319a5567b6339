//! LISTEN/NOTIFY between nodes: one connection per node, past any pooler.
//!
//! No transaction that does work runs NOTIFY, because that would serialize all commits of the server. Hints are
//! collected, sent after the commit, and may be lost.

use std::future::poll_fn;
use std::time::Duration;

use domain::{Name, TenantId, WorkerId};
use tokio_postgres::{AsyncMessage, Client};

use super::tls::Address;
use crate::db::notifier::{Notifier, Topic};
use crate::error::StoreError;
use crate::store::Store;

const CHANNEL: &str = "windlass_hint";
/// PostgreSQL limits a payload to just under 8000 bytes.
const PAYLOAD_BYTES: usize = 7_000;
const RECONNECT: Duration = Duration::from_secs(1);

impl Store {
    /// Exchanges hints with other nodes until dropped. Reconnects when the connection breaks.
    pub async fn relay_hints(&self, url: &str) {
        let mut is_interrupted = false;
        loop {
            let result = relay(self.notifier(), url, &mut is_interrupted).await;
            self.notifier().set_listening(false);
            // One warning per outage.
            if !std::mem::replace(&mut is_interrupted, true) {
                let error = result.err().map_or_else(|| "it was closed".into(), |error| error.to_string());
                tracing::warn!(error, "cannot receive hints from other nodes: the connection broke; reconnecting");
            }
            // Hints may have been lost: every waiter queries once.
            self.notifier().notify_all();
            tokio::time::sleep(RECONNECT).await;
        }
    }
}

async fn relay(notifier: &Notifier, url: &str, is_interrupted: &mut bool) -> Result<(), StoreError> {
    let Address { mut config, tls } = Address::parse(url)?;
    config.application_name("windlass hints").connect_timeout(Duration::from_secs(5));
    let (client, mut connection) = config.connect(tls).await.map_err(broken)?;
    let receive = async {
        loop {
            match poll_fn(|context| connection.poll_message(context)).await {
                Some(Ok(AsyncMessage::Notification(message))) => {
                    message.payload().lines().filter_map(parse).for_each(|topic| notifier.notify_local(&topic));
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error),
                None => return Ok(()),
            }
        }
    };
    tokio::select! {
        result = receive => result.map_err(broken),
        result = send(notifier, &client, is_interrupted) => result.map_err(broken),
    }
}

fn broken(error: tokio_postgres::Error) -> StoreError {
    StoreError::Unavailable { reason: error.to_string(), source: Some(Box::new(error)) }
}

async fn send(notifier: &Notifier, client: &Client, is_interrupted: &mut bool) -> Result<(), tokio_postgres::Error> {
    client.batch_execute(&format!("listen {CHANNEL}")).await?;
    notifier.set_listening(true);
    if std::mem::take(is_interrupted) {
        tracing::info!("receiving hints from other nodes again");
    }
    notifier.notify_all();
    loop {
        let mut lines = String::new();
        for topic in notifier.outgoing().await {
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
        | Topic::Batches
        | Topic::StoppingRuns => None,
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
