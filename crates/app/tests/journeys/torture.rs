//! Fault campaigns: many injected faults on the real binary, checked by what its clients observed (`testkit::history`).
//!
//! `scripts/torture` runs them and sets their size; `scripts/test` runs a few minutes of them. Every campaign is
//! seeded, bounded, and prints its figures.

mod disk;
mod failover;
mod hostile;
mod kills;
mod load;
mod network;
mod nodes;
mod power;
mod steady;
mod storm;
mod upgrade;

use std::path::PathBuf;

/// The size of the campaigns. The defaults make a short run.
struct Plan {
    seed: u64,
    /// Servers and workers to kill, on each database.
    kills: usize,
    /// Power cuts to replay.
    cuts: usize,
    /// Faults under a load at a fixed rate.
    faults: usize,
    /// Duration for which a rate must be sustained.
    sustain_s: u64,
    /// The older binary, for upgrades.
    older: Option<PathBuf>,
}

impl Plan {
    fn read() -> Self {
        Self {
            seed: setting("WINDLASS_TORTURE_SEED").unwrap_or(1),
            kills: setting("WINDLASS_TORTURE_KILLS").unwrap_or(20) as usize,
            cuts: setting("WINDLASS_TORTURE_CUTS").unwrap_or(2_000) as usize,
            faults: setting("WINDLASS_TORTURE_FAULTS").unwrap_or(6) as usize,
            sustain_s: setting("WINDLASS_TORTURE_HOLD").unwrap_or(600),
            older: text("WINDLASS_TORTURE_OLDER").map(PathBuf::from),
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = text(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not `{text}`")))
}

#[expect(clippy::disallowed_methods, reason = "scripts/torture passes the size of the campaigns")]
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
