//! One page of a listing. Handlers ask the store for a row more than they show: where it comes, another page follows.

use wire::Page;

/// The first `limit` of the rows. `after` makes the cursor that begins behind the last of them.
pub(crate) fn page<R>(mut rows: Vec<R>, limit: usize, after: impl FnOnce(&R) -> String) -> Page<R> {
    let more = rows.len() > limit;
    rows.truncate(limit);
    let next_cursor = rows.last().filter(|_| more).map(after);
    Page { items: rows, next_cursor, partial: false }
}

#[cfg(test)]
mod tests {
    use super::page;

    #[test]
    fn a_cursor_is_given_where_a_row_follows_and_nowhere_else() {
        let check = |rows: usize, shown: usize, next: Option<&str>| {
            let page = page((0..rows).collect(), 3, usize::to_string);
            assert_eq!((page.items.len(), page.next_cursor.as_deref()), (shown, next), "{rows} rows");
        };
        check(0, 0, None);
        check(2, 2, None);
        check(3, 3, None);
        check(4, 3, Some("2"));
    }
}
