//! kill -9 of the server, again and again, under load (X2).

use crate::support::{Load, Place, Serve, free_port, on_postgres, on_sqlite};

const KILLS: usize = 5;
const JOBS_BETWEEN_KILLS: usize = 60;

async fn kill_under_load(place: Place) {
    let port = free_port();
    let mut server = Serve::on(&place).port(port).start().await;
    let load = Load::start(server.client());
    for _ in 0..KILLS {
        load.more(JOBS_BETWEEN_KILLS).await;
        server.program.kill().await;
        server = Serve::on(&place).port(port).start().await;
    }
    load.more(JOBS_BETWEEN_KILLS).await;
    let report = load.finish().await;
    println!("kills={KILLS} {report}");
    assert!(report.acknowledged >= KILLS * JOBS_BETWEEN_KILLS);
    server.program.kill().await;
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_nothing_acknowledged_is_lost_or_done_twice_when_the_server_is_killed_on_sqlite() {
    on_sqlite(kill_under_load).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x2_nothing_acknowledged_is_lost_or_done_twice_when_the_server_is_killed_on_postgres() {
    on_postgres(kill_under_load).await;
}
