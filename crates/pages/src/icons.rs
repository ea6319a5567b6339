//! Icons of the navigation as inline SVG: outlines on a grid of 24 units.

use crate::html::Markup;

pub(crate) const GRID: &str = "M4 4h7v8H4zM13 4h7v4h-7zM13 11h7v9h-7zM4 15h7v5H4z";
pub(crate) const LIST: &str = "M4 6h16M4 12h16M4 18h10";
pub(crate) const LAYERS: &str = "M12 4 3 9l9 5 9-5zM3 14l9 5 9-5";
pub(crate) const PROCESSOR: &str = "M7 7h10v10H7zM9 3v4M15 3v4M9 17v4M15 17v4M3 9h4M3 15h4M17 9h4M17 15h4";
pub(crate) const BRANCH: &str =
    "M6 3v12M18 9a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM6 21a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM18 9a9 9 0 0 1-9 9";
pub(crate) const SERVER: &str = "M4 4h16v6H4zM4 14h16v6H4zM8 7h.01M8 17h.01";
pub(crate) const PULSE: &str = "M3 12h4l3 8 4-16 3 8h4";
pub(crate) const WARNING: &str = "M12 4 2.5 20h19zM12 10v4M12 17h.01";
pub(crate) const BOLT: &str = "M13 3 5 14h6l-1 7 8-11h-6z";
pub(crate) const PLANE: &str = "M21 3 10 14M21 3l-7 18-4-7-7-4z";
pub(crate) const ENVELOPE: &str = "M3 6h18v12H3zM3 7l9 6 9-6";
pub(crate) const BOX: &str = "M12 3 4 7v10l8 4 8-4V7zM4 7l8 4 8-4M12 11v10";
pub(crate) const SWAP: &str = "M4 8h14l-4-4M20 16H6l4 4";
pub(crate) const KEY: &str = "M8 15a4 4 0 1 0 0-8 4 4 0 0 0 0 8zM12 11h9v4M17 11v3";
pub(crate) const CLOCK: &str = "M12 21a9 9 0 1 0 0-18 9 9 0 0 0 0 18zM12 7v5l3 2";
pub(crate) const SLIDERS: &str = "M4 8h10M18 8h2M4 16h2M10 16h10M16 6v4M8 14v4";

/// The text beside the icon is its name, so that the icon is hidden from screen readers.
pub(crate) fn draw(path: &str) -> Markup {
    Markup::new(format!(
        "<svg class=\"icon\" viewBox=\"0 0 24 24\" width=\"16\" height=\"16\" aria-hidden=\"true\"><path d=\"{path}\"/></svg>"
    ))
}
