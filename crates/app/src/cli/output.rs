//! Terminal output: tables without borders for people, JSON for programs, colors only if the terminal supports them.

use std::io::Write;

use anyhow::Context;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, Width, presets};
use jiff::{SignedDuration, Timestamp};
use serde::Serialize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    Table,
    Json,
}

/// Prints a value as indented JSON.
pub(crate) fn json(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string_pretty(value).context("cannot serialize the output")?;
    line(&text)
}

pub(crate) fn line(text: &str) -> anyhow::Result<()> {
    // `println!` panics when stdout is closed.
    writeln!(anstream::stdout(), "{text}").context("cannot write to stdout")
}

/// Prints a remark to stderr, so that programs that read stdout are not affected.
pub(crate) fn note(text: &str) {
    let _ignored = writeln!(anstream::stderr(), "{text}");
}

/// Reports a completed action: a sentence on stderr for people, an object on stdout for programs.
pub(crate) fn done(format: Output, sentence: &str, object: &impl Serialize) -> anyhow::Result<()> {
    match format {
        Output::Json => json(object),
        Output::Table => {
            note(sentence);
            Ok(())
        }
    }
}

pub(crate) fn error(text: &str) {
    let text = clean(text);
    let _ignored = writeln!(anstream::stderr(), "\u{1b}[1;31merror:\u{1b}[0m {text}");
}

/// A table with one row per object.
pub(crate) struct Listing(Table);

impl Listing {
    pub(crate) fn new(header: &[&str]) -> Self {
        let mut table = plain();
        table.set_header(header.iter().map(|title| Cell::new(title).fg(Color::DarkGrey)));
        Self(table)
    }

    pub(crate) fn row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        self.0.add_row(cells.into_iter().collect::<Vec<_>>());
    }

    /// Adds a row that is truncated to one line. For listings of objects that can also be shown in full.
    pub(crate) fn short_row(&mut self, cells: impl IntoIterator<Item = Cell>) {
        let mut row = Row::from(cells.into_iter().collect::<Vec<_>>());
        row.max_height(1);
        self.0.add_row(row);
    }

    pub(crate) fn print(mut self) -> anyhow::Result<()> {
        space(&mut self.0);
        line(&trimmed(&self.0))
    }
}

/// The properties of one object, one per line.
pub(crate) struct Details(Table);

impl Details {
    pub(crate) fn new() -> Self {
        Self(plain())
    }

    pub(crate) fn add(&mut self, name: &str, value: Cell) -> &mut Self {
        self.0.add_row([Cell::new(name).fg(Color::DarkGrey), value]);
        self
    }

    pub(crate) fn text(&mut self, name: &str, value: impl ToString) -> &mut Self {
        self.add(name, cell(value))
    }

    pub(crate) fn maybe(&mut self, name: &str, value: Option<impl ToString>) -> &mut Self {
        match value {
            Some(value) => self.text(name, value),
            None => self,
        }
    }

    pub(crate) fn print(mut self) -> anyhow::Result<()> {
        space(&mut self.0);
        line(&trimmed(&self.0))
    }
}

fn plain() -> Table {
    let mut table = Table::new();
    // anstream decides whether colors are printed; all output passes through it.
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Dynamic).enforce_styling();
    table.style_text_only();
    table
}

/// Wraps only the last column: a wrapped id could not be copied.
fn space(table: &mut Table) {
    let last = table.column_count().saturating_sub(1);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_constraint(if index < last {
            ColumnConstraint::ContentWidth
        } else {
            ColumnConstraint::LowerBoundary(Width::Fixed(LAST_COLUMN_MIN_WIDTH))
        });
    }
}

const LAST_COLUMN_MIN_WIDTH: u16 = 24;

fn trimmed(table: &Table) -> String {
    table.lines().map(|line| line.trim_end().to_owned()).collect::<Vec<_>>().join("\n")
}

/// A cell with untrusted text, made safe for terminals.
pub(crate) fn cell(value: impl ToString) -> Cell {
    Cell::new(clean(&value.to_string()))
}

/// Replaces control characters, which could rewrite the screen, except newlines and tabs.
pub(crate) fn clean(text: &str) -> String {
    let keep = |c: char| if c.is_control() && c != '\n' && c != '\t' { '\u{fffd}' } else { c };
    text.chars().map(keep).collect()
}

pub(crate) fn state(state: &str) -> Cell {
    let color = match state {
        "succeeded" | "active" => Color::Green,
        "failed" => Color::Red,
        "working" | "loading" => Color::Cyan,
        "canceled" => Color::DarkGrey,
        "paused" | "scheduled" | "waiting" | "draining" => Color::Yellow,
        _ => Color::Reset,
    };
    cell(state).fg(color)
}

/// An event of a history, colored by its kind.
pub(crate) fn state_of_event(event: &str) -> Cell {
    let color = match event {
        "finished" | "let_in" => Color::Green,
        "failed" | "expired" => Color::Red,
        "locked_out" | "backed_off" => Color::Yellow,
        _ => Color::Reset,
    };
    cell(event).fg(color)
}

/// A time relative to now: `3 s ago`, `in 5 m`.
pub(crate) fn relative(at: Timestamp) -> String {
    relative_to(Timestamp::now(), at)
}

pub(crate) fn relative_maybe(at: Option<Timestamp>) -> String {
    at.map(relative).unwrap_or_default()
}

fn relative_to(now: Timestamp, at: Timestamp) -> String {
    let distance = now.duration_since(at);
    match distance.as_secs() {
        0 => "now".into(),
        1.. => format!("{} ago", span(distance)),
        _ => format!("in {}", span(distance)),
    }
}

/// A duration in its largest suitable unit. The JSON output has exact values.
pub(crate) fn span(duration: SignedDuration) -> String {
    match duration.as_secs().unsigned_abs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7_200 => format!("{} m", seconds / 60),
        seconds @ ..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

/// A count with its noun: `1 job`, `2 jobs`.
pub(crate) fn many(count: usize, one: &str) -> String {
    format!("{count} {one}{}", if count == 1 { "" } else { "s" })
}

/// A sparkline of vertical bars, scaled to the largest value; `·` stands for zero.
pub(crate) fn spark(values: &[i64]) -> String {
    const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
    let max = values.iter().copied().max().unwrap_or(0).max(1);
    let bar = |value: &i64| match *value {
        ..=0 => '·',
        value => BARS[((value - 1) * 8 / max).clamp(0, 7) as usize],
    };
    values.iter().map(bar).collect()
}

/// A time with its distance from now.
pub(crate) fn moment(at: Timestamp) -> String {
    format!("{at:.0} ({})", relative(at))
}

pub(crate) fn bytes(size: i64) -> String {
    match size {
        ..10_000 => format!("{size} B"),
        10_000..10_000_000 => format!("{} kB", size / 1_000),
        10_000_000..10_000_000_000 => format!("{} MB", size / 1_000_000),
        _ => format!("{} GB", size / 1_000_000_000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(seconds: i64, text: &str) {
        let now = Timestamp::UNIX_EPOCH;
        assert_eq!(relative_to(now, now - SignedDuration::from_secs(seconds)), text);
    }

    #[test]
    fn times_are_shown_in_their_largest_unit() {
        check(0, "now");
        check(3, "3 s ago");
        check(119, "119 s ago");
        check(120, "2 m ago");
        check(7_200, "2 h ago");
        check(172_800, "2 d ago");
        check(-300, "in 5 m");
    }

    #[test]
    fn a_sparkline_scales_with_its_counts() {
        assert_eq!(spark(&[0, 1, 4, 8]), "·▁▄█");
        assert_eq!(spark(&[]), "");
    }

    #[test]
    fn a_count_of_one_is_singular() {
        assert_eq!([0, 1, 2].map(|count| many(count, "job")), ["0 jobs", "1 job", "2 jobs"]);
    }

    #[test]
    fn a_short_row_is_truncated_at_the_terminal_width() {
        let mut listing = Listing::new(&["ID", "MESSAGE"]);
        listing.short_row([cell("1"), cell("one two three four five six seven eight\nnine")]);
        listing.0.set_width(40);
        space(&mut listing.0);
        let plain = anstream::adapter::strip_str(&trimmed(&listing.0)).to_string();
        let lines: Vec<_> = plain.lines().collect();
        assert_eq!(lines.len(), 2, "{plain}");
        assert!(lines[1].starts_with("1   one two three") && lines[1].ends_with('…'), "{plain}");
    }

    #[test]
    fn control_characters_in_names_are_replaced() {
        assert_eq!(clean("a\u{1b}[2Jb\tc"), "a\u{fffd}[2Jb\tc");
    }

    #[test]
    fn a_listing_has_no_borders_and_no_trailing_spaces() {
        let mut listing = Listing::new(&["ID", "STATE"]);
        listing.row([cell("1"), cell("queued")]);
        space(&mut listing.0);
        let plain = anstream::adapter::strip_str(&trimmed(&listing.0)).to_string();
        let lines: Vec<_> = plain.lines().collect();
        assert_eq!(lines, ["ID  STATE", "1   queued"]);
    }
}
