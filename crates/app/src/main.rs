//! The one binary. It reads the command line, the environment and the configuration file, and runs one command.

mod cli;
mod config;
mod demo;
mod telemetry;

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[tokio::main]
async fn main() -> ExitCode {
    let cli = match config::parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(error) => return cli::exit::report(&error).into(),
    };
    match cli::run(cli).await {
        Ok(exit) => exit.into(),
        Err(error) => cli::exit::report(&error).into(),
    }
}
