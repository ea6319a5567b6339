//! Examples at the end of each help page. `examples.txt` has one command per line; a line belongs to the command that it
//! runs.

use std::collections::BTreeMap;

use clap::Command;

const LINES: &str = include_str!("examples.txt");

/// The command tree with examples after the help of each command.
pub(super) fn attach(command: Command) -> Command {
    let mut by_path: BTreeMap<Vec<String>, Vec<&str>> = BTreeMap::new();
    for line in LINES.lines() {
        by_path.entry(path(&command, line)).or_default().push(line);
    }
    with_examples(command, &mut Vec::new(), &by_path)
}

fn with_examples(command: Command, path: &mut Vec<String>, examples: &BTreeMap<Vec<String>, Vec<&str>>) -> Command {
    let mut command = command;
    if let Some(lines) = examples.get(path) {
        let before = command.get_after_help().map(|text| format!("{text}\n\n")).unwrap_or_default();
        command = command.after_help(format!("{before}Examples:\n  {}", lines.join("\n  ")));
    }
    let names: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in names {
        path.push(name.clone());
        command = command.mut_subcommand(name, |sub| with_examples(sub, path, examples));
        path.pop();
    }
    command
}

/// The names of the commands that a line runs, without `windlass`.
fn path(command: &Command, line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut command = command;
    for word in line.split_whitespace().skip(1) {
        let Some(sub) = command.find_subcommand(word) else { break };
        found.push(sub.get_name().to_owned());
        command = sub;
    }
    found
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::super::Cli;
    use super::*;

    /// Splits a line as a shell does. The examples have no quotes but single ones.
    fn words(line: &str) -> Vec<String> {
        let mut words = vec![String::new()];
        for (place, part) in line.split('\'').enumerate() {
            if place % 2 == 1 {
                words.last_mut().expect("there is a word").push_str(part);
                continue;
            }
            let mut pieces = part.split(' ');
            words.last_mut().expect("there is a word").push_str(pieces.next().unwrap_or_default());
            words.extend(pieces.map(str::to_owned));
        }
        words.retain(|word| !word.is_empty());
        words
    }

    fn leaves(command: &Command, path: &str, found: &mut Vec<String>) {
        for sub in command.get_subcommands().filter(|sub| !sub.is_hide_set() && sub.get_name() != "help") {
            let path = format!("{path} {}", sub.get_name());
            if sub.has_subcommands() { leaves(sub, &path, found) } else { found.push(path) }
        }
    }

    #[test]
    fn every_example_is_a_valid_command_line() {
        let error =
            |line: &str| Cli::command().try_get_matches_from(words(line)).err().map(|error| format!("{line}: {error}"));
        let errors: Vec<String> = LINES.lines().filter_map(error).collect();
        assert!(errors.is_empty(), "{}", errors.join("\n"));
    }

    #[test]
    fn every_command_has_an_example() {
        let (root, mut all) = (Cli::command(), Vec::new());
        leaves(&root, "windlass", &mut all);
        let shown: Vec<String> =
            LINES.lines().map(|line| format!("windlass {}", path(&root, line).join(" "))).collect();
        let missing: Vec<&String> = all.iter().filter(|command| !shown.contains(command)).collect();
        assert!(missing.is_empty(), "add examples to examples.txt: {missing:?}");
    }

    #[test]
    fn examples_stand_after_the_help_of_their_command() {
        let mut command = attach(Cli::command());
        command.build();
        let push = command.find_subcommand_mut("job").and_then(|job| job.find_subcommand_mut("push"));
        let help = push.expect("the command exists").render_long_help().to_string();
        assert!(help.contains("Examples:\n  windlass job push") && !help.contains("job list"), "{help}");
    }
}
