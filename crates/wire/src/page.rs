//! The shape of every listing.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

#[derive(Debug, Serialize, Deserialize, ToSchema)]
pub struct Page<T> {
    pub items: Vec<T>,
    /// Give it back as `?cursor=` for the next page; `null` on the last.
    pub next_cursor: Option<String>,
    /// More may match than was looked at: the filter has no index and only the newest rows were searched.
    #[serde(default, skip_serializing_if = "is_false")]
    pub partial: bool,
}

fn is_false(value: &bool) -> bool {
    !value
}
