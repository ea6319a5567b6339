//! Settings from flags, `WINDLASS_*` variables and a TOML file, in this order. Values of the file become the defaults
//! of flags.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use anyhow::Context;
use clap::error::{ContextKind, ContextValue};
use clap::{ArgAction, FromArgMatches};

use crate::cli::Cli;
use crate::cli::exit::UsageError;

/// Parses the command line. On a usage error, prints clap's message and exits the process.
pub(crate) fn parse(args: impl IntoIterator<Item = OsString>) -> anyhow::Result<Cli> {
    let args: Vec<OsString> = args.into_iter().collect();
    let mut command = command();
    if let Some(path) = file(&args) {
        let text = std::fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        command = with_defaults(command, &text).with_context(|| format!("in {}", path.display()))?;
    }
    let matches = match command.clone().try_get_matches_from(args) {
        Ok(matches) => matches,
        Err(error) => match verb_without_noun(&command, &error) {
            Some(message) => return Err(UsageError(message).into()),
            None => error.exit(),
        },
    };
    Ok(Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.exit()))
}

/// The message for a verb without its noun: `windlass push` for `windlass job push`.
fn verb_without_noun(command: &clap::Command, error: &clap::Error) -> Option<String> {
    let Some(ContextValue::String(word)) = error.get(ContextKind::InvalidSubcommand) else { return None };
    // Another command was wrong below a noun.
    if !error.to_string().contains("Usage: windlass [") {
        return None;
    }
    let has_verb = |noun: &&clap::Command| {
        noun.get_subcommands().any(|verb| verb.get_name() == word || verb.get_all_aliases().any(|alias| alias == word))
    };
    let nouns = command.get_subcommands().filter(|noun| !noun.is_hide_set()).filter(has_verb);
    let commands: Vec<String> = nouns.map(|noun| format!("`windlass {} {word}`", noun.get_name())).collect();
    match commands.as_slice() {
        [] => None,
        [only] => Some(format!("unrecognized command `{word}`; did you mean {only}?")),
        many => Some(format!("unrecognized command `{word}`; did you mean one of {}?", many.join(", "))),
    }
}

fn command() -> clap::Command {
    without_empty_variables(crate::cli::command())
}

/// Ignores environment variables that are empty, because that is how container and service files unset one.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let updated = |arg: clap::Arg| match arg.get_env().is_some_and(is_empty) {
        true => arg.env(None::<&'static str>),
        false => arg,
    };
    command.mut_args(updated).mut_subcommands(without_empty_variables)
}

#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
fn is_empty(variable: &OsStr) -> bool {
    std::env::var_os(variable).is_some_and(|value| value.is_empty())
}

/// The file given by `serve --config` or its variable, at any position of the command line. Returns `None` for an
/// invalid command line, which is reported when it is parsed again.
fn file(args: &[OsString]) -> Option<PathBuf> {
    let matches = command().try_get_matches_from(args).ok()?;
    matches.subcommand_matches("serve")?.get_one::<PathBuf>("config").cloned()
}

/// The secret that signs webhooks if a command names a webhook without a secret. Not declared as the variable of a
/// flag, because clap would then treat the flag as given even without a webhook.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn webhook_secret() -> Option<String> {
    std::env::var("WINDLASS_WEBHOOK_SECRET").ok().filter(|secret| !secret.is_empty())
}

/// Variables that a program of `windlass work` must not inherit, with the values to pass instead: a job's code needs no
/// access to the server.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn withheld_variables() -> Vec<(&'static str, Option<String>)> {
    let url = std::env::var("WINDLASS_URL").ok();
    vec![
        ("WINDLASS_TOKEN", None),
        ("WINDLASS_TOKEN_FILE", None),
        ("WINDLASS_WEBHOOK_SECRET", None),
        ("WINDLASS_URL", url.map(|url| without_credentials(&url))),
    ]
}

/// Returns the URL without user name and password.
fn without_credentials(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (authority, path) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
    let host = authority.rsplit_once('@').map_or(authority, |(_, host)| host);
    format!("{scheme}://{host}{path}")
}

/// The directories that are searched for programs.
#[expect(clippy::disallowed_methods, reason = "this is where the environment is read")]
pub(crate) fn program_folders() -> Vec<PathBuf> {
    // The system's default if PATH is not set.
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    std::env::split_paths(&path).collect()
}

fn with_defaults(command: clap::Command, text: &str) -> anyhow::Result<clap::Command> {
    let table: toml::Table = text.parse().map_err(|error: toml::de::Error| UsageError(error.to_string()))?;
    let serve = command.find_subcommand("serve").map(|serve| serve.get_arguments().cloned().collect::<Vec<_>>());
    let settings = serve.unwrap_or_default();
    let mut command = command;
    for (key, value) in table {
        let flag = key.replace('_', "-");
        let Some(arg) = settings.iter().find(|arg| arg.get_long() == Some(flag.as_str()) && flag != "config") else {
            return Err(UsageError(format!("unknown setting `{key}`; settings are the flags of `serve`")).into());
        };
        let (id, takes_value) = (arg.get_id().clone(), arg.get_action().takes_values());
        let values = match value {
            toml::Value::Array(items) if matches!(arg.get_action(), ArgAction::Append) => items,
            value => vec![value],
        };
        let values = values.into_iter().map(|value| written(&key, value)).collect::<Result<Vec<_>, _>>()?;
        // Hide values of the file from the help, because they may contain passwords.
        let with_values = |arg: clap::Arg| arg.default_values(values).hide_default_value(takes_value);
        command = command.mut_subcommand("serve", |serve| serve.mut_arg(id, with_values));
    }
    Ok(command)
}

/// The value as it would be typed. Leaked, because clap requires static defaults.
fn written(key: &str, value: toml::Value) -> Result<&'static str, UsageError> {
    let text = match value {
        toml::Value::String(text) => text,
        toml::Value::Boolean(flag) => flag.to_string(),
        toml::Value::Integer(number) => number.to_string(),
        toml::Value::Float(number) => number.to_string(),
        _ => return Err(UsageError(format!("`{key}` must be a string, a number or a boolean"))),
    };
    Ok(text.leak())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

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

    /// Requirement X7.
    #[test]
    fn a_url_is_passed_on_without_its_credentials() {
        for (url, passed) in [
            ("http://127.0.0.1:7717", "http://127.0.0.1:7717"),
            ("https://ann:secret@w.example/p@th", "https://w.example/p@th"),
            ("https://ann:se@cret@w.example:1?a", "https://w.example:1?a"),
            ("https://ann@w.example", "https://w.example"),
            ("w.example", "w.example"),
        ] {
            assert_eq!(without_credentials(url), passed);
        }
    }

    #[test]
    fn a_flag_overrides_the_configuration_file() {
        let file = "listen = \"127.0.0.1:1\"\ndemo = true";
        assert_eq!(serve(file, &["windlass", "serve"]), Ok("127.0.0.1:1 true".into()));
        assert_eq!(serve(file, &["windlass", "serve", "--listen", "127.0.0.1:2"]), Ok("127.0.0.1:2 true".into()));
    }

    #[test]
    fn a_repeatable_option_is_a_list_in_the_file() {
        let labels = |file: &str| args(file, &["windlass", "serve"]).map(|args| args.drive.engine_label);
        let both = Ok(vec!["gpu=a100".to_owned(), "zone=b".to_owned()]);
        assert_eq!(labels(r#"engine_label = ["gpu=a100", "zone=b"]"#), both);
        assert_eq!(labels(r#"engine_label = "gpu=a100,zone=b""#), both, "as in a variable");
        assert_eq!(labels("engine_label = []"), Ok(vec![]));
        let error = serve(r#"listen = ["127.0.0.1:1"]"#, &["windlass", "serve"]).unwrap_err();
        assert!(error.contains("`listen` must be a string"), "{error}");
    }

    #[test]
    fn the_config_option_is_found_at_any_position_before_the_dashes() {
        let named = |args: &[&str]| file(&args.iter().map(OsString::from).collect::<Vec<_>>());
        let given = Some(PathBuf::from("a.toml"));
        assert_eq!(named(&["windlass", "serve", "--config", "a.toml"]), given);
        assert_eq!(named(&["windlass", "--output", "json", "serve", "--demo", "--config=a.toml"]), given);
        assert_eq!(named(&["windlass", "work", "--queue", "q", "--", "serve", "--config", "a.toml"]), None);
    }

    #[test]
    fn the_help_does_not_show_values_from_the_file() {
        let file = "database = \"postgres://me:s3cret@db/jobs\"";
        let mut command = with_defaults(Cli::command(), file).unwrap();
        let help = command.find_subcommand_mut("serve").unwrap().render_long_help().to_string();
        assert!(help.contains("--database") && !help.contains("s3cret"), "{help}");
    }

    #[test]
    fn a_verb_without_its_noun_is_suggested_with_it() {
        let suggested = |words: &[&str]| {
            let error = command().try_get_matches_from(words).expect_err("the command is unknown");
            verb_without_noun(&command(), &error)
        };
        let expected = "unrecognized command `push`; did you mean `windlass job push`?";
        assert_eq!(suggested(&["windlass", "push"]).as_deref(), Some(expected));
        let pause = suggested(&["windlass", "--output", "json", "resume", "mail"]);
        assert_eq!(pause.as_deref(), Some("unrecognized command `resume`; did you mean `windlass queue resume`?"));
        assert!(
            suggested(&["windlass", "cancel"]).unwrap().contains("one of `windlass job cancel`, `windlass run cancel`")
        );
        assert_eq!(suggested(&["windlass", "jobb"]), None, "clap suggests similar commands");
        assert_eq!(suggested(&["windlass", "queue", "push"]), None);
    }

    #[test]
    fn an_unknown_setting_is_named() {
        let error = serve("lisen = \"x\"", &["windlass", "serve"]).unwrap_err();
        assert!(error.contains("`lisen`"), "{error}");
    }
}
