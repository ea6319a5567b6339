//! Network faults between the servers and PostgreSQL, and between clients and a server.

use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::{Duration, Instant};

use client::Client;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::Plan;
use super::nodes::Nodes;
use super::storm::Storm;
use crate::support::{Cluster, Fixture, NetworkProxy, Program, Serve, Traffic, eventually, free_port};

const JOBS_BETWEEN: u64 = 40;
const STALL: Duration = Duration::from_secs(3);
const ROUNDS: usize = 2;
/// Maximum time until work resumes after a fault.
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
        std::fs::write(&file, settings).expect("writes the file");
        // PgBouncer refuses to run as root, and its user must be able to read the folder.
        for (path, mode) in [(folder.path(), 0o755), (file.as_path(), 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("changes the permissions");
        }
        let mut command = Command::new("/usr/sbin/pgbouncer");
        if rustix::process::geteuid().is_root() {
            command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "/usr/sbin/pgbouncer"]);
        }
        let program = Program::start(folder.path(), command.arg(&file));
        eventually("pgbouncer accepts connections", async || TcpStream::connect(("127.0.0.1", port)).await.ok()).await;
        Self { _program: program, port, _folder: folder }
    }
}

/// Returns the part of a URL between the user and the database.
fn address(url: &str) -> &str {
    url.split_once('@').and_then(|(_, rest)| rest.split('/').next()).expect("the URL contains an address")
}

/// Waits until work resumes and checks how long that took.
async fn assert_recovery(storm: &Storm, fault: &str) {
    let back = Instant::now();
    storm.wait_for_jobs(1).await;
    println!("work resumed {:?} after {fault}", back.elapsed());
    assert!(back.elapsed() < RECOVERY, "after {fault}: {:?}", back.elapsed());
    storm.wait_for_jobs(JOBS_BETWEEN).await;
}

/// Requirement X12.
#[tokio::test(flavor = "multi_thread")]
async fn network_faults_between_nodes_and_postgres_break_no_guarantee() {
    let mut cluster = Cluster::start().await;
    let fixture = Fixture::on_server(&cluster.url()).await;
    let server = address(&fixture.url).to_owned();
    let (_, port) = server.rsplit_once(':').expect("the server has a port");
    let pooler = Pooler::start(port.parse().expect("a port is a number")).await;
    let network = NetworkProxy::to(&server, Traffic::Opaque).await;
    let pooled = fixture.url.replace(&server, &format!("127.0.0.1:{}", pooler.port));
    let nodes = Nodes::start(&fixture, vec![network.url(&fixture.url), pooled]).await;
    let storm = Storm::start(nodes.clients()).await;
    storm.wait_for_jobs(JOBS_BETWEEN).await;
    for _ in 0..ROUNDS {
        network.cut();
        assert_recovery(&storm, "a cut").await;
        network.stall();
        // The fault lasts for some time.
        tokio::time::sleep(STALL).await;
        network.clear();
        assert_recovery(&storm, "a stall").await;
        network.slow_down(Duration::from_millis(20));
        assert_recovery(&storm, "a delay of 20 ms per packet").await;
        network.clear();
        let all = "select pg_terminate_backend(pid) from pg_stat_activity where datname = '$database'";
        fixture.admin_sql(all).await;
        assert_recovery(&storm, "pg_terminate_backend").await;
        cluster.crash().await;
        cluster.run().await;
        assert_recovery(&storm, "an immediate shutdown").await;
    }
    let verdict = storm.finish().await;
    println!("network to PostgreSQL, with PgBouncer: faults={} {verdict}", ROUNDS * 5);
    drop(nodes);
    fixture.verify().await;
}

/// Requirement X3.
#[tokio::test(flavor = "multi_thread")]
async fn cut_delayed_and_duplicated_requests_break_no_guarantee() {
    let fixture = Fixture::sqlite();
    let server = Serve::on(&fixture).start().await;
    let network = NetworkProxy::to(server.url.trim_start_matches("http://"), Traffic::DuplicatedHttp).await;
    let client = Client::new(&format!("http://{}", network.address())).expect("the address is valid");
    let storm = Storm::start(vec![client]).await;
    let rounds = Plan::read().kills / 4;
    for _ in 0..rounds {
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        network.cut();
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        network.slow_down(Duration::from_millis(10));
        storm.wait_for_jobs(JOBS_BETWEEN).await;
        network.clear();
    }
    let verdict = storm.finish().await;
    println!("network to the server, every outcome and enqueue duplicated: cuts={rounds} {verdict}");
    drop(server);
    fixture.verify().await;
}
