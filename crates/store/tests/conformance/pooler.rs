//! PgBouncer in transaction mode between the store and PostgreSQL: nothing may live in a session.

use std::io::{BufRead, BufReader};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::{Child, Command, Stdio};

use store::jobs::enqueue::{Extras, NewJob};
use store::jobs::settle::{End, Status};
use store::{DatabaseUrl, Store, StoreOptions};
use tempfile::TempDir;
use testkit::{Database, job, label};

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
    /// In front of the test server. A missing program fails the test.
    fn start(server_port: u16) -> Self {
        let mut told = Vec::new();
        // It must be told its port, and one that was free a moment ago may be taken.
        for _ in 0..10 {
            let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
            let port = free.local_addr().expect("it has an address").port();
            drop(free);
            match Self::start_at(port, server_port) {
                Ok(up) => return up,
                Err(log) => told.extend(log),
            }
        }
        panic!("pgbouncer did not come up: {told:?}");
    }

    /// Gives what it said where it did not come up.
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
        std::fs::write(&file, settings).expect("the settings are written");
        // It refuses to run as root, and its user must reach the folder.
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
            .expect("pgbouncer starts: the Debian package pgbouncer brings it");
        let mut log = BufReader::new(process.stderr.take().expect("is piped")).lines();
        let started = Self { process, port, _folder: folder };
        let mut told = Vec::new();
        let up = log.by_ref().map_while(Result::ok).any(|line| {
            told.push(line.clone());
            line.contains("process up")
        });
        if !up {
            return Err(told);
        }
        // What it says from now on is read, that it never waits for a reader.
        std::thread::spawn(move || log.for_each(drop));
        Ok(started)
    }
}

/// A migrated database, and a way to open nodes on it through the pooler.
struct Behind {
    direct: Database,
    url: DatabaseUrl,
    _pooler: PgBouncer,
}

impl Behind {
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
async fn a_pooler_in_transaction_mode_is_noticed() {
    let behind = Behind::start().await;
    assert!(behind.node().await.is_behind_a_pooler());
    assert!(!behind.direct.store.is_behind_a_pooler());
}

#[tokio::test]
async fn x8_the_way_of_a_job_works_through_a_pooler() {
    let behind = Behind::start().await;
    let (store, other) = (behind.node().await, behind.node().await);
    assert_eq!(store.migrate_up().await.expect("goes up"), [] as [i64; 0]);
    let keyed = || {
        let extras = Extras { concurrency_key: Some(label("c")), timeout_s: Some(5), ..Extras::default() };
        NewJob { extras: Some(Box::new(extras)), ..job("q") }
    };
    let ids: Vec<_> = push_all(&store, vec![job("q"), job("q"), keyed(), keyed()]).await.iter().map(|j| j.id).collect();
    let later = push(&other, NewJob { run_at: Some(behind.direct.clock.now().plus_s(60)), ..job("q") }).await;
    let (first, second) = (register(&store, &["q"]).await, register(&other, &["q"]).await);
    let claimed = claim(&store, first, 10).await;
    assert_eq!(claimed.iter().map(|job| job.id).collect::<Vec<_>>(), ids[..3]);
    assert!(claim(&other, second, 10).await.is_empty());
    assert_eq!(finish(&other, first, &claimed[0]).await, Status::Applied, "any node takes the outcome");
    assert_eq!(finish(&store, first, &claimed[0]).await, Status::AlreadyEnded);
    assert_eq!(settle(&store, first, ids[1], claimed[1].epoch, End::Fail(boom())).await, Status::Applied);
    behind.direct.pass_ms(6_000).await;
    assert_eq!(other.sweep().await.expect("sweeps").timed_out, 1);
    settle(&store, first, ids[2], claimed[2].epoch, End::Cancel).await;
    assert_eq!(claim_one(&other, second).await.id, ids[3], "the key is free");
    behind.direct.pass_ms(31_000).await;
    assert_eq!(store.sweep().await.expect("sweeps").workers, 2);
    assert_eq!(state(&store, ids[3]).await, "queued");
    behind.direct.pass_ms(30_000).await;
    store.promote_due().await.expect("promotes");
    assert_eq!(state(&other, later).await, "queued");
    assert_eq!(events(&store, ids[3]).await, ["enqueued", "started", "expired"]);
    store.list_jobs(T, Default::default(), None, 10).await.expect("lists");
    store.why(T, later).await.expect("answers");
    store.fold_counters().await.expect("folds");
    store.prune(1_000).await.expect("prunes");
    sound(&store).await;
}

#[tokio::test]
async fn x12_who_waits_in_a_transaction_is_let_go_of_with_and_without_a_pooler() {
    let behind = Behind::start().await;
    let in_force = async |store: &Store, setting: &str| {
        let text = format!("select current_setting('{setting}')");
        texts(store, "", &text).await.remove(0)
    };
    for store in [&behind.direct.store, &behind.node().await] {
        assert_eq!(in_force(store, "idle_in_transaction_session_timeout").await, "30s");
        assert_eq!(in_force(store, "lock_timeout").await, "20s");
    }
    assert_eq!(in_force(&behind.direct.store, "tcp_keepalives_idle").await, "10", "in a session of its own");
}

#[tokio::test]
async fn x3_no_job_goes_to_two_workers_through_a_pooler() {
    let behind = Behind::start().await;
    let nodes = [behind.node().await, behind.node().await];
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
                    assert_eq!(finish(&store, worker, &claimed).await, Status::Applied);
                    ids.push(claimed.id);
                }
            }
        });
    }
    let ids: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
    let distinct: std::collections::BTreeSet<_> = ids.iter().copied().collect();
    assert_eq!(distinct.len(), ids.len(), "a job was handed out twice");
    sound(&nodes[1]).await;
}
