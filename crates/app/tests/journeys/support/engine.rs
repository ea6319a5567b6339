//! A Docker engine that belongs to one test: the engine of another machine, or one that a test stops.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use testkit::docker::Docker;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct DockerEngine {
    folder: PathBuf,
    address: String,
}

impl DockerEngine {
    pub(crate) fn start() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A short path, because the path of a Unix socket is limited to about 100 bytes.
        let folder = PathBuf::from(format!("/tmp/windlass-engine-{}-{number}", std::process::id()));
        let mut engine = Self { folder, address: String::new() };
        engine.address = engine.script("start");
        engine
    }

    pub(crate) fn restart(&self) {
        self.script("start");
    }

    /// Docker's command line on this engine, which has the test images loaded.
    pub(crate) fn docker(&self) -> Docker {
        Docker::at(&self.address)
    }

    fn script(&self, verb: &str) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/docker");
        let output = Command::new(script).arg(verb).arg(&self.folder).output().expect("the script runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    /// Stops only the engine. Its containers stop with it and still exist when it is started again.
    pub(crate) fn stop(&self) {
        self.script("end");
    }
}

impl Drop for DockerEngine {
    fn drop(&mut self) {
        self.script("stop");
        // Only the log remains in the folder. A folder that cannot be removed does not fail the test.
        let _removed = std::fs::remove_dir_all(&self.folder);
    }
}
