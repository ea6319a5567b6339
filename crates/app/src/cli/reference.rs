//! `windlass reference`, hidden: prints reference pages generated from the program itself, as Markdown.
//!
//! `scripts/docs --generate` writes them below the marker line of the pages in docs/reference. A test compares the two.

mod command_line;
mod configuration;
mod http_routes;

use clap::{Arg, ArgAction, Args, ValueEnum};

use super::exit::Exit;
use super::output;

#[derive(Args)]
pub(crate) struct ReferenceArgs {
    #[arg(value_enum)]
    page: ReferencePage,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ReferencePage {
    Cli,
    Configuration,
    Http,
    Rights,
}

impl ReferencePage {
    fn generate(self) -> String {
        match self {
            Self::Cli => command_line::generate(),
            Self::Configuration => configuration::generate(),
            Self::Http => http_routes::generate(),
            Self::Rights => server::documentation(),
        }
    }
}

pub(super) fn run(args: &ReferenceArgs) -> anyhow::Result<Exit> {
    output::line(args.page.generate().trim_end())?;
    Ok(Exit::Done)
}

/// The help of an argument as one line of Markdown, and the default that it names as `[default: …]`.
fn help_and_default(arg: &Arg) -> (String, Option<String>) {
    let help = arg.get_long_help().or_else(|| arg.get_help()).map(ToString::to_string).unwrap_or_default();
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let (help, named) = match help.split_once("[default: ") {
        Some((before, rest)) => match rest.split_once(']') {
            Some((default, after)) => (format!("{}{after}", before.trim_end()), Some(default.to_owned())),
            None => (help, None),
        },
        None => (help, None),
    };
    let values: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
    let default = match (arg.get_action().takes_values(), values.is_empty()) {
        (true, false) => Some(format!("`{}`", values.join(","))),
        _ => named.map(|named| markdown(&named)),
    };
    let help = markdown(&help);
    (if help.is_empty() || help.ends_with('.') { help } else { format!("{help}.") }, default)
}

/// Text as Markdown in a table cell.
fn markdown(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let mut is_code = false;
    for letter in text.chars() {
        is_code ^= letter == '`';
        match letter {
            '|' => escaped.push_str("\\|"),
            '<' | '*' if !is_code => escaped.extend(['\\', letter]),
            letter => escaped.push(letter),
        }
    }
    escaped
}

/// The flag with the names of its values, as it is typed.
fn flag(arg: &Arg) -> String {
    let mut text = String::new();
    if let Some(short) = arg.get_short() {
        text.push_str(&format!("`-{short}`, "));
    }
    text.push_str(&format!("`--{}", arg.get_long().unwrap_or_default()));
    if arg.get_action().takes_values() {
        text.push_str(&format!(" {}", value_names(arg)));
    }
    text.push('`');
    text
}

fn value_names(arg: &Arg) -> String {
    match arg.get_value_names() {
        Some(names) => names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        None => arg.get_id().as_str().to_uppercase(),
    }
}

/// True for an option that may be given more than once, if the help does not say so.
fn is_silently_repeatable(arg: &Arg, help: &str) -> bool {
    matches!(arg.get_action(), ArgAction::Append) && !arg.is_positional() && !help.to_lowercase().contains("repeat")
}

fn variable(arg: &Arg) -> Option<String> {
    arg.get_env().map(|name| format!("`{}`", name.to_string_lossy()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARKER: &str = "<!-- generated below: scripts/docs --generate -->\n";

    #[test]
    fn the_reference_pages_are_generated_from_the_program() {
        for (page, file) in [
            (ReferencePage::Cli, "cli.md"),
            (ReferencePage::Configuration, "configuration.md"),
            (ReferencePage::Http, "http-routes.md"),
        ] {
            let path = format!("{}/../../docs/reference/{file}", env!("CARGO_MANIFEST_DIR"));
            let written = std::fs::read_to_string(&path).unwrap_or_default();
            let (_, written) = written.split_once(MARKER).unwrap_or_else(|| panic!("{file} has no line {MARKER}"));
            let generated = page.generate();
            let differs = written.trim().lines().zip(generated.trim().lines()).find(|(old, new)| old != new);
            assert!(
                written.trim() == generated.trim(),
                "docs/reference/{file} is out of date; run `scripts/docs --generate`. First difference: {differs:?}"
            );
        }
    }

    #[test]
    fn a_default_in_the_help_moves_to_its_own_column() {
        let arg = Arg::new("a").long("a").help("Do `x|y` for <b> [default: 5 s]; may be repeated");
        let expected = "Do `x\\|y` for \\<b>; may be repeated.";
        assert_eq!(help_and_default(&arg), (expected.into(), Some("5 s".into())));
        let arg = Arg::new("a").long("a").help("Do it.").default_value("5");
        assert_eq!(help_and_default(&arg), ("Do it.".into(), Some("`5`".into())));
    }
}
