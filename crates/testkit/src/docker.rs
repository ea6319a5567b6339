//! The Docker engine that tests use, through Docker's command line.
//!
//! `WINDLASS_TEST_DOCKER` is the address of its socket. Without it tests fail, because a test that skips Docker proves
//! nothing.

use std::path::Path;
use std::process::{Command, Output, Stdio};

/// A small image with busybox, created locally because nothing can be pulled. Its versions differ only in their tag.
pub const IMAGE: &str = "windlass-test/busybox:1.0.0";
pub const IMAGE_PATCHED: &str = "windlass-test/busybox:1.0.1";
pub const IMAGE_NEWER: &str = "windlass-test/busybox:1.1.0";

/// Serves `/www` on port 8080, including `/www/health`, and exits on SIGTERM.
pub const SERVE: &str =
    "trap 'exit 0' TERM; mkdir -p /www; echo ok > /www/health; echo serving; httpd -f -p 8080 -h /www & wait";

#[derive(Clone, Debug)]
pub struct Docker {
    pub host: String,
}

impl Docker {
    #[expect(clippy::disallowed_methods, reason = "scripts/test passes the address of Docker to tests")]
    pub fn engine() -> Self {
        let host = std::env::var("WINDLASS_TEST_DOCKER")
            .expect("WINDLASS_TEST_DOCKER must be the address of a Docker engine for tests; scripts/test sets it");
        let docker = Self { host };
        docker.ensure_images();
        docker
    }

    /// Another Docker engine at this socket. Creates the images.
    pub fn at(host: &str) -> Self {
        let docker = Self { host: host.to_owned() };
        docker.ensure_images();
        docker
    }

    /// Runs a command that must succeed. Returns its trimmed output.
    pub fn run(&self, args: &[&str]) -> String {
        let Output { status, stdout, stderr } = self.try_run(args);
        assert!(status.success(), "docker {args:?}: {}", String::from_utf8_lossy(&stderr));
        String::from_utf8_lossy(&stdout).trim().to_owned()
    }

    pub fn try_run(&self, args: &[&str]) -> Output {
        Command::new("docker").arg("--host").arg(&self.host).args(args).output().expect("Docker's command line starts")
    }

    /// The ids of the containers with this label, including stopped ones.
    pub fn labelled(&self, label: &str) -> Vec<String> {
        let ids = self.run(&["ps", "--all", "--quiet", "--no-trunc", "--filter", &format!("label={label}")]);
        ids.lines().map(str::to_owned).collect()
    }

    /// The path of the socket.
    pub fn socket(&self) -> &Path {
        Path::new(self.host.strip_prefix("unix://").expect("a socket"))
    }

    fn ensure_images(&self) {
        if self.try_run(&["image", "inspect", IMAGE_NEWER]).status.success() {
            return;
        }
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bin = folder.path().join("bin");
        std::fs::create_dir(&bin).expect("a folder");
        for name in ["tmp", "proc", "sys", "dev", "etc"] {
            std::fs::create_dir(folder.path().join(name)).expect("a folder");
        }
        std::fs::copy("/bin/busybox", bin.join("busybox")).expect("busybox, linked statically, is installed");
        for name in ["sh", "httpd", "sleep", "echo", "cat", "ls", "rm", "mkdir", "touch"] {
            std::os::unix::fs::symlink("busybox", bin.join(name)).expect("a link");
        }
        let tar = Command::new("tar").arg("-C").arg(folder.path()).args(["-c", "."]).stdout(Stdio::piped()).spawn();
        let mut tar = tar.expect("tar starts");
        let import = Command::new("docker")
            .args(["--host", &self.host, "import", "-", IMAGE])
            .stdin(tar.stdout.take().expect("tar writes"))
            .output()
            .expect("Docker's command line starts");
        assert!(import.status.success(), "{}", String::from_utf8_lossy(&import.stderr));
        assert!(tar.wait().expect("tar ends").success());
        self.run(&["tag", IMAGE, IMAGE_PATCHED]);
        self.run(&["tag", IMAGE, IMAGE_NEWER]);
    }
}
