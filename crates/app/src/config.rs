//! Flags, then `WINDLASS_*`, then a TOML file: what the file says becomes the default of the flag of the same name.

use std::ffi::OsString;
use std::path::PathBuf;

use anyhow::Context;
use clap::{CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::cli::exit::UsageError;

/// Reads the command line. A mistake in it prints what clap says and ends the process, as every command line does.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Cli> {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut command = Cli::command();
    if let Some(path) = file(&args) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        command = with_defaults(command, &text).with_context(|| format!("in {}", path.display()))?;
    }
    let matches = command.get_matches_from(args);
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// The file named by `--config` of `serve`, or by the environment.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn file(args: &[OsString]) -> Option<PathBuf> {
    if args.get(1).is_none_or(|command| command != "serve") {
        return None;
    }
    let mut rest = args.iter().skip(2);
    while let Some(arg) = rest.next() {
        if arg == "--config" {
            return rest.next().map(PathBuf::from);
        }
        if let Some(path) = arg.to_str().and_then(|arg| arg.strip_prefix("--config=")) {
            return Some(path.into());
        }
    }
    std::env::var_os("WINDLASS_CONFIG").map(PathBuf::from)
}

fn with_defaults(command: clap::Command, text: &str) -> anyhow::Result<clap::Command> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| UsageError(error.to_string()))?;
    let serve = command.find_subcommand("serve").map(|serve| serve.get_arguments().cloned().collect::<Vec<_>>());
    let known = serve.unwrap_or_default();
    let mut command = command;
    for (key, value) in table {
        let flag = key.replace('_', "-");
        let Some(arg) = known.iter().find(|arg| arg.get_long() == Some(flag.as_str()) && flag != "config") else {
            return Err(UsageError(format!("`{key}` is not a setting; every flag of `serve` is one")).into());
        };
        let id = arg.get_id().clone();
        let value: &'static str = match value {
            toml::Value::String(text) => text.leak(),
            toml::Value::Boolean(flag) => {
                if flag {
                    "true"
                } else {
                    "false"
                }
            }
            toml::Value::Integer(number) => number.to_string().leak(),
            toml::Value::Float(number) => number.to_string().leak(),
            _ => return Err(UsageError(format!("`{key}` must be a text, a number or true or false")).into()),
        };
        command = command.mut_subcommand("serve", |serve| serve.mut_arg(id, |arg| arg.default_value(value)));
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;

    fn serve(file: &str, args: &[&str]) -> Result<String, String> {
        let command = with_defaults(Cli::command(), file).map_err(|error| error.to_string())?;
        let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
        match Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?.command {
            Command::Serve(args) => Ok(format!("{} {}", args.listen, args.demo)),
            _ => Err("another command".into()),
        }
    }

    #[test]
    fn the_file_gives_defaults_and_a_flag_wins() {
        let file = "listen = \"127.0.0.1:1\"\ndemo = true";
        assert_eq!(serve(file, &["windlass", "serve"]), Ok("127.0.0.1:1 true".into()));
        assert_eq!(serve(file, &["windlass", "serve", "--listen", "127.0.0.1:2"]), Ok("127.0.0.1:2 true".into()));
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = serve("lisen = \"x\"", &["windlass", "serve"]).unwrap_err();
        assert!(error.contains("`lisen`"), "{error}");
    }
}
