//! Statements of SQLite that take many rows at once, made from those that are written down.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Rows that one insert takes where there are as many: opening the table and its indexes for each costs as much as the row.
pub(super) const ABREAST: [usize; 2] = [32, 8];

/// Texts of such inserts, by that of one row.
static WIDE: Mutex<BTreeMap<(&'static str, usize), Arc<str>>> = Mutex::new(BTreeMap::new());

/// The text of an insert of so many rows, if this is one of a single row and nothing else: `insert or fail … values (…)`. What
/// it does is undone by the transaction or savepoint around it, never by itself. The first parameters, `columns` of them, are
/// each row's own.
pub(super) fn abreast(text: &'static str, columns: usize, width: usize) -> Option<Arc<str>> {
    let (head, row) = text.split_once("values (")?;
    if !head.starts_with("insert or fail into") || !row.ends_with(')') || row.contains("on conflict") {
        return None;
    }
    let mut known = WIDE.lock().expect("nobody panics with it in hand");
    let wide = known.entry((text, width)).or_insert_with(|| {
        let row_of = |number: usize| {
            let mut pieces = row.split('$');
            let mut text = format!("({}", pieces.next().unwrap_or_default());
            for piece in pieces {
                let digits = piece.len() - piece.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                let parameter: usize = piece[..digits].parse().expect("parameters are numbers");
                let place = if parameter <= columns { number * columns } else { (width - 1) * columns };
                text.push_str(&format!("${}{}", place + parameter, &piece[digits..]));
            }
            text
        };
        format!("{head}values {}", (0..width).map(row_of).collect::<Vec<_>>().join(", ")).into()
    });
    Some(wide.clone())
}

/// Rows beside each other, on average, from which on a statement for each run of them is worth its while.
pub(super) const RUN_ROWS: usize = 4;

/// The text of a change of listed rows as one of all rows from one to another: nothing is then looked up.
pub(super) fn in_runs(text: &str, place: usize) -> String {
    text.replace(&format!("in (select value from rarray(${place}))"), &format!("between ${place} and ${}", place + 1))
}
