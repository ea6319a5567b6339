//! The page docs/reference/configuration.md: every setting with its flag, variable, TOML key and default.

use std::collections::BTreeMap;
use std::fmt::Write;

use clap::{Arg, Command, CommandFactory};

use super::super::Cli;
use super::{help_and_default, is_silently_repeatable, markdown, variable};

/// Long-running commands, which have a table of their own.
const SERVICES: [&str; 2] = ["serve", "agent"];

pub(super) fn generate() -> String {
    let root = Cli::command();
    let mut text = String::new();
    for service in SERVICES {
        let command = root.find_subcommand(service).expect("it is a command");
        settings(&mut text, command);
    }
    other_commands(&mut text, &root);
    text
}

fn settings(text: &mut String, command: &Command) {
    let name = command.get_name();
    let has_file = command.get_arguments().any(|arg| arg.get_long() == Some("config"));
    let _ = write!(text, "## Settings of `windlass {name}`\n\n");
    text.push_str(match has_file {
        true => "| flag | variable | TOML key | default | meaning |\n|---|---|---|---|---|\n",
        false => "| flag | variable | default | meaning |\n|---|---|---|---|\n",
    });
    for arg in command.get_arguments().filter(|arg| !arg.is_hide_set() && arg.get_long().is_some()) {
        let variable = variable(arg).unwrap_or_default();
        let key = match arg.get_long() {
            // The file cannot name another file.
            Some(long) if has_file && long != "config" => format!(" | `{}`", long.replace('-', "_")),
            _ if has_file => " | ".to_owned(),
            _ => String::new(),
        };
        let (mut meaning, default) = help_and_default(arg);
        if is_silently_repeatable(arg, &meaning) {
            meaning.push_str(" Repeatable.");
        }
        let default = default.unwrap_or_else(|| unset(arg));
        let flag = arg.get_long().unwrap_or_default();
        let _ = writeln!(text, "| `--{flag}` | {variable}{key} | {default} | {meaning} |");
    }
    text.push('\n');
}

fn unset(arg: &Arg) -> String {
    if arg.get_action().takes_values() { "none" } else { "off" }.to_owned()
}

/// The variables of all other commands.
fn other_commands(text: &mut String, root: &Command) {
    let mut used: BTreeMap<String, (Vec<String>, &Arg)> = BTreeMap::new();
    for arg in root.get_arguments().filter(|arg| arg.get_env().is_some()) {
        used.insert(variable(arg).unwrap_or_default(), (vec!["all that call a server".into()], arg));
    }
    for command in root.get_subcommands().filter(|command| !SERVICES.contains(&command.get_name())) {
        collect(command, command.get_name(), &mut used);
    }
    text.push_str("## Variables of the other commands\n\n| variable | flag | default | meaning | commands |\n|---|---|---|---|---|\n");
    for (variable, (commands, arg)) in used {
        let (meaning, default) = help_and_default(arg);
        let default = default.unwrap_or_else(|| unset(arg));
        let flag = arg.get_long().filter(|_| !arg.is_hide_set()).map(|flag| format!("`--{flag}`")).unwrap_or_default();
        let commands: Vec<String> = commands.iter().map(|command| markdown(command)).collect();
        let _ = writeln!(text, "| {variable} | {flag} | {default} | {meaning} | {} |", commands.join(", "));
    }
}

fn collect<'a>(command: &'a Command, path: &str, used: &mut BTreeMap<String, (Vec<String>, &'a Arg)>) {
    for arg in command.get_arguments() {
        if let Some(variable) = variable(arg) {
            let (commands, _) = used.entry(variable).or_insert_with(|| (Vec::new(), arg));
            commands.push(format!("`{path}`"));
        }
    }
    for verb in command.get_subcommands() {
        collect(verb, &format!("{path} {}", verb.get_name()), used);
    }
}
