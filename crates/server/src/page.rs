//! Builds one page of a listing. Handlers request one row more than the page shows: if it exists, another page follows.

use wire::Page;

/// Returns the first `limit` rows. `after` returns the cursor that follows a row.
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
    fn a_page_has_a_cursor_only_if_another_row_follows() {
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
