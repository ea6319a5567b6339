//! A PostgreSQL server of a test's own, for what would disturb the others: stopping it, crashing it.

use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::{PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;
use tempfile::TempDir;

use super::{Program, free_port, until};

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
            chown(folder.path(), Some(user), Some(group)).expect("root gives the folder away");
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

    /// Starts the server again on its port.
    pub(crate) async fn run(&mut self) {
        let mut command = self.command("postgres");
        command.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-h", "127.0.0.1"]);
        // Durability stays as in production: the journeys are about what survives.
        command.args(["-c", "unix_socket_directories=", "-c", "fsync=on", "-c", "synchronous_commit=on"]);
        self.postmaster = Some(Program::start(self.folder.path(), &mut command));
        let url = self.url();
        until("PostgreSQL takes connections", async || {
            TcpStream::connect(("127.0.0.1", self.port)).ok()?;
            tokio_postgres::connect(&url, tokio_postgres::NoTls).await.ok().map(drop)
        })
        .await;
    }

    /// Like `pg_ctl stop -m immediate`: no checkpoint, no goodbye; the next start recovers.
    pub(crate) async fn crash(&mut self) {
        let mut postmaster = self.postmaster.take().expect("the server runs");
        postmaster.signal(Signal::QUIT);
        postmaster.ended().await;
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://postgres@127.0.0.1:{}/postgres", self.port)
    }

    pub(crate) fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    /// Writes a file of the server's own into its folder.
    pub(crate) fn put(&self, name: &str, text: &str) {
        let path = self.data().join(name);
        std::fs::write(&path, text).expect("the folder takes files");
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).expect("they are ours to change");
        if let Some((user, group)) = self.owner {
            chown(&path, Some(user), Some(group)).expect("root gives the file away");
        }
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(binaries().join(program));
        // The user it runs as may not be able to enter our directory.
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
            // Killed outright it would leave its children to notice by themselves.
            if postmaster.has_ended().is_none() {
                postmaster.signal(Signal::QUIT);
                while postmaster.has_ended().is_none() {
                    std::thread::sleep(std::time::Duration::from_millis(10));
                }
            }
        }
    }
}

/// Debian keeps the server programs off PATH, one folder for each major version.
fn binaries() -> PathBuf {
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let found = versions.map(|version| version.path().join("bin")).filter(|bin| bin.join("initdb").exists());
    found.max().unwrap_or_default()
}

/// The ids of a user and of its group.
fn user(name: &str) -> (u32, u32) {
    let users = std::fs::read_to_string("/etc/passwd").expect("the machine has users");
    let line = users.lines().find(|line| line.split(':').next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("there is no user {name} to run PostgreSQL as"));
    let id = |position| line.split(':').nth(position).and_then(|id| id.parse().ok()).expect("users have ids");
    (id(2), id(3))
}
