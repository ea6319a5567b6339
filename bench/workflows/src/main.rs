//! The works of the harness for durable workflow engines: `bench/workflows` runs it beside other engines.
//!
//! Arguments: `w1 WORKFLOWS STEPS`, `w2 RUNS`, `w3 STEPS`, `w4 CHILDREN`, `w5 EVENTS`, `w6 SLEEPERS SECONDS`, and
//! `w7-start` and `w7-resume WORKFLOWS STEPS`, of which the first is killed. Each prints one line of JSON. The program
//! starts a server, the binary WINDLASS_BIN on DATABASE_URL, writes its process id to WINDLASS_SERVER_PIDFILE, and stops
//! it at its end. The worker is in this process.

use std::collections::HashSet;
use std::error::Error;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use client::wire::{JobRequest, RawValue};
use client::{Client, HandlerError, Worker, Workflow};
use futures_util::stream::{self, StreamExt, TryStreamExt};
use serde::Serialize;
use serde_json::json;
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

type Failure = Box<dyn Error + Send + Sync>;

const ADDRESS: &str = "127.0.0.1:7727";
const QUEUE: &str = "works";
const STARTS_AT_ONCE: usize = 64;

/// What handlers report to the measurement in the same process.
static WAITING: Mutex<Option<HashSet<String>>> = Mutex::new(None);
static RESUMED: Mutex<Option<Instant>> = Mutex::new(None);
static ASLEEP: Mutex<Option<HashSet<String>>> = Mutex::new(None);
static WOKEN: Mutex<Vec<f64>> = Mutex::new(Vec::new());

#[derive(serde::Deserialize, Serialize)]
struct Steps {
    name: String,
    steps: usize,
}

async fn steps(workflow: Workflow) -> Result<String, HandlerError> {
    let Steps { name, steps } = workflow.payload()?;
    for step in 0..steps {
        let name = &name;
        workflow
            .step(&format!("s{step}"), || async move {
                record_execution(name, step);
                Ok("r".repeat(198))
            })
            .await?;
    }
    Ok("ok".into())
}

async fn parent(workflow: Workflow) -> Result<String, HandlerError> {
    let children: usize = workflow.payload()?;
    let requests = (0..children)
        .map(|child| request("steps", &Steps { name: format!("child-{child}"), steps: 1 }))
        .collect::<Result<_, _>>()?;
    workflow.gather_requests::<String>(requests).await?;
    Ok("ok".into())
}

async fn waiter(workflow: Workflow) -> Result<String, HandlerError> {
    locked(&WAITING).get_or_insert_default().insert(workflow.payload()?);
    workflow.wait_for_event::<u64>("go").await?;
    *locked(&RESUMED) = Some(Instant::now());
    Ok("ok".into())
}

async fn sleeper(workflow: Workflow) -> Result<String, HandlerError> {
    let (name, until): (String, client::wire::Timestamp) = workflow.payload()?;
    locked(&ASLEEP).get_or_insert_default().insert(name);
    workflow.sleep_until(until).await?;
    locked(&WOKEN).push(unix_seconds());
    Ok("ok".into())
}

/// Appends a line per execution of a step, so that the harness can count repeated ones.
fn record_execution(name: &str, step: usize) {
    if let Ok(path) = std::env::var("EFFECTS")
        && let Ok(mut file) = std::fs::OpenOptions::new().append(true).open(path)
        && let Err(error) = file.write_all(format!("{name}:{step}\n").as_bytes())
    {
        eprintln!("cannot record an execution: {error}");
    }
}

fn locked<T>(value: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    value.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn request(kind: &str, payload: &impl Serialize) -> Result<JobRequest, serde_json::Error> {
    let payload: Box<RawValue> = serde_json::value::to_raw_value(payload)?;
    Ok(JobRequest { queue: QUEUE.into(), kind: kind.into(), payload: Some(payload), ..JobRequest::default() })
}

#[derive(Clone)]
struct Works {
    client: Client,
}

impl Works {
    /// Starts a workflow, or finds the one that was started with the same name.
    async fn start(&self, name: &str, kind: &str, payload: &impl Serialize) -> Result<Uuid, Failure> {
        Ok(self.client.enqueue_idempotent(name, &request(kind, payload)?).await?.id)
    }

    async fn result(&self, job: Uuid) -> Result<(), Failure> {
        loop {
            let job = self.client.wait_for_job(job, Duration::from_secs(50)).await?;
            if job.finished_at.is_some() {
                return match job.result {
                    Some(result) if result.get() == "\"ok\"" => Ok(()),
                    _ => Err(format!("job {} ended without its result", job.id).into()),
                };
            }
        }
    }

    async fn run(&self, name: String, kind: &str, payload: &impl Serialize) -> Result<(), Failure> {
        let job = self.start(&name, kind, payload).await?;
        self.result(job).await
    }

    async fn run_steps(&self, name: String, steps: usize) -> Result<(), Failure> {
        let payload = Steps { name: name.clone(), steps };
        self.run(name, "steps", &payload).await
    }

    async fn run_many(&self, prefix: &str, workflows: usize, at_once: usize, steps: usize) -> Result<(), Failure> {
        stream::iter(0..workflows)
            .map(|index| self.run_steps(format!("{prefix}-{index}"), steps))
            .buffer_unordered(at_once)
            .try_collect()
            .await
    }

    async fn event(&self, index: usize) -> Result<f64, Failure> {
        let name = format!("w5-{index}");
        let job = self.start(&name, "waiter", &name).await?;
        while !locked(&WAITING).as_ref().is_some_and(|waiting| waiting.contains(&name)) {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        // The wait is durable after this.
        tokio::time::sleep(Duration::from_millis(40)).await;
        let sent = Instant::now();
        self.client.send_event(job, "go", &1, None).await?;
        self.result(job).await?;
        let resumed = locked(&RESUMED).take().ok_or("the workflow did not resume")?;
        Ok((resumed - sent).as_secs_f64() * 1e3)
    }
}

fn report(work: &str, figures: serde_json::Value) -> Result<(), Failure> {
    let mut line = json!({
        "peer": "windlass",
        "cfg": std::env::var("CFG").unwrap_or_default(),
        "work": work,
        "worker_rss_kb": memory_kb("VmHWM")?,
    });
    if let (Some(line), Some(figures)) = (line.as_object_mut(), figures.as_object()) {
        line.extend(figures.clone());
    }
    println!("{line}");
    Ok(())
}

fn memory_kb(member: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(member)).ok_or("no such member")?;
    Ok(line.trim_matches(|c: char| !c.is_ascii_digit()).parse()?)
}

fn unix_seconds() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64()
}

fn percentile(figures: &mut [f64], percent: usize) -> Option<f64> {
    figures.sort_by(f64::total_cmp);
    figures.get((figures.len() * percent / 100).min(figures.len().saturating_sub(1))).copied()
}

async fn measure(works: &Works, arguments: &[String]) -> Result<(), Failure> {
    let number = |index: usize| arguments.get(index).ok_or("a number is missing")?.parse().map_err(Failure::from);
    let (work, count): (&str, usize) = (&arguments[0], number(1)?);
    if work != "w7-resume" {
        works.run_many("warm", 24, 8, 3).await?;
    }
    println!("begin");
    let begun = Instant::now();
    match work {
        "w1" => {
            let steps = number(2)?;
            works.run_many("w1", count, count, steps).await?;
            let (steps, seconds) = (count * steps, begun.elapsed().as_secs_f64());
            report(work, json!({"n": steps, "secs": seconds, "value": steps as f64 / seconds, "unit": "steps/s"}))
        }
        "w2" => {
            let mut figures = Vec::new();
            for index in 0..count {
                let started = Instant::now();
                works.run_steps(format!("w2-{index}"), 3).await?;
                figures.push(started.elapsed().as_secs_f64() * 1e3);
            }
            let (p50, p99) = (percentile(&mut figures, 50), percentile(&mut figures, 99));
            report(work, json!({"n": count, "value": p50, "p99": p99, "unit": "ms"}))
        }
        "w3" => {
            works.run_steps("w3".into(), count).await?;
            report(work, json!({"n": count, "value": begun.elapsed().as_secs_f64(), "unit": "s"}))
        }
        "w4" => {
            works.run("w4".into(), "parent", &count).await?;
            report(work, json!({"n": count, "value": begun.elapsed().as_secs_f64(), "unit": "s"}))
        }
        "w5" => {
            let mut figures = Vec::new();
            for index in 0..count {
                figures.push(works.event(index).await?);
            }
            let (p50, p99) = (percentile(&mut figures, 50), percentile(&mut figures, 99));
            report(work, json!({"n": count, "value": p50, "p99": p99, "unit": "ms"}))
        }
        "w6" => sleepers(works, count, number(2)? as u64).await,
        "w7-start" => {
            let steps = number(2)?;
            let jobs: Vec<Uuid> = stream::iter(0..count)
                .map(|index| async move {
                    let name = format!("w7-{index}");
                    works.start(&name, "steps", &Steps { name: name.clone(), steps }).await
                })
                .buffered(STARTS_AT_ONCE)
                .try_collect()
                .await?;
            println!("started");
            futures_util::future::try_join_all(jobs.iter().map(|job| works.result(*job))).await?;
            Ok(())
        }
        "w7-resume" => {
            works.run_many("w7", count, count, number(2)?).await?;
            let seconds = begun.elapsed().as_secs_f64();
            report("w7", json!({"n": count, "completed": count, "value": seconds, "unit": "s"}))
        }
        other => Err(format!("unknown work {other}").into()),
    }
}

/// Workflows that sleep until one instant, and how late each resumes.
async fn sleepers(works: &Works, count: usize, seconds: u64) -> Result<(), Failure> {
    let begun = Instant::now();
    let until = client::wire::Timestamp::from_second((unix_seconds() as i64) + seconds as i64)?;
    let at = until.as_second() as f64;
    let jobs: Vec<Uuid> = stream::iter(0..count)
        .map(|index| async move {
            let name = format!("w6-{index}");
            works.start(&name, "sleeper", &(&name, until)).await
        })
        .buffered(STARTS_AT_ONCE)
        .try_collect()
        .await?;
    let started = begun.elapsed().as_secs_f64();
    tokio::time::sleep(Duration::from_secs_f64((at - unix_seconds() - 0.5).max(0.0))).await;
    let (memory, asleep) = (memory_kb("VmRSS")?, locked(&ASLEEP).as_ref().map_or(0, HashSet::len));
    println!("asleep");
    for job in jobs {
        works.result(job).await?;
    }
    let mut late: Vec<f64> = locked(&WOKEN).iter().map(|woken| woken - at).collect();
    let early = late.iter().filter(|late| **late < -0.05).count();
    let (p50, last) = (percentile(&mut late, 50), percentile(&mut late, 100));
    let figures = json!({
        "n": count, "asleep": asleep, "woken": late.len(), "start_s": started, "value": last, "p50": p50, "early": early,
        "unit": "s late (last)", "worker_rss_asleep_kb": memory,
    });
    report("w6", figures)
}

/// Starts the server, unless an earlier process of this program left it running.
async fn serve(client: &Client, work: &str) -> Result<Option<Child>, Failure> {
    let database = std::env::var("DATABASE_URL")?;
    if work == "w7-resume" {
        client.ready().await?;
        return Ok(None);
    }
    let mut command = Command::new(std::env::var("WINDLASS_BIN")?);
    command.arg("serve").arg("--listen").arg(ADDRESS).stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    if let Some(path) = database.strip_prefix("sqlite://") {
        for suffix in ["", "-wal", "-shm"] {
            let file = format!("{path}{suffix}");
            if std::fs::exists(&file)? {
                std::fs::remove_file(file)?;
            }
        }
        command.arg("--database").arg(format!("sqlite:{path}"));
    } else {
        command.arg("--database").arg(database);
    }
    let mut server = command.spawn()?;
    std::fs::write(std::env::var("WINDLASS_SERVER_PIDFILE")?, server.id().to_string())?;
    while client.ready().await.is_err() {
        if let Some(status) = server.try_wait()? {
            return Err(format!("the server exited: {status}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(Some(server))
}

fn stop_server() -> Result<(), Failure> {
    let id = std::fs::read_to_string(std::env::var("WINDLASS_SERVER_PIDFILE")?)?;
    Command::new("kill").args(["-TERM", id.trim()]).status()?;
    let process = format!("/proc/{}", id.trim());
    while std::fs::exists(&process)? {
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(())
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let work = arguments.first().ok_or("the work is missing")?;
    let client = Client::new(&format!("http://{ADDRESS}"))?;
    let server = serve(&client, work).await?;
    let worker = Worker::builder(client.clone())
        .queue(QUEUE)
        .concurrency(STARTS_AT_ONCE)
        .lease_s(10)
        .workflow("steps", steps)
        .workflow("parent", parent)
        .workflow("waiter", waiter)
        .workflow("sleeper", sleeper)
        .build()?;
    let stop = CancellationToken::new();
    let running = {
        let stop = stop.clone();
        tokio::spawn(async move { worker.run(stop).await })
    };
    let measured = measure(&Works { client }, &arguments).await;
    stop.cancel();
    running.await??;
    if let Some(mut server) = server {
        Command::new("kill").args(["-TERM", &server.id().to_string()]).status()?;
        server.wait()?;
    } else {
        stop_server()?;
    }
    measured
}
