//! Listings: every page of them, as JSON for programs and as a table for people.

use client::ClientError;
use comfy_table::Cell;
use serde::Serialize;
use wire::Page;

use super::output::{self, Listing, Output};

/// All that a listing holds, page after page.
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

/// Where there is nothing to list, people are told so by `nothing`.
pub(crate) fn print<T: Serialize, const COLUMNS: usize>(
    format: Output,
    page: &Page<T>,
    nothing: &str,
    header: [&str; COLUMNS],
    row: impl Fn(&T) -> [Cell; COLUMNS],
) -> anyhow::Result<()> {
    if format == Output::Json {
        return output::json(page);
    }
    if page.items.is_empty() {
        output::note(nothing);
        return Ok(());
    }
    let mut listing = Listing::new(&header);
    page.items.iter().for_each(|item| listing.row(row(item)));
    listing.print()
}
