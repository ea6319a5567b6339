//! `windlass completions`: prints the script with which a shell asks the binary for completions.

use anyhow::Context;
use clap::{Args, ValueEnum};
use clap_complete::env::Shells;

use super::exit::Exit;
use super::output;

/// The variable that makes the binary complete a command line instead of running it.
const VARIABLE: &str = "COMPLETE";

#[derive(Args)]
#[command(after_help = "\
Files of the scripts:
  bash  ~/.local/share/bash-completion/completions/windlass
  zsh   a directory of $fpath, as _windlass
  fish  ~/.config/fish/completions/windlass.fish

The script calls the binary, which asks the server for ids and names (--url, WINDLASS_URL, WINDLASS_TOKEN).")]
pub(crate) struct CompletionsArgs {
    shell: ShellName,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "lower")]
enum ShellName {
    Bash,
    Elvish,
    Fish,
    PowerShell,
    Zsh,
}

impl ShellName {
    fn as_str(self) -> &'static str {
        match self {
            Self::Bash => "bash",
            Self::Elvish => "elvish",
            Self::Fish => "fish",
            Self::PowerShell => "powershell",
            Self::Zsh => "zsh",
        }
    }
}

pub(super) fn run(args: &CompletionsArgs) -> anyhow::Result<Exit> {
    let shells = Shells::builtins();
    let shell = shells.completer(args.shell.as_str()).context("the shell is not supported")?;
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "windlass", "windlass", "windlass", &mut script)?;
    output::line(String::from_utf8_lossy(&script).trim_end())?;
    Ok(Exit::Done)
}
