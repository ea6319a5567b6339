//! Power cuts on SQLite. The test records what the server writes, syncs and responds. It then reconstructs the disk as
//! a power cut at any moment could have left it, opens it, and compares it with the responses sent by that moment.
//!
//! The recording consists of system calls, so the program, its SQLite and its settings are the real ones.

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
use crate::support::{Fixture, Serve, eventually, job};
use record::{Event, Record};
use replay::{Report, Scenario};

/// Rounds of work in each run of the server.
const ROUNDS: usize = 4;
const JOBS_PER_ROUND: usize = 4;
/// This many jobs of this size cause a checkpoint and a restart of the WAL while the server runs.
const LARGE_JOBS: usize = 120;
const LARGE_BYTES: usize = 150 << 10;

/// Maximum number of cuts in one recording. A larger campaign makes several recordings, of which the first is long.
const CUTS_PER_RECORDING: usize = 10_000;

/// The length of a recording.
enum Length {
    /// Schema, work, a graceful stop, work, a kill, work.
    Short,
    /// Same, with a restart of the WAL during the work.
    Long,
}

/// The end states of jobs, which responses do not contain.
type EndStates = HashMap<Uuid, &'static str>;

async fn record(fixture: &Fixture, length: Length) -> (Record, EndStates) {
    let mut ends = EndStates::new();
    let mut record = Record::new(&fixture.path("journey.db"));
    for run in 0..3 {
        let trace = fixture.path(&format!("trace-{run}"));
        let mut server = Serve::recorded(fixture, &trace).start().await;
        let client = server.client();
        work(&client, &mut ends).await;
        if matches!(length, Length::Long) && run == 1 {
            for _ in 0..LARGE_JOBS {
                client.enqueue(&job("large", json!("x".repeat(LARGE_BYTES)))).await.expect("the job is accepted");
            }
            work(&client, &mut ends).await;
        }
        match run {
            0 => assert_eq!(server.program.terminate().await, Some(0)),
            _ => server.program.kill().await,
        }
        record.add(&complete_trace(&trace, server.program.id()).await);
    }
    (record, ends)
}

/// Reads the trace once it is complete. strace is not a child of the test and writes its last lines after the server
/// has exited: the end of each thread, and last the end of the process, which is its first thread.
async fn complete_trace(trace: &Path, server: Pid) -> Vec<u8> {
    let server = server.as_raw_nonzero().to_string();
    eventually("the recording is complete", async || {
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

/// Enqueues jobs alone and in batches, claims, completes, fails and cancels them.
async fn work(client: &Client, ends: &mut EndStates) {
    // A long lease, because the worker sends no heartbeats and a recorded server is slow.
    let (queues, lease_s) = (vec!["q".into()], Some(3_600));
    let registration = WorkerRequest { name: "test".into(), queues, lease_s, ..WorkerRequest::default() };
    let worker = client.register_worker(&registration).await.expect("the worker is registered").id;
    for round in 0..ROUNDS {
        client.enqueue(&job("q", json!({ "round": round }))).await.expect("the job is accepted");
        let batch = (1..JOBS_PER_ROUND).map(|number| job("q", json!({ "round": round, "number": number }))).collect();
        let ids = client.enqueue_batch(batch).await.expect("the jobs are accepted");
        let claim = ClaimRequest { max: JOBS_PER_ROUND as i64 - 1, ..ClaimRequest::default() };
        let claimed = client.claim(worker, &claim).await.expect("the claim succeeds").jobs;
        let outcomes: Vec<_> =
            claimed.iter().enumerate().map(|(index, job)| outcome(job.id, job.epoch, index)).collect();
        for outcome in &outcomes {
            let state = if outcome.outcome == OutcomeKind::Fail { "failed" } else { "succeeded" };
            ends.insert(outcome.job_id, state);
        }
        client.settle(worker, &SettleRequest { outcomes }).await.expect("the server responds");
        let unclaimed = ids.iter().find(|id| !ends.contains_key(id)).expect("one job more than was claimed");
        ends.insert(*unclaimed, "canceled");
        client.cancel(*unclaimed).await.expect("the job is canceled");
    }
}

fn outcome(job_id: Uuid, epoch: i64, number: usize) -> OutcomeRequest {
    let fails = number == 1;
    let error = fails.then(|| JobError { code: "boom".into(), message: "it broke".into(), retryable: false });
    let outcome = if fails { OutcomeKind::Fail } else { OutcomeKind::Finish };
    OutcomeRequest {
        job_id,
        epoch,
        outcome,
        result: None,
        facts: None,
        error,
        delay_s: None,
        backoff_s: None,
        backoff_until: None,
        wake: None,
        payload: None,
    }
}

async fn replay(record: &Record, ends: &EndStates, seed: u64, cuts: usize) -> Report {
    let scenario = Scenario::new(record, ends, seed, cuts);
    let report = scenario.run().await;
    println!("power cuts on SQLite, seed {seed}: {report}");
    report
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn a_power_cut_at_any_moment_loses_no_acknowledged_write() {
    let plan = Plan::read();
    let recordings = plan.cuts.div_ceil(CUTS_PER_RECORDING);
    for number in 0..recordings {
        let fixture = Fixture::sqlite();
        let length = if recordings > 1 && number == 0 { Length::Long } else { Length::Short };
        let (record, ends) = record(&fixture, length).await;
        let cuts = (plan.cuts - number * CUTS_PER_RECORDING).min(CUTS_PER_RECORDING);
        let report = replay(&record, &ends, plan.seed + number as u64, cuts).await;
        assert!(report.findings.is_empty(), "{:#?}", report.findings);
        assert!(report.states >= cuts && report.responses > 50, "{report}");
    }
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn replayed_power_cuts_detect_the_losses_of_synchronous_normal() {
    let fixture = Fixture::sqlite();
    let (mut record, ends) = record(&fixture, Length::Short).await;
    record.remove_commit_syncs();
    let report = replay(&record, &ends, Plan::read().seed, 200).await;
    assert!(!report.findings.is_empty(), "without a sync at each commit the replay must find losses");
}

#[test]
fn a_recording_contains_writes_syncs_and_responses() {
    let mut record = Record::new(Path::new("/d/j.db"));
    let hex = |text: &str| text.bytes().map(|byte| format!("\\x{byte:02x}")).collect::<String>();
    let wal = hex("/d/j.db-wal");
    let response =
        hex("HTTP/1.1 202 Accepted\r\n\r\n{\"id\":\"00000000-0000-0000-0000-000000000001\",\"state\":\"queued\"}");
    let (head, body) = response.split_at(40);
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
    let events: Vec<String> = record.events.iter().map(Event::describe).collect();
    let expected = ["create 0", "write 0 at 8: 3", "write 0 at 0: 1", "sync 0 up to 2", "response 1"];
    assert_eq!(events, expected, "a sync covers writes before its start");
}
