//! Power cuts on SQLite (X2): what the server writes, syncs and answers is recorded, and the disk as a power cut at any
//! moment could have left it is put together, opened and held against what had been answered by then.
//!
//! The recording is of system calls, so the program, its SQLite and its settings are the real ones.

mod disk;
mod record;
mod replay;

use std::collections::HashMap;
use std::path::Path;

use client::Client;
use client::wire::{ClaimRequest, JobError, OutcomeKind, OutcomeRequest, SettleRequest, WorkerRequest};
use rustix::process::Pid;
use serde_json::json;
use uuid::Uuid;

use super::Plan;
use crate::support::{Place, Serve, job, until};
use record::{Event, Record};
use replay::{Report, Scenario};

/// Rounds of work in each of a server's lives.
const ROUNDS: usize = 4;
const JOBS_PER_ROUND: usize = 4;
/// With this many jobs of this size the WAL is folded into the file and begun anew while the server runs.
const LARGE_JOBS: usize = 120;
const LARGE_BYTES: usize = 150 << 10;

/// Cuts in one recording; a larger campaign records anew, and the first one for long.
const CUTS_OF_ONE: usize = 10_000;

/// How long the recording is.
enum Length {
    /// Schema, work, a stop in order, work, a kill, work.
    Short,
    /// The same, with a WAL that is begun anew under work.
    Long,
}

/// What the work did, as far as answers do not say it themselves.
type Ends = HashMap<Uuid, &'static str>;

async fn record(place: &Place, length: Length) -> (Record, Ends) {
    let mut ends = Ends::new();
    let mut record = Record::new(&place.path("journey.db"));
    for life in 0..3 {
        let trace = place.path(&format!("trace-{life}"));
        let mut server = Serve::recorded(place, &trace).start().await;
        let client = server.client();
        work(&client, &mut ends).await;
        if matches!(length, Length::Long) && life == 1 {
            for _ in 0..LARGE_JOBS {
                client.enqueue(&job("large", json!("x".repeat(LARGE_BYTES)))).await.expect("the job is accepted");
            }
            work(&client, &mut ends).await;
        }
        match life {
            0 => assert_eq!(server.program.terminate().await, Some(0)),
            _ => server.program.kill().await,
        }
        record.add(&whole(&trace, server.program.id()).await);
    }
    (record, ends)
}

/// The recorder is no child of ours and writes its last lines when the server is gone: the end of each of its threads, and
/// that of the process, which is its first thread, after all others.
async fn whole(trace: &Path, server: Pid) -> Vec<u8> {
    let server = server.as_raw_nonzero().to_string();
    until("the recording is complete", async || {
        let bytes = std::fs::read(trace).unwrap_or_default();
        let tail = String::from_utf8_lossy(&bytes[bytes.len().saturating_sub(4 << 10)..]).into_owned();
        let is_end = |line: &str| {
            let mut words = line.split_whitespace();
            words.next() == Some(&*server) && words.next() == Some("+++")
        };
        tail.lines().any(is_end).then_some(bytes)
    })
    .await
}

/// Jobs come in alone and together, are claimed, finished, failed and called off.
async fn work(client: &Client, ends: &mut Ends) {
    // Nobody sends heartbeats, and a recorded server is slow.
    let (queues, lease_s) = (vec!["q".into()], Some(3_600));
    let registration = WorkerRequest { name: "hand".into(), queues, lease_s, ..WorkerRequest::default() };
    let worker = client.register_worker(&registration).await.expect("the worker is registered").id;
    for round in 0..ROUNDS {
        client.enqueue(&job("q", json!({ "round": round }))).await.expect("the job is accepted");
        let batch = (1..JOBS_PER_ROUND).map(|number| job("q", json!({ "round": round, "number": number }))).collect();
        let ids = client.enqueue_batch(batch).await.expect("the jobs are accepted");
        let claim = ClaimRequest { max: JOBS_PER_ROUND as i64 - 1, ..ClaimRequest::default() };
        let claimed = client.claim(worker, &claim).await.expect("the claim is answered").jobs;
        let outcomes: Vec<_> = claimed.iter().enumerate().map(|(at, job)| outcome(job.id, job.epoch, at)).collect();
        for outcome in &outcomes {
            let state = if outcome.outcome == OutcomeKind::Fail { "failed" } else { "succeeded" };
            ends.insert(outcome.job_id, state);
        }
        client.settle(worker, &SettleRequest { outcomes }).await.expect("the outcomes are judged");
        let left = ids.iter().find(|id| !ends.contains_key(id)).expect("one more came than was claimed");
        ends.insert(*left, "canceled");
        client.cancel(*left).await.expect("the job is canceled");
    }
}

fn outcome(job_id: Uuid, epoch: i64, number: usize) -> OutcomeRequest {
    let fails = number == 1;
    let error = fails.then(|| JobError { code: "boom".into(), message: "it broke".into(), retryable: false });
    let outcome = if fails { OutcomeKind::Fail } else { OutcomeKind::Finish };
    OutcomeRequest { job_id, epoch, outcome, result: None, facts: None, error, delay_s: None }
}

async fn replay(record: &Record, ends: &Ends, seed: u64, cuts: usize) -> Report {
    let scenario = Scenario::new(record, ends, seed, cuts);
    let report = scenario.run().await;
    println!("power cuts on SQLite, seed {seed}: {report}");
    report
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_a_power_cut_at_any_moment_loses_nothing_that_was_answered() {
    let plan = Plan::read();
    let recordings = plan.cuts.div_ceil(CUTS_OF_ONE);
    for number in 0..recordings {
        let place = Place::sqlite();
        let length = if recordings > 1 && number == 0 { Length::Long } else { Length::Short };
        let (record, ends) = record(&place, length).await;
        let cuts = (plan.cuts - number * CUTS_OF_ONE).min(CUTS_OF_ONE);
        let report = replay(&record, &ends, plan.seed + number as u64, cuts).await;
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert!(report.states >= cuts && report.answers > 50, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_replayed_power_cuts_find_what_synchronous_normal_would_lose() {
    let place = Place::sqlite();
    let (mut record, ends) = record(&place, Length::Short).await;
    record.forget_syncs_of_commits();
    let report = replay(&record, &ends, Plan::read().seed, 200).await;
    assert!(!report.findings.is_empty(), "without a sync at each commit answers must be lost");
}

#[test]
fn a_recording_tells_what_was_written_synced_and_answered() {
    let mut record = Record::new(Path::new("/d/j.db"));
    let hex = |text: &str| text.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let wal = hex("/d/j.db-wal");
    let answer =
        hex("HTTP/1.1 202 Accepted\r\n\r\n{\"id\":\"00000000-0000-0000-0000-000000000001\",\"state\":\"queued\"}");
    let (head, body) = answer.split_at(40);
    let lines = [
        format!("7 openat(AT_FDCWD<{0}>, \"{wal}\", O_RDWR|O_CREAT, 0644) = 9<{wal}>", hex("/d")),
        format!("7 pwrite64(9<{wal}>, \"{}\", 3, 8) = 3", hex("abc")),
        format!("8 fsync(9<{wal}> <unfinished ...>"),
        format!("7 pwrite64(9<{wal}>, \"{}\", 1, 0) = 1", hex("z")),
        "8 <... fsync resumed>) = 0".into(),
        format!(
            "7 writev(5<{}>, [{{iov_base=\"{head}\", iov_len=10}}, {{iov_base=\"{body}\", iov_len=1}}], 2) = 11",
            hex("socket:[1]")
        ),
        "7 +++ killed by SIGKILL +++".into(),
    ];
    record.add(lines.join("\n").as_bytes());
    let told: Vec<String> = record.events.iter().map(Event::told).collect();
    let expected = ["make 0", "write 0 at 8: 3", "write 0 at 0: 1", "sync 0 up to 2", "answer 1"];
    assert_eq!(told, expected, "the sync covers what was written before it began");
}
