//! Flags, then `WINDLASS_*`, then a TOML file: what the file says becomes the default of the flag of the same name.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Context;
use clap::{ArgAction, CommandFactory, FromArgMatches};

use crate::cli::Cli;
use crate::cli::exit::UsageError;

/// Reads the command line. A mistake in it prints what clap says and ends the process, as every command line does.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Cli> {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut command = command();
    if let Some(path) = file(&args) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        command = with_defaults(command, &text).with_context(|| format!("in {}", path.display()))?;
    }
    let matches = command.get_matches_from(args);
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

fn command() -> clap::Command {
    heeding_what_is_set(Cli::command())
}

/// Without the variables that are empty: that is how a file for a container or a service leaves one out.
fn heeding_what_is_set(command: clap::Command) -> clap::Command {
    let heeded = |arg: clap::Arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(None::<&'static str>),
        false => arg,
    };
    command.mut_args(heeded).mut_subcommands(heeding_what_is_set)
}

#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn is_empty(variable: &OsStr) -> bool {
    std::env::var_os(variable).is_some_and(|value| value.is_empty())
}

/// The file named by `--config` of `serve`, or by the environment, wherever on the command line it stands. A mistake there is
/// told by whoever reads it next.
fn file(args: &[OsString]) -> Option<PathBuf> {
    let matches = command().try_get_matches_from(args).ok()?;
    matches.subcommand_matches("serve")?.get_one::<PathBuf>("config").cloned()
}

/// What webhooks are signed with where a command names one and no secret. It is no flag's variable: clap would take it for a
/// flag that was given, also where no webhook is meant.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn webhook_secret() -> Option<String> {
    std::env::var("WINDLASS_WEBHOOK_SECRET").ok().filter(|secret| !secret.is_empty())
}

/// Where programs are looked for.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn program_folders() -> Vec<PathBuf> {
    // Without it the system looks in these.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).collect()
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
        let (id, takes_value) = (arg.get_id().clone(), arg.get_action().takes_values());
        let values = match value {
            toml::Value::Array(items) if matches!(arg.get_action(), ArgAction::Append) => items,
            value => vec![value],
        };
        let values = values.into_iter().map(|value| written(&key, value)).collect::<Result<Vec<_>, _>>()?;
        // Help is shown to whoever asks, and a file may hold passwords.
        let with_values = |arg: clap::Arg| arg.default_values(values).hide_default_value(takes_value);
        command = command.mut_subcommand("serve", |serve| serve.mut_arg(id, with_values));
    }
    Ok(command)
}

/// As it would be typed. It is kept for good, as clap keeps its defaults.
fn written(key: &str, value: toml::Value) -> Result<&'static str, UsageError> {
    let text = match value {
        toml::Value::String(text) => text,
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        _ => return Err(UsageError(format!("`{key}` must be a text, a number or true or false"))),
    };
    Ok(text.leak())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Command;
    use crate::cli::serve::ServeArgs;

    fn args(file: &str, args: &[&str]) -> Result<Box<ServeArgs>, String> {
        let command = with_defaults(Cli::command(), file).map_err(|error| error.to_string())?;
        let matches = command.try_get_matches_from(args).map_err(|error| error.to_string())?;
        match Cli::from_arg_matches(&matches).map_err(|error| error.to_string())?.command {
            Command::Serve(args) => Ok(args),
            _ => Err("another command".into()),
        }
    }

    fn serve(file: &str, typed: &[&str]) -> Result<String, String> {
        args(file, typed).map(|args| format!("{} {}", args.listen, args.demo))
    }

    #[test]
    fn the_file_gives_defaults_and_a_flag_wins() {
        let file = "listen = \"127.0.0.1:1\"\ndemo = true";
        assert_eq!(serve(file, &["windlass", "serve"]), Ok("127.0.0.1:1 true".into()));
        assert_eq!(serve(file, &["windlass", "serve", "--listen", "127.0.0.1:2"]), Ok("127.0.0.1:2 true".into()));
    }

    #[test]
    fn what_may_be_given_again_is_a_list_in_the_file() {
        let labels = |file: &str| args(file, &["windlass", "serve"]).map(|args| args.drive.engine_label);
        let both = Ok(vec!["gpu=a100".to_owned(), "zone=b".to_owned()]);
        assert_eq!(labels(r#"engine_label = ["gpu=a100", "zone=b"]"#), both);
        assert_eq!(labels(r#"engine_label = "gpu=a100,zone=b""#), both, "as in a variable");
        assert_eq!(labels("engine_label = []"), Ok(vec![]));
        let error = serve(r#"listen = ["127.0.0.1:1"]"#, &["windlass", "serve"]).unwrap_err();
        assert!(error.contains("`listen` must be a text"), "{error}");
    }

    #[test]
    fn the_file_is_found_wherever_it_is_named() {
        let named = |args: &[&str]| file(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let given = Some(PathBuf::from("a.toml"));
        assert_eq!(named(&["windlass", "serve", "--config", "a.toml"]), given);
        assert_eq!(named(&["windlass", "--output", "json", "serve", "--demo", "--config=a.toml"]), given);
        assert_eq!(named(&["windlass", "work", "--queue", "q", "--", "serve", "--config", "a.toml"]), None);
    }

    #[test]
    fn help_tells_nothing_of_what_the_file_holds() {
        let file = "database = \"postgres://me:s3cret@db/jobs\"";
        let mut command = with_defaults(Cli::command(), file).unwrap();
        let help = command.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        assert!(help.contains("--database") && !help.contains("s3cret"), "{help}");
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = serve("lisen = \"x\"", &["windlass", "serve"]).unwrap_err();
        assert!(error.contains("`lisen`"), "{error}");
    }
}
