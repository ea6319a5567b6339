//! Multi-row forms of SQLite statements, derived from their single-row text.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

/// Numbers of rows per insert. Opening the table and its indexes for each row costs as much as the row itself.
pub(super) const ROWS_PER_INSERT: [usize; 2] = [32, 8];

/// Texts of multi-row inserts, by the text of one row and the number of rows.
static STATEMENTS: Mutex<BTreeMap<(&'static str, usize), Arc<str>>> = Mutex::new(BTreeMap::new());

/// The text of an insert of `width` rows, if `text` is a single-row `insert or fail … values (…)` and nothing else. The
/// enclosing transaction or savepoint undoes it. The first `columns` parameters belong to each row.
pub(super) fn multi_row_insert(text: &'static str, columns: usize, width: usize) -> Option<Arc<str>> {
    let (head, row) = text.split_once("values (")?;
    if !head.starts_with("insert or fail into") || !row.ends_with(')') || row.contains("on conflict") {
        return None;
    }
    let mut known = STATEMENTS.lock().expect("lock poisoned");
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

/// Minimum average length of a range from which on one statement per range is faster.
pub(super) const MIN_RANGE_ROWS: usize = 4;

/// Rewrites a change of listed rows to one of a range of row ids, which needs no lookups.
pub(super) fn range_update(text: &str, place: usize) -> String {
    text.replace(&format!("in (select value from rarray(${place}))"), &format!("between ${place} and ${}", place + 1))
}
