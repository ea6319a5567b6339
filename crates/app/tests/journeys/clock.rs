//! Jumps of the machine's clock while the server runs on SQLite. On PostgreSQL the time is the database's.

use std::path::PathBuf;

use client::wire::QueueSettings;

use crate::support::{Fixture, Load, Serve, on_sqlite};

/// Successive offsets of the clock from the true time, in seconds.
const JUMPS: [&str; 8] = ["+3600", "+0", "-3600", "+0", "+31536000", "+0", "-31536000", "+0"];
const JOBS_BETWEEN_JUMPS: usize = 50;
const TEN_YEARS_S: i64 = 10 * 365 * 24 * 3_600;

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = libraries.find(|library| library.exists());
    found.expect("libfaketime is missing: install the Debian package libfaketime")
}

fn set_clock(fixture: &Fixture, offset: &str) {
    // Renamed into place, so that the server never reads an incomplete line.
    std::fs::write(fixture.path("clock.new"), format!("{offset}\n")).expect("writes the file");
    std::fs::rename(fixture.path("clock.new"), fixture.path("clock")).expect("renames the file");
}

/// Requirement Q7.
#[tokio::test(flavor = "multi_thread")]
async fn a_clock_jump_loses_no_job_and_assigns_none_to_two_workers() {
    on_sqlite(async |fixture| {
        set_clock(&fixture, "+0");
        let server = Serve::on(&fixture)
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", fixture.path("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // A jump of a year exceeds the default retention. Jobs that pruning deletes could not be counted.
            .env("WINDLASS_HISTORY_RETENTION_DAYS", "3650")
            .start()
            .await;
        let client = server.client();
        let settings = QueueSettings { retention_s: Some(TEN_YEARS_S), ..QueueSettings::default() };
        client.set_queue("load", &settings).await.expect("the queue is set");
        let load = Load::start(client);
        for jump in JUMPS {
            load.wait_for_jobs(JOBS_BETWEEN_JUMPS).await;
            set_clock(&fixture, jump);
        }
        load.wait_for_jobs(JOBS_BETWEEN_JUMPS).await;
        let report = load.finish().await;
        println!("jumps={} {report}", JUMPS.len());
        assert_eq!(report.extra_attempts, 0, "workers that send heartbeats keep their jobs");
        drop(server);
        fixture.verify().await;
    })
    .await;
}
