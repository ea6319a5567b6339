//! Campaigns: faults in great number on the real program, judged by what its clients saw (`testkit::history`).
//!
//! `scripts/torture` runs these and says how large: `scripts/test` a few minutes of them, a person as much as there is time
//! for. Every campaign is seeded, bounded, and prints its figures.

mod disk;
mod kills;
mod load;
mod network;
mod nodes;
mod power;
mod steady;
mod storm;
mod upgrade;

use std::path::PathBuf;

/// How much to do. A short run unless the environment says otherwise.
struct Plan {
    seed: u64,
    /// Servers and workers to kill, on each database.
    kills: usize,
    /// Power cuts to replay.
    cuts: usize,
    /// Faults under a load at a set rate.
    faults: usize,
    /// For how many seconds a rate is to be held.
    hold_s: u64,
    /// The program that is upgraded from.
    older: Option<PathBuf>,
}

impl Plan {
    fn read() -> Self {
        Self {
            seed: setting("WINDLASS_TORTURE_SEED").unwrap_or(1),
            kills: setting("WINDLASS_TORTURE_KILLS").unwrap_or(20) as usize,
            cuts: setting("WINDLASS_TORTURE_CUTS").unwrap_or(2_000) as usize,
            faults: setting("WINDLASS_TORTURE_FAULTS").unwrap_or(6) as usize,
            hold_s: setting("WINDLASS_TORTURE_HOLD").unwrap_or(600),
            older: text("WINDLASS_TORTURE_OLDER").map(PathBuf::from),
        }
    }
}

fn setting(name: &str) -> Option<u64> {
    let text = text(name)?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} is a number, not `{text}`")))
}

#[expect(clippy::disallowed_methods, reason = "scripts/torture says here how long the campaigns are to be")]
fn text(name: &str) -> Option<String> {
    std::env::var(name).ok()
}
