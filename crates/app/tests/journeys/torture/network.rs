//! Networks that fail: between the servers and PostgreSQL, and between clients and a server (X2, X3, X12).

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use client::Client;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Between, Cluster, Place, Program, Serve, Wire, free_port, until};

const JOBS_BETWEEN: u64 = 40;
const STALL: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;
/// How soon work goes on once the fault is over.
const RECOVERY: Duration = Duration::from_secs(60);

/// PgBouncer in transaction mode.
struct Pooler {
    // Dropped before its folder.
    _program: Program,
    port: u16,
    _folder: TempDir,
}

impl Pooler {
    async fn start(server_port: u16) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let port = free_port();
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user=postgres\n[pgbouncer]\nlisten_addr = 127.0.0.1\n\
             listen_port = {port}\nunix_socket_dir =\nauth_type = any\npool_mode = transaction\nmax_client_conn = 100\n\
             default_pool_size = 10\nserver_login_retry = 1\nlog_connections = 0\nlog_disconnections = 0\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("the folder takes files");
        // It refuses to run as root, and its user must reach the folder.
        for (path, mode) in [(folder.path(), 0o755), (file.as_path(), 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("the file is ours");
        }
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "/usr/sbin/pgbouncer"]);
        }
        let program = Program::start(folder.path(), command.arg(&file));
        until("pgbouncer takes connections", async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
        Self { _program: program, port, _folder: folder }
    }
}

/// The part of a URL between the user and the database.
fn address(url: &str) -> &str {
    url.split_once('@').and_then(|(_, rest)| rest.split('/').next()).expect("the URL names a server")
}

/// Waits until work goes on and says how long that took.
async fn recovered(storm: &Storm, fault: &str) {
    let back = Instant::now();
    storm.more(1).await;
    println!("after {fault} work went on within {:?}", back.elapsed());
    assert!(back.elapsed() < RECOVERY, "after {fault}: {:?}", back.elapsed());
    storm.more(JOBS_BETWEEN).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x12_a_network_that_fails_between_nodes_and_postgres_breaks_no_promise() {
    let mut cluster = Cluster::start().await;
    let place = Place::on_server(&cluster.url()).await;
    let server = address(&place.url).to_owned();
    let (_, port) = server.rsplit_once(':').expect("the server has a port");
    let pooler = Pooler::start(port.parse().expect("a port is a number")).await;
    let wire = Wire::to(&server, Between::Anything).await;
    let pooled = place.url.replace(&server, &format!("127.0.0.1:{}", pooler.port));
    let nodes = Nodes::start(&place, vec![wire.url(&place.url), pooled]).await;
    let storm = Storm::start(nodes.clients()).await;
    storm.more(JOBS_BETWEEN).await;
    for _ in 0..ROUNDS {
        wire.cut();
        recovered(&storm, "a cut").await;
        wire.stall();
        tokio::time::sleep(STALL).await;
        wire.clear();
        recovered(&storm, "a stall").await;
        wire.slow_down(Duration::from_millis(20));
        recovered(&storm, "20 ms more for every packet").await;
        wire.clear();
        let all = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '$database'";
        place.sql_beside(all).await;
        recovered(&storm, "pg_terminate_backend").await;
        cluster.crash().await;
        cluster.run().await;
        recovered(&storm, "an immediate shutdown").await;
    }
    let verdict = storm.judge().await;
    println!("network to PostgreSQL, pgbouncer in between: faults={} {verdict}", ROUNDS * 5);
    drop(nodes);
    place.verify().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn x3_requests_that_are_cut_delayed_and_doubled_break_no_promise() {
    let place = Place::sqlite();
    let server = Serve::on(&place).start().await;
    let wire = Wire::to(server.url.trim_start_matches("http://"), Between::Doubled).await;
    let client = Client::new(&format!("http://{}", wire.address())).expect("the address is valid");
    let storm = Storm::start(vec![client]).await;
    let rounds = Plan::read().kills / 4;
    for _ in 0..rounds {
        storm.more(JOBS_BETWEEN).await;
        wire.cut();
        storm.more(JOBS_BETWEEN).await;
        wire.slow_down(Duration::from_millis(10));
        storm.more(JOBS_BETWEEN).await;
        wire.clear();
    }
    let verdict = storm.judge().await;
    println!("network to the server, every outcome and enqueue doubled: cuts={rounds} {verdict}");
    drop(server);
    place.verify().await;
}
