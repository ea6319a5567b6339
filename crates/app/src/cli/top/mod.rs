//! `windlass top`: a live view of queues, workers and jobs in the terminal.

mod frame;
mod screen;

use std::collections::{BTreeMap, VecDeque};
use std::io::IsTerminal;
use std::time::Duration;

use clap::Args;
use client::{Client, ClientError, JobFilter};
use jiff::Timestamp;
use serde_json::json;
use tokio::io::AsyncReadExt;
use tokio::time::{Instant, sleep_until};
use wire::{JobView, QueueView, RetryRequest, WorkerView};

use super::exit::Exit;
use super::list;
use super::output::{self, Output};
use super::value::duration;
use frame::frame;
use screen::Screen;

/// Samples of a queue that a sparkline shows.
const SAMPLES: usize = 30;
/// Jobs that are fetched for each list.
const JOBS: usize = 30;
/// Size of a frame that is not shown on a terminal.
const PLAIN: (u16, u16) = (120, 60);

#[derive(Args)]
pub(crate) struct TopArgs {
    /// Time between updates
    #[arg(long, value_name = "DURATION", value_parser = duration, default_value = "2s")]
    interval: Duration,
    /// Print one view and exit; so does output that is not a terminal
    #[arg(long)]
    once: bool,
}

/// What one update read from the server.
struct Snapshot {
    at: Timestamp,
    queues: Vec<QueueView>,
    workers: Vec<WorkerView>,
    running: Vec<JobView>,
    failed: Vec<JobView>,
}

/// Counts of a queue at the last updates, oldest first.
#[derive(Default)]
struct QueueSamples {
    /// Jobs that ended between two updates.
    ended: VecDeque<i64>,
    /// Jobs that waited.
    waiting: VecDeque<i64>,
    last_ended: Option<i64>,
}

/// Everything that a frame shows.
struct View {
    snapshot: Snapshot,
    samples: BTreeMap<String, QueueSamples>,
    /// Place of the selected job among the running and the failed jobs.
    selected: usize,
    /// The action that waits for a confirmation.
    asked: Option<JobAction>,
    /// Result of the last action, or the reason why an update failed.
    message: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum JobAction {
    Cancel,
    Retry,
}

enum Key {
    Quit,
    Up,
    Down,
    Ask(JobAction),
    Confirm,
    Other,
}

pub(crate) async fn run(client: &Client, args: TopArgs, format: Output) -> anyhow::Result<Exit> {
    let mut view = View::new(Snapshot::fetch(client).await?);
    if format == Output::Json {
        let Snapshot { at, queues, workers, running, failed } = &view.snapshot;
        output::json(&json!({"at": at, "queues": queues, "workers": workers, "running": running, "failed": failed}))?;
        return Ok(Exit::Done);
    }
    if args.once || !std::io::stdout().is_terminal() || !std::io::stdin().is_terminal() {
        let lines = frame(&view, PLAIN.0, PLAIN.1);
        output::line(&lines.iter().map(|line| line.text.trim_end()).collect::<Vec<_>>().join("\n"))?;
        return Ok(Exit::Done);
    }
    let mut screen = Screen::open()?;
    let mut input = tokio::io::stdin();
    let mut bytes = [0; 16];
    loop {
        screen.draw(&view)?;
        let next = Instant::now() + args.interval;
        tokio::select! {
            () = sleep_until(next) => view.update(Snapshot::fetch(client).await),
            read = input.read(&mut bytes) => {
                let read = read?;
                if read == 0 || !view.press(client, key(&bytes[..read])).await {
                    return Ok(Exit::Done);
                }
            }
        }
    }
}

/// The key of a sequence of bytes from a terminal in raw mode.
fn key(bytes: &[u8]) -> Key {
    match bytes {
        b"q" | b"Q" | [3] => Key::Quit,
        b"k" | b"\x1b[A" | b"\x1bOA" => Key::Up,
        b"j" | b"\x1b[B" | b"\x1bOB" => Key::Down,
        b"c" => Key::Ask(JobAction::Cancel),
        b"r" => Key::Ask(JobAction::Retry),
        b"y" => Key::Confirm,
        _ => Key::Other,
    }
}

impl Snapshot {
    async fn fetch(client: &Client) -> Result<Self, ClientError> {
        let queues = list::every_page(async |cursor| client.queues(cursor).await).await?.items;
        let workers = client.workers(None).await?.items;
        let of = |state: &str| JobFilter { state: Some(state.into()), limit: Some(JOBS), ..JobFilter::default() };
        let running = client.jobs(&of("working")).await?.items;
        let failed = client.jobs(&of("failed")).await?.items;
        Ok(Self { at: Timestamp::now(), queues, workers, running, failed })
    }

    fn jobs(&self) -> impl Iterator<Item = &JobView> {
        self.running.iter().chain(&self.failed)
    }
}

impl View {
    fn new(snapshot: Snapshot) -> Self {
        let mut view = Self { snapshot, samples: BTreeMap::new(), selected: 0, asked: None, message: String::new() };
        view.sample();
        view
    }

    /// Shows what an update read. After a failed update the last state stays, with the reason.
    fn update(&mut self, snapshot: Result<Snapshot, ClientError>) {
        match snapshot {
            Ok(snapshot) => {
                let selected = self.snapshot.jobs().nth(self.selected).map(|job| job.id);
                self.snapshot = snapshot;
                // The selection stays on its job.
                let place = self.snapshot.jobs().position(|job| Some(job.id) == selected);
                let last = self.snapshot.jobs().count().saturating_sub(1);
                self.selected = place.unwrap_or(self.selected.min(last));
                if place.is_none() {
                    self.asked = None;
                }
                self.sample();
            }
            Err(error) => self.message = format!("no update: {error}"),
        }
    }

    fn sample(&mut self) {
        let names: Vec<&String> = self.snapshot.queues.iter().map(|queue| &queue.name).collect();
        self.samples.retain(|name, _| names.contains(&name));
        for queue in &self.snapshot.queues {
            let counts = queue.counts;
            let samples = self.samples.entry(queue.name.clone()).or_default();
            let ended = counts.succeeded + counts.failed + counts.canceled;
            push(&mut samples.ended, ended - samples.last_ended.unwrap_or(ended));
            push(&mut samples.waiting, counts.queued + counts.scheduled + counts.waiting);
            samples.last_ended = Some(ended);
        }
    }

    /// Handles a key. Returns false to quit.
    async fn press(&mut self, client: &Client, key: Key) -> bool {
        let asked = self.asked.take();
        match key {
            Key::Quit => return false,
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.selected = (self.selected + 1).min(self.snapshot.jobs().count().saturating_sub(1)),
            Key::Ask(action) if self.snapshot.jobs().nth(self.selected).is_some() => self.asked = Some(action),
            Key::Confirm => {
                if let (Some(action), Some(job)) = (asked, self.snapshot.jobs().nth(self.selected)) {
                    let id = job.id;
                    let result = match action {
                        JobAction::Cancel => client.cancel(id).await.map(|_| format!("canceled {id}")),
                        JobAction::Retry => {
                            client.retry(id, &RetryRequest::default()).await.map(|job| format!("retried as {}", job.id))
                        }
                    };
                    self.message = result.unwrap_or_else(|error| error.to_string());
                }
            }
            Key::Ask(_) | Key::Other => {}
        }
        true
    }
}

fn push(samples: &mut VecDeque<i64>, value: i64) {
    if samples.len() == SAMPLES {
        samples.pop_front();
    }
    samples.push_back(value);
}
