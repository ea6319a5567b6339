//! One page of a listing.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    /// The items of this page.
    pub items: Vec<T>,
    /// Pass it as `?cursor=` to get the next page; `null` on the last page.
    pub next_cursor: Option<String>,
    /// True if more rows may match: the filter has no index, and only the newest rows were searched.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
}

impl<T> Page<T> {
    pub fn map<U>(self, item: impl FnMut(T) -> U) -> Page<U> {
        let items = self.items.into_iter().map(item).collect();
        Page { items, next_cursor: self.next_cursor, partial: self.partial }
    }

    pub fn try_map<U, E>(self, item: impl FnMut(T) -> Result<U, E>) -> Result<Page<U>, E> {
        let items = self.items.into_iter().map(item).collect::<Result<_, _>>()?;
        Ok(Page { items, next_cursor: self.next_cursor, partial: self.partial })
    }
}

fn is_false(value: &bool) -> bool {
    !value
}
