//! System calls that fail under SQLite, again and again, at whatever place in the files the writer is (X12, X2).

use super::storm::Storm;
use crate::support::{Place, Serve, Server, until};

const JOBS: u64 = 120;

/// Every so many calls of the writer one fails. The steps share no factor with what a commit takes, so that in turn each
/// place is hit: headers and pages of the WAL, the file itself while the WAL is folded in, and their syncs.
const FAULTS: [&str; 3] =
    ["pwrite64:error=EIO:when=40+97", "pwrite64:error=ENOSPC:when=40+89", "fsync:error=EIO:when=5+23"];

async fn campaign(fault: &str) {
    let place = Place::sqlite();
    // The schema is made in peace.
    drop(Server::start(&place).await);
    // A server whose own start meets a fault says so and ends, as it should; the next one meets it elsewhere.
    let start = async || Serve::injected(&place, &place.path("trace"), &[fault]).try_start().await.ok();
    let server = until("the server starts", start).await;
    let storm = Storm::start(vec![server.client()]).await;
    storm.more(JOBS).await;
    let verdict = storm.judge().await;
    drop(server);
    let trace = std::fs::read_to_string(place.path("trace")).expect("the calls were written down");
    let injected = trace.lines().filter(|line| line.ends_with("(INJECTED)")).count();
    println!("{fault}: injected={injected} {verdict}");
    assert!(injected > 0, "nothing failed, so nothing was shown");
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_writes_and_syncs_that_fail_break_no_promise() {
    for fault in FAULTS {
        campaign(fault).await;
    }
}
