//! `windlass man`, hidden: writes a manual page per command. `scripts/package` calls it.

use std::path::PathBuf;

use anyhow::Context;
use clap::Args;

use super::exit::Exit;

#[derive(Args)]
pub(crate) struct ManArgs {
    /// Directory for the pages. It must exist
    directory: PathBuf,
}

pub(super) fn run(args: &ManArgs) -> anyhow::Result<Exit> {
    clap_mangen::generate_to(super::command(), &args.directory)
        .with_context(|| format!("cannot write manual pages to {}", args.directory.display()))?;
    Ok(Exit::Done)
}
