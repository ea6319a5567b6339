//! A PostgreSQL server that belongs to one test, for faults that would disturb other tests: a stop, a crash.

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Program, eventually, free_port};

pub(crate) struct Cluster {
    // Dropped before its folder.
    postmaster: Option<Program>,
    port: u16,
    owner: Option<(u32, u32)>,
    folder: TempDir,
}

impl Cluster {
    pub(crate) async fn start() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        // PostgreSQL refuses to run as root.
        let owner = rustix::process::geteuid().is_root().then(|| user("postgres"));
        if let Some((user, group)) = owner {
            chown(folder.path(), Some(user), Some(group)).expect("root can change the owner of the folder");
        }
        let mut cluster = Self { postmaster: None, port: free_port(), owner, folder };
        let data = cluster.data();
        let mut initdb = cluster.command("initdb");
        initdb.args(["--username=postgres", "--auth=trust", "--encoding=UTF8", "--locale=C.UTF-8", "--no-sync"]);
        let output = initdb.arg("--pgdata").arg(data).output().expect("initdb starts");
        assert!(output.status.success(), "initdb: {}", String::from_utf8_lossy(&output.stderr));
        cluster.run().await;
        cluster
    }

    /// A standby that follows `primary` by streaming replication.
    pub(crate) async fn standby_of(primary: &Self) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        if let Some((user, group)) = primary.owner {
            chown(folder.path(), Some(user), Some(group)).expect("root can change the owner of the folder");
        }
        let mut standby = Self { postmaster: None, port: free_port(), owner: primary.owner, folder };
        standby.follow(primary).await;
        standby
    }

    /// Replaces the data by a copy of `primary`, and follows it by streaming replication.
    pub(crate) async fn follow(&mut self, primary: &Self) {
        assert!(self.postmaster.is_none(), "the server is stopped");
        if self.data().exists() {
            std::fs::remove_dir_all(self.data()).expect("removes the old data");
        }
        let mut copy = self.command("pg_basebackup");
        copy.args(["-h", "127.0.0.1", "-U", "postgres", "-p", &primary.port.to_string(), "--checkpoint=fast"]);
        let output = copy.args(["-X", "stream", "--no-sync", "-R", "-D"]).arg(self.data()).output();
        let output = output.expect("pg_basebackup starts");
        assert!(output.status.success(), "pg_basebackup: {}", String::from_utf8_lossy(&output.stderr));
        self.run().await;
    }

    /// Ends the recovery of a standby: it accepts writes from now on.
    pub(crate) async fn promote(&self) {
        let mut promote = self.command("pg_ctl");
        let output = promote.args(["promote", "-w", "-D"]).arg(self.data()).output().expect("pg_ctl starts");
        assert!(output.status.success(), "pg_ctl promote: {}", String::from_utf8_lossy(&output.stderr));
    }

    /// Changes a setting of the server without a restart.
    pub(crate) async fn set(&self, setting: &str, value: &str) {
        super::fixture::sql(&self.url(), &format!("alter system set {setting} to '{value}'")).await;
        super::fixture::sql(&self.url(), "select pg_reload_conf()").await;
    }

    /// Kills the postmaster with SIGKILL. Its child processes end when they notice.
    pub(crate) async fn kill(&mut self) {
        self.postmaster.take().expect("the server runs").kill().await;
    }

    /// Starts the server again on its port.
    pub(crate) async fn run(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-h", "127.0.0.1"]);
        // The default durability settings, because these tests check what survives a crash.
        command.args(["-c", "unix_socket_directories=", "-c", "fsync=on", "-c", "synchronous_commit=on"]);
        self.postmaster = Some(Program::start(self.folder.path(), &mut command));
        let url = self.url();
        eventually("PostgreSQL accepts connections", async || {
            TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.ok().map(drop)
        })
        .await;
    }

    /// Same as `pg_ctl stop -m immediate`: no checkpoint; the next start recovers from the WAL.
    pub(crate) async fn crash(&mut self) {
        let mut postmaster = self.postmaster.take().expect("the server runs");
        postmaster.signal(Signal::QUIT);
        postmaster.ended().await;
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Writes a file into the data directory, with the owner of the server.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).expect("writes the file");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("changes the permissions");
        if let Some((user, group)) = self.owner {
            chown(&path, Some(user), Some(group)).expect("root can change the owner of the file");
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(binaries().join(program));
        // The server's user may not be allowed to enter the current directory.
        command.current_dir(self.folder.path());
        if let Some((user, group)) = self.owner {
            command.uid(user).gid(group);
        }
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if let Some(mut postmaster) = self.postmaster.take() {
            // SIGKILL would leave the child processes of the postmaster running for a while.
            if postmaster.exit_status().is_none() {
                postmaster.signal(Signal::QUIT);
                // `drop` cannot await.
                while postmaster.exit_status().is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
        }
    }
}

/// Debian installs the server programs outside of PATH, in one folder per major version.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    found.max().unwrap_or_default()
}

/// Returns the user id and the group id of a user.
fn user(name: &str) -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").expect("/etc/passwd is readable");
    let line = users.lines().find(|line| line.split(':').next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("there is no user {name} to run PostgreSQL as"));
    let id = |index| line.split(':').nth(index).and_then(|id| id.parse().ok()).expect("a user has ids");
    (id(2), id(3))
}
