//! Two models share one slot for a thousand jobs in random order. Prints the cost of running them in order of arrival
//! and the actual cost. See README.md.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;
use client::Client;
use client::wire::{
    HandlerSettings, JobRequest, MemberSettings, PoolRequest, PoolView, PortSettings, ProbeSettings, RuntimeRequest,
};
use rand::prelude::*;

const IMAGE: &str = "windlass-example/model:1.0.0";
const MODELS: [&str; 2] = ["llama", "mistral"];

#[derive(Parser)]
struct Args {
    /// Address of the server
    #[arg(long, env = "WINDLASS_URL", default_value = "http://127.0.0.1:7717")]
    url: String,
    /// Docker engine of the server
    #[arg(long, env = "WINDLASS_DOCKER_HOST", default_value = "unix:///var/run/docker.sock")]
    docker_host: String,
    /// Statically linked model server
    #[arg(long, value_name = "FILE")]
    model_server: PathBuf,
    #[arg(long, default_value_t = 1_000)]
    jobs: usize,
    /// Seconds that a model takes to load
    #[arg(long, value_name = "SECONDS", default_value_t = 2.0)]
    load_s: f64,
    /// Seconds for which jobs of the other model may be passed over
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    starvation_s: i64,
    /// Seed for the order of the jobs
    #[arg(long, default_value_t = 7)]
    seed: u64,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let client = Client::new(&args.url)?;
    make_image(&args.docker_host, &args.model_server)?;
    for model in MODELS {
        client.set_runtime(model, &runtime(model, args.load_s)).await?;
    }
    let order = order(args.jobs, args.seed);
    let in_order_of_arrival = 1 + order.windows(2).filter(|pair| pair[0] != pair[1]).count();
    let jobs: Vec<JobRequest> = order.iter().map(|model| job(model)).collect();
    for part in jobs.chunks(1_000) {
        client.enqueue_batch(part.to_vec()).await?;
    }
    let before = client.pool("gpu").await.map_or((0, 0), |pool| (pool.swaps_made, pool.loads));
    let began = Instant::now();
    client.set_pool("gpu", &pool(args.starvation_s)).await?;
    let done = drained(&client).await?;
    let took = began.elapsed();
    let (swaps, loads) = (done.swaps_made - before.0, done.loads - before.1);
    let load_s = done.load_s.unwrap_or(args.load_s);
    println!("{} jobs for {} models on one slot; a swap takes {load_s:.1} s", args.jobs, MODELS.len());
    println!(
        "  in order of arrival       {in_order_of_arrival:>5} swaps  {:>7.1} min of loading",
        minutes(in_order_of_arrival, load_s)
    );
    println!("  by affinity               {swaps:>5} swaps  {:>7.1} min of loading", minutes(loads as usize, load_s));
    println!("  finished in {:.1} s", took.as_secs_f64());
    Ok(())
}

fn minutes(loads: usize, load_s: f64) -> f64 {
    loads as f64 * load_s / 60.0
}

fn order(jobs: usize, seed: u64) -> Vec<&'static str> {
    let mut rng = StdRng::seed_from_u64(seed);
    (0..jobs).map(|_| MODELS[rng.random_range(0..MODELS.len())]).collect()
}

fn runtime(model: &str, load_s: f64) -> RuntimeRequest {
    RuntimeRequest {
        image: IMAGE.into(),
        command: Some(vec!["/model-server".into(), model.into(), load_s.to_string()]),
        ports: Some(vec![PortSettings { container: 8080, host: None, address: None }]),
        probe: Some(ProbeSettings { path: "/health".into(), port: 8080 }),
        // The model server has no state to save.
        stop_grace_s: Some(0),
        ..RuntimeRequest::default()
    }
}

fn job(model: &str) -> JobRequest {
    let payload = serde_json::json!({"model": model, "messages": [{"role": "user", "content": "hello"}]});
    JobRequest {
        queue: "gpu".into(),
        kind: "chat".into(),
        affinity: Some(model.into()),
        payload: serde_json::value::to_raw_value(&payload).ok(),
        ..JobRequest::default()
    }
}

fn pool(starvation_s: i64) -> PoolRequest {
    let member = |model: &&str| MemberSettings { affinity: (*model).into(), runtime: (*model).into(), stay: None };
    PoolRequest {
        slots: 1,
        members: MODELS.iter().map(member).collect(),
        starvation_s: Some(starvation_s),
        handler: Some(HandlerSettings {
            path: Some("/v1/chat/completions".into()),
            at_once: Some(8),
            ..HandlerSettings::default()
        }),
        ..PoolRequest::default()
    }
}

/// Waits until the queue is empty and returns the pool.
async fn drained(client: &Client) -> anyhow::Result<PoolView> {
    loop {
        let queue = client.queue("gpu").await?;
        if queue.counts.queued + queue.counts.running + queue.counts.scheduled == 0 {
            return Ok(client.pool("gpu").await?);
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

/// Imports an image that contains only the model server.
fn make_image(host: &str, model_server: &Path) -> anyhow::Result<()> {
    let folder = tempfile::tempdir()?;
    std::fs::copy(model_server, folder.path().join("model-server"))
        .with_context(|| format!("cannot read {}; build it first", model_server.display()))?;
    let mut tar = Command::new("tar").arg("-C").arg(folder.path()).args(["-c", "."]).stdout(Stdio::piped()).spawn()?;
    let import = Command::new("docker")
        .args(["--host", host, "import", "-", IMAGE])
        .stdin(tar.stdout.take().context("tar has an output")?)
        .stdout(Stdio::null())
        .status()
        .context("cannot run `docker`, which is needed to create the image")?;
    ensure!(tar.wait()?.success() && import.success(), "cannot create the image");
    Ok(())
}
