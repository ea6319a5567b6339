//! `windlass ping`: checks that a server is ready. Container health checks and start scripts call it.

use std::time::Duration;

use clap::Args;
use client::Client;
use serde_json::json;
use tokio::time::{Instant, sleep};

use super::exit::Exit;
use super::output::{self, Output};
use super::value;

/// The time between two attempts of `--wait`.
const INTERVAL: Duration = Duration::from_millis(200);

#[derive(Args)]
pub(crate) struct PingArgs {
    /// Try again for this long until the server is ready, for example `30s` [default: try once]
    #[arg(long, value_name = "DURATION", value_parser = value::duration)]
    wait: Option<Duration>,
}

pub(super) async fn run(client: &Client, args: &PingArgs, format: Output) -> anyhow::Result<Exit> {
    let started = Instant::now();
    let deadline = started + args.wait.unwrap_or_default();
    while let Err(error) = client.ready().await {
        if Instant::now() + INTERVAL > deadline {
            return Err(error.into());
        }
        sleep(INTERVAL).await;
    }
    output::done(format, "The server is ready.", &json!({ "ready": true }))?;
    Ok(Exit::Done)
}
