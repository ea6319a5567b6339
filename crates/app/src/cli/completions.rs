//! Shell completions, generated from the command tree.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::exit::Exit;
use super::{Cli, output};

#[derive(Args)]
pub(crate) struct CompletionsArgs {
    shell: Shell,
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "windlass", &mut script);
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}
