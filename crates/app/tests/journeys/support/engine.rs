//! A Docker engine of a test's own: the engine of another machine, or one that can be stopped under a runtime.

use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use testkit::docker::Docker;

static NEXT: AtomicU32 = AtomicU32::new(0);

pub(crate) struct OwnEngine {
    folder: PathBuf,
    address: String,
}

impl OwnEngine {
    pub(crate) fn start() -> Self {
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // A short path: that of a socket has its limits.
        let folder = PathBuf::from(format!("/tmp/windlass-engine-{}-{number}", std::process::id()));
        let mut engine = Self { folder, address: String::new() };
        engine.address = engine.script("start");
        engine
    }

    pub(crate) fn start_again(&self) {
        self.script("start");
    }

    /// Through Docker's own command line, with the images of tests in it.
    pub(crate) fn docker(&self) -> Docker {
        Docker::at(&self.address)
    }

    fn script(&self, verb: &str) -> String {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scripts/docker");
        let done = Command::new(script).arg(verb).arg(&self.folder).output().expect("the script runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim().to_owned()
    }

    /// Ends the engine and nothing else: its containers end with it and are there when it is started again.
    pub(crate) fn end(&self) {
        self.script("end");
    }
}

impl Drop for OwnEngine {
    fn drop(&mut self) {
        self.script("stop");
        // What is left of it is a log; a folder that stays is no failure.
        let _left = std::fs::remove_dir_all(&self.folder);
    }
}
