//! Repeated SIGKILL of the server under load.

use crate::support::{Fixture, Load, Serve, free_port, on_postgres, on_sqlite};

const KILLS: usize = 5;
const JOBS_BETWEEN_KILLS: usize = 60;

async fn kill_under_load(fixture: Fixture) {
    let port = free_port();
    let mut server = Serve::on(&fixture).port(port).start().await;
    let load = Load::start(server.client());
    for _ in 0..KILLS {
        load.wait_for_jobs(JOBS_BETWEEN_KILLS).await;
        server.program.kill().await;
        server = Serve::on(&fixture).port(port).start().await;
    }
    load.wait_for_jobs(JOBS_BETWEEN_KILLS).await;
    let report = load.finish().await;
    println!("kills={KILLS} {report}");
    assert!(report.acknowledged >= KILLS * JOBS_BETWEEN_KILLS);
    server.program.kill().await;
    fixture.verify().await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_job_is_lost_or_done_twice_when_the_server_is_killed_on_sqlite() {
    on_sqlite(kill_under_load).await;
}

/// Requirement X2.
#[tokio::test(flavor = "multi_thread")]
async fn no_acknowledged_job_is_lost_or_done_twice_when_the_server_is_killed_on_postgres() {
    on_postgres(kill_under_load).await;
}
