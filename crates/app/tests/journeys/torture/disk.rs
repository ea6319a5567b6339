//! System calls that fail under SQLite, repeatedly and at varying positions of the files.

use super::storm::Storm;
use crate::support::{Fixture, Serve, Server, eventually};

const JOBS: u64 = 120;

/// Every n-th call fails. The intervals share no factor with the calls of a commit, so that each kind of call fails in
/// turn: headers and pages of the WAL, the database file during a checkpoint, and their syncs.
const FAULTS: [&str; 3] =
    ["pwrite64:error=EIO:when=40+97", "pwrite64:error=ENOSPC:when=40+89", "fsync:error=EIO:when=5+23"];

async fn campaign(fault: &str) {
    let fixture = Fixture::sqlite();
    // Create the schema without faults.
    drop(Server::start(&fixture).await);
    // A fault during the start ends the server. The next start meets the fault at another call.
    let start = async || Serve::injected(&fixture, &fixture.path("trace"), &[fault]).try_start().await.ok();
    let server = eventually("the server starts", start).await;
    let storm = Storm::start(vec![server.client()]).await;
    storm.wait_for_jobs(JOBS).await;
    let verdict = storm.finish().await;
    drop(server);
    let trace = std::fs::read_to_string(fixture.path("trace")).expect("strace wrote the file");
    let injected = trace.lines().filter(|line| line.ends_with("(INJECTED)")).count();
    println!("{fault}: injected={injected} {verdict}");
    assert!(injected > 0, "no call failed, so the campaign proves nothing");
    fixture.verify().await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn failed_writes_and_syncs_break_no_guarantee() {
    for fault in FAULTS {
        campaign(fault).await;
    }
}
