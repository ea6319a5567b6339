//! The `windlass` binary. Parses the command line, environment and configuration file, and runs one command.

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

/// How long remaining background work may take after a command has finished. A blocking read of stdin, for an upload
/// that the server rejected, would otherwise wait for input forever.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    // Completes a command line and exits if the shell's script asks for it.
    clap_complete::CompleteEnv::with_factory(cli::complete::command).complete();
    match run() {
        Ok(exit) => exit.into(),
        Err(error) => exit::report(&error).into(),
    }
}

fn run() -> anyhow::Result<Exit> {
    let cli = config::parse(std::env::args_os())?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")?;
    let exit = runtime.block_on(cli::run(cli)).unwrap_or_else(|error| exit::report(&error));
    runtime.shutdown_timeout(SHUTDOWN_TIMEOUT);
    Ok(exit)
}
