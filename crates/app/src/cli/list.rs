//! Helpers for listings: fetching all pages, and printing them as JSON or as a table.

use client::ClientError;
use comfy_table::Cell;
use serde::Serialize;
use wire::Page;

use super::output::{self, Listing, Output};

/// Fetches all pages of a listing.
pub(crate) async fn every_page<T>(
    page: impl AsyncFn(Option<&str>) -> Result<Page<T>, ClientError>,
) -> Result<Page<T>, ClientError> {
    let mut all = page(None).await?;
    while let Some(cursor) = all.next_cursor.take() {
        let next = page(Some(&cursor)).await?;
        all.items.extend(next.items);
        all.next_cursor = next.next_cursor;
    }
    Ok(all)
}

/// Prints a listing. An empty table prints `empty_message` instead.
pub(crate) fn print<T: Serialize, const COLUMNS: usize>(
    format: Output,
    page: &Page<T>,
    empty_message: &str,
    header: [&str; COLUMNS],
    row: impl Fn(&T) -> [Cell; COLUMNS],
) -> anyhow::Result<()> {
    if format == Output::Json {
        return output::json(page);
    }
    if page.items.is_empty() {
        output::note(empty_message);
        return Ok(());
    }
    let mut listing = Listing::new(&header);
    page.items.iter().for_each(|item| listing.row(row(item)));
    listing.print()
}
