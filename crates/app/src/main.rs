//! The one binary. It reads the command line, the environment and the configuration file, and runs one command.

mod cli;
mod config;
mod demo;
mod telemetry;

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;

use cli::exit::{self, Exit};

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// How long what is still under way may take once a command is done. A read of stdin whose upload was refused would not end
/// until somebody types.
const LAST_WORK: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    match run() {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error).into(),
    }
}

fn run() -> anyhow::Result<Exit> {
    let cli = config::parse(std::env::args_os())?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start")?;
    let exit = runtime.block_on(cli::run(cli)).unwrap_or_else(|error| exit::report(&error));
    runtime.shutdown_timeout(LAST_WORK);
    Ok(exit)
}
