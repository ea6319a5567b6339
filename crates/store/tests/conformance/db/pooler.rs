//! PgBouncer in transaction mode between the store and PostgreSQL: no state may live in a session.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, SettleStatus};
use store::{DatabaseUrl, Pooler, Store, StoreOptions};
use tempfile::TempDir;
use testkit::{Database, job, label};
use tokio::task::JoinSet;
use tokio_postgres::SimpleQueryMessage;
use tokio_util::sync::CancellationToken;

use crate::support::*;

struct PgBouncer {
    process: Child,
    port: u16,
    _folder: TempDir,
}

impl Drop for PgBouncer {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl PgBouncer {
    /// Starts PgBouncer in front of the test server. The test fails if the program is missing.
    fn start(server_port: u16) -> Self {
        let mut logs = Vec::new();
        // PgBouncer needs a fixed port. A port that was free a moment ago may be taken, so try several.
        for _ in 0..10 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("the listener has an address").port();
            drop(free);
            match Self::start_at(port, server_port) {
                Ok(up) => return up,
                Err(log) => logs.extend(log),
            }
        }
        panic!("pgbouncer did not start: {logs:?}");
    }

    /// Starts PgBouncer on a port. Returns its log if it did not start.
    fn start_at(port: u16, server_port: u16) -> Result<Self, Vec<String>> {
        let folder = tempfile::tempdir().expect("a folder");
        let settings = format!(
            "[databases]\n* = host=127.0.0.1 port={server_port} user=windlass_serving\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = transaction\nmax_client_conn = 100\ndefault_pool_size = 10\n\
             ignore_startup_parameters = extra_float_digits\nlog_connections = 0\nlog_disconnections = 0\n\
             stats_period = 3600\n"
        );
        let file = folder.path().join("pgbouncer.ini");
        std::fs::write(&file, settings).expect("writes the settings");
        // PgBouncer refuses to run as root, and its user must be able to read the folder.
        for (path, mode) in [(folder.path(), 0o755), (file.as_path(), 0o644)] {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("permissions");
        }
        let is_root = std::fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
        let mut command = if is_root {
            let mut command = Command::new("setpriv");
            command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "/usr/sbin/pgbouncer"]);
            command
        } else {
            Command::new("/usr/sbin/pgbouncer")
        };
        let mut process = command
            .arg(&file)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .expect("cannot start pgbouncer; install the Debian package pgbouncer");
        let mut log = BufReader::new(process.stderr.take().expect("is piped")).lines();
        let started = Self { process, port, _folder: folder };
        let mut logs = Vec::new();
        let up = log.by_ref().map_while(Result::ok).any(|line| {
            logs.push(line.clone());
            line.contains("process up")
        });
        if !up {
            return Err(logs);
        }
        // Drain the log so that PgBouncer never blocks on the pipe.
        std::thread::spawn(move || log.for_each(drop));
        Ok(started)
    }
}

/// A migrated database and its URL through the pooler.
struct PooledDatabase {
    direct: Database,
    url: DatabaseUrl,
    _pooler: PgBouncer,
}

impl PooledDatabase {
    async fn start() -> Self {
        let direct = Database::postgres().await;
        let DatabaseUrl::Postgres(url) = &direct.url else { panic!("PostgreSQL") };
        let config: tokio_postgres::Config = url.parse().expect("a URL");
        let server_port = config.get_ports()[0];
        let pooler = PgBouncer::start(server_port);
        let url = DatabaseUrl::Postgres(url.replace(&format!(":{server_port}/"), &format!(":{}/", pooler.port)));
        Self { direct, url, _pooler: pooler }
    }

    async fn node(&self) -> Store {
        let options = StoreOptions { clock: self.direct.clock.clone(), ..StoreOptions::default() };
        Store::open(&self.url, options).await.expect("opens through the pooler")
    }
}

#[tokio::test]
async fn a_pooler_in_transaction_mode_is_detected() {
    let pooled = PooledDatabase::start().await;
    assert!(pooled.node().await.is_behind_a_pooler());
    assert!(!pooled.direct.store.is_behind_a_pooler());
}

/// Detection must not depend on which sessions the pooler gives to other clients, and must leave nothing in them.
/// Requirement X8.
#[tokio::test]
async fn a_pooler_is_detected_beside_other_clients() {
    let pooled = PooledDatabase::start().await;
    let DatabaseUrl::Postgres(url) = &pooled.url else { panic!("PostgreSQL") };
    let stop = CancellationToken::new();
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let (psql, stop) = (psql_at(url).await, stop.clone());
        clients.spawn(async move {
            // Moves the whole connection, with its driver.
            let psql = psql;
            while !stop.is_cancelled() {
                psql.client.batch_execute("begin; select 1; commit").await.expect("the pooler answers");
            }
        });
    }
    for start in 0..40 {
        assert!(pooled.node().await.is_behind_a_pooler(), "start {start}");
    }
    stop.cancel();
    clients.join_all().await;
    let left = "select coalesce(current_setting('windlass.probe', true), '') || current_setting('lock_timeout')
         || current_setting('enable_seqscan') || (select count(*) from pg_prepared_statements)";
    for _ in 0..10 {
        let client = psql_at(url).await;
        let rows = client.client.simple_query(left).await.expect("reads");
        let left = rows.iter().find_map(|message| match message {
            SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
            _ => None,
        });
        assert_eq!(left.as_deref(), Some("0on0"), "no setting and no prepared statement stays in a session");
    }
}

/// A wrong statement about the pooler is the operator's: it is not checked.
/// Requirement X8.
#[tokio::test]
async fn a_named_pooler_is_not_detected() {
    let direct = Database::postgres().await;
    for (pooler, expected) in [(Pooler::Detect, false), (Pooler::Transaction, true), (Pooler::None, false)] {
        let options = StoreOptions { pooler, ..StoreOptions::default() };
        let store = Store::open(&direct.url, options).await.expect("opens");
        assert_eq!(store.is_behind_a_pooler(), expected, "{pooler:?}");
        push(&store, job("q")).await;
    }
}

/// Requirement X8.
#[tokio::test]
async fn the_life_cycle_of_a_job_works_through_a_pooler() {
    let pooled = PooledDatabase::start().await;
    let (store, other) = (pooled.node().await, pooled.node().await);
    assert_eq!(store.migrate_up().await.expect("goes up"), [] as [i64; 0]);
    let keyed = || {
        let extras = Extras { concurrency_key: Some(label("c")), timeout_s: Some(5), ..Extras::default() };
        NewJob { extras: Some(Box::new(extras)), ..job("q") }
    };
    let ids: Vec<_> = push_all(&store, vec![job("q"), job("q"), keyed(), keyed()]).await.iter().map(|j| j.id).collect();
    let later = push(&other, NewJob { run_at: Some(pooled.direct.clock.now().plus_s(60)), ..job("q") }).await;
    let (first, second) = (register(&store, &["q"]).await, register(&other, &["q"]).await);
    let claimed = claim(&store, first, 10).await;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), ids[..3]);
    assert!(claim(&other, second, 10).await.is_empty());
    assert_eq!(finish(&other, first, &claimed[0]).await, SettleStatus::Applied, "any node accepts the outcome");
    assert_eq!(finish(&store, first, &claimed[0]).await, SettleStatus::AlreadyEnded);
    assert_eq!(settle(&store, first, ids[1], claimed[1].epoch, End::Fail(boom())).await, SettleStatus::Applied);
    pooled.direct.pass_ms(6_000).await;
    assert_eq!(other.sweep().await.expect("sweeps").timed_out, 1);
    settle(&store, first, ids[2], claimed[2].epoch, End::Cancel).await;
    assert_eq!(claim_one(&other, second).await.id, ids[3], "the key is free");
    pooled.direct.pass_ms(31_000).await;
    assert_eq!(store.sweep().await.expect("sweeps").workers, 2);
    assert_eq!(state(&store, ids[3]).await, "queued");
    pooled.direct.pass_ms(30_000).await;
    store.promote_due().await.expect("promotes");
    assert_eq!(state(&other, later).await, "queued");
    assert_eq!(events(&store, ids[3]).await, ["enqueued", "started", "expired"]);
    store.list_jobs(T, Default::default(), None, 10).await.expect("lists");
    store.why(T, later).await.expect("answers");
    store.fold_counters().await.expect("folds");
    store.prune(1_000).await.expect("prunes");
    assert_counters_match(&store).await;
}

/// Requirement X12.
#[tokio::test]
async fn transaction_timeouts_apply_with_and_without_a_pooler() {
    let pooled = PooledDatabase::start().await;
    let in_force = async |store: &Store, setting: &str| {
        let text = format!("select current_setting('{setting}')");
        texts(store, "", &text).await.remove(0)
    };
    for store in [&pooled.direct.store, &pooled.node().await] {
        assert_eq!(in_force(store, "idle_in_transaction_session_timeout").await, "30s");
        assert_eq!(in_force(store, "lock_timeout").await, "20s");
    }
    assert_eq!(
        in_force(&pooled.direct.store, "tcp_keepalives_idle").await,
        "10",
        "set per session on a direct connection"
    );
}

/// Requirement X3.
#[tokio::test]
async fn no_job_is_claimed_twice_through_a_pooler() {
    let pooled = PooledDatabase::start().await;
    let nodes = [pooled.node().await, pooled.node().await];
    push_all(&nodes[0], (0..200).map(|_| job("q")).collect()).await;
    let mut claims = tokio::task::JoinSet::new();
    for n in 0..4 {
        let store = nodes[n % 2].clone();
        claims.spawn(async move {
            let worker = register(&store, &["q"]).await;
            let mut ids = Vec::new();
            loop {
                let got = claim(&store, worker, 9).await;
                if got.is_empty() {
                    return ids;
                }
                for claimed in got {
                    assert_eq!(finish(&store, worker, &claimed).await, SettleStatus::Applied);
                    ids.push(claimed.id);
                }
            }
        });
    }
    let ids: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "a job was claimed twice");
    assert_counters_match(&nodes[1]).await;
}
