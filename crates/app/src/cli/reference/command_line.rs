//! The page docs/reference/cli.md: every command with its usage, arguments and options.

use std::fmt::Write;

use clap::{Arg, Command};

use super::super::exit;
use super::{flag, help_and_default, is_silently_repeatable, markdown, value_names, variable};

pub(super) fn generate() -> String {
    let mut root = super::super::command();
    root.build();
    let mut text = String::from("## Commands\n\n| command | purpose |\n|---|---|\n");
    for command in visible(&root) {
        let path = format!("windlass {}", command.get_name());
        let _ = writeln!(text, "| [`{path}`](#{}) | {} |", path.replace(' ', "-"), purpose(command));
    }
    text.push_str("\n## Global options\n\nEvery command accepts these options.\n\n");
    options(&mut text, root.get_arguments().filter(|arg| arg.is_global_set()));
    exit_codes(&mut text);
    for command in visible(&root) {
        describe(&mut text, command, "windlass", 2);
    }
    text
}

fn visible(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|command| !command.is_hide_set() && command.get_name() != "help")
}

fn describe(text: &mut String, command: &Command, parent: &str, level: usize) {
    let path = format!("{parent} {}", command.get_name());
    let _ = write!(text, "\n{} {path}\n\n{}\n", "#".repeat(level), purpose(command));
    if command.has_subcommands() {
        text.push_str("\n| command | purpose |\n|---|---|\n");
        for command in visible(command) {
            let path = format!("{path} {}", command.get_name());
            let _ = writeln!(text, "| [`{path}`](#{}) | {} |", path.replace(' ', "-"), purpose(command));
        }
        visible(command).for_each(|command| describe(text, command, &path, level + 1));
        return;
    }
    let usage = command.clone().render_usage().to_string();
    let _ = write!(text, "\n```text\n{}\n```\n", usage.trim_start_matches("Usage:").trim());
    let arguments: Vec<&Arg> = command.get_positionals().filter(|arg| !arg.is_hide_set()).collect();
    if !arguments.is_empty() {
        text.push_str("\n| argument | meaning |\n|---|---|\n");
        for arg in arguments {
            let _ = writeln!(text, "| `{}` | {} |", value_names(arg), meaning(arg));
        }
    }
    let own: Vec<&Arg> = command.get_arguments().filter(is_own_option).collect();
    if own.iter().any(|arg| !arg.is_hide_set()) {
        text.push('\n');
        options(text, own.into_iter());
    }
    if let Some(after) = command.get_after_long_help().or_else(|| command.get_after_help()) {
        let _ = write!(text, "\n```text\n{}\n```\n", after.to_string().trim_end());
    }
}

/// True for an option of the command itself, in contrast to those of every command.
fn is_own_option(arg: &&Arg) -> bool {
    !arg.is_positional() && !arg.is_global_set() && !matches!(arg.get_id().as_str(), "help" | "version")
}

fn options<'a>(text: &mut String, options: impl Iterator<Item = &'a Arg>) {
    text.push_str("| option | default | meaning |\n|---|---|---|\n");
    for arg in options.filter(|arg| !arg.is_hide_set()) {
        let default = match help_and_default(arg).1 {
            _ if arg.is_required_set() => "required".to_owned(),
            default => default.unwrap_or_default(),
        };
        let _ = writeln!(text, "| {} | {default} | {} |", flag(arg), meaning(arg));
    }
}

fn purpose(command: &Command) -> String {
    let about = command.get_long_about().or_else(|| command.get_about()).map(ToString::to_string).unwrap_or_default();
    let about = about.split_whitespace().collect::<Vec<_>>().join(" ");
    let about = markdown(&about);
    if about.is_empty() || about.ends_with('.') { about } else { format!("{about}.") }
}

fn meaning(arg: &Arg) -> String {
    let help = help_and_default(arg).0;
    let is_silently_repeatable = is_silently_repeatable(arg, &help);
    let mut parts = vec![help];
    let values: Vec<String> = arg
        .get_possible_values()
        .iter()
        .filter(|value| !value.is_hide_set())
        .map(|value| format!("`{}`", value.get_name()))
        .collect();
    if arg.get_action().takes_values() && !values.is_empty() {
        parts.push(format!("Values: {}.", values.join(", ")));
    }
    if is_silently_repeatable {
        parts.push("Repeatable.".into());
    }
    if let Some(variable) = variable(arg) {
        parts.push(format!("Environment: {variable}."));
    }
    parts.retain(|part| !part.is_empty());
    parts.join(" ")
}

fn exit_codes(text: &mut String) {
    text.push_str("\n## Exit codes\n\nThe codes are stable.\n\n| code | meaning |\n|---|---|\n");
    let listed = exit::HELP.split("Exit codes:\n").nth(1).unwrap_or_default();
    for (code, meaning) in listed.lines().filter_map(|line| line.trim().split_once(' ')) {
        let _ = writeln!(text, "| {code} | {} |", markdown(meaning.trim()));
    }
}
