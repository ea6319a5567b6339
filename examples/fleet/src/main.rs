//! Runs the fleet example against a server until every machine is installed or locked out.

use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use client::wire::SubjectView;
use client::{Client, ClientError};
use fleet::machines::Fleet;
use fleet::{processes, work};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Simulate a fleet of machines managed by Windlass
#[derive(Parser)]
struct Args {
    /// Address of the server
    #[arg(long, env = "WINDLASS_URL", default_value = "http://127.0.0.1:7717")]
    url: String,
    #[arg(long, default_value_t = 12)]
    machines: usize,
    /// Seconds without a heartbeat after which a machine is recovered
    #[arg(long, default_value_t = 600)]
    silence_s: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let client = Client::new(&args.url)?;
    let (tasks, stop) = (TaskTracker::new(), CancellationToken::new());
    let fleet = Fleet::new(args.machines);
    processes::declare(&client, args.silence_s).await.context("cannot declare the processes")?;
    let beat = Duration::from_millis(args.silence_s * 1_000 / 10);
    fleet.arrive(&client, &args.url, beat, &tasks, &stop).await?;
    let worker = work::worker(client.clone(), &fleet)?;
    tasks.spawn({
        let stop = stop.clone();
        async move { worker.run(stop).await }
    });
    let mut clock = tokio::time::interval(Duration::from_secs(1));
    loop {
        tokio::select! {
            _ = tokio::signal::ctrl_c() => break,
            _ = clock.tick() => {}
        }
        let machines = machines(&client).await?;
        let is = |state: &str| {
            let expected = format!("\"{state}\"");
            let in_state = machines
                .iter()
                .filter(|machine| machine.facts.get("state").is_some_and(|fact| fact.value.get() == expected));
            in_state.count()
        };
        let locked_out =
            machines.iter().filter(|machine| machine.backoffs.iter().any(|backoff| backoff.until.is_none())).count();
        println!(
            "{} provided, {} started, {} installed, {locked_out} locked out",
            is("provided"),
            is("started"),
            is("installed")
        );
        if is("installed") + locked_out == args.machines {
            break;
        }
    }
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    Ok(())
}

/// Returns all machines, page by page.
async fn machines(client: &Client) -> Result<Vec<SubjectView>, ClientError> {
    let mut all = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let page = client.subjects(Some("machine"), None, cursor.as_deref()).await?;
        all.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(all);
        }
    }
}
