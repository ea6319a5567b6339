//! The machine's clock jumps while the server runs (Q7, X3). On PostgreSQL time is the database's.

use std::path::PathBuf;

use client::wire::QueueSettings;

use crate::support::{Load, Place, Serve, on_sqlite};

/// Where the clock stands, one after the other, against the true time.
const JUMPS: [&str; 8] = ["+3600", "+0", "-3600", "+0", "+31536000", "+0", "-31536000", "+0"];
const JOBS_BETWEEN_JUMPS: usize = 50;
const TEN_YEARS_S: i64 = 10 * 365 * 24 * 3_600;

fn library() -> PathBuf {
    let folders = std::fs::read_dir("/usr/lib").into_iter().flatten().flatten();
    let mut libraries = folders.map(|folder| folder.path().join("faketime/libfaketime.so.1"));
    let found = libraries.find(|library| library.exists());
    found.expect("libfaketime is missing: install the Debian package libfaketime")
}

fn set(place: &Place, clock: &str) {
    // Moved into place, so that the server never reads half a line.
    std::fs::write(place.path("clock.new"), format!("{clock}\n")).expect("the folder takes files");
    std::fs::rename(place.path("clock.new"), place.path("clock")).expect("a file can be moved");
}

#[tokio::test(flavor = "multi_thread")]
async fn q7_a_clock_that_jumps_loses_no_job_and_gives_none_to_two_workers() {
    on_sqlite(async |place| {
        set(&place, "+0");
        let server = Serve::on(&place)
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", place.path("clock"))
            .env("FAKETIME_NO_CACHE", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            // A jump of a year is past every retention; what is forgotten in order is not lost, but cannot be counted.
            .env("WINDLASS_HISTORY_RETENTION_DAYS", "3650")
            .start()
            .await;
        let client = server.client();
        let settings = QueueSettings { retention_s: Some(TEN_YEARS_S), ..QueueSettings::default() };
        client.set_queue("load", &settings).await.expect("the queue is set");
        let load = Load::start(client);
        for jump in JUMPS {
            load.more(JOBS_BETWEEN_JUMPS).await;
            set(&place, jump);
        }
        load.more(JOBS_BETWEEN_JUMPS).await;
        let report = load.finish().await;
        println!("jumps={} {report}", JUMPS.len());
        assert_eq!(report.burnt, 0, "workers that heartbeat keep their jobs");
        drop(server);
        place.verify().await;
    })
    .await;
}
