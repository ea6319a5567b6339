//! Waterfalls: one row of a table per operation, with its intervals on a common time axis.

use std::fmt::Write;

use jiff::Timestamp;

use crate::html::{self, Markup};

/// Units of the axis. The drawing is stretched to the width of its cell.
const UNITS: f64 = 1_000.0;
/// Short intervals stay visible.
const MIN_UNITS: f64 = 4.0;

/// The period that a waterfall shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimeScale {
    pub(crate) from: Timestamp,
    pub(crate) until: Timestamp,
}

/// An interval of a row. An interval of no length is a mark.
#[derive(Clone, Debug)]
pub(crate) struct Span {
    from: Timestamp,
    until: Timestamp,
    /// `good`, `bad`, `off`, `busy`, `waits` or `mark`.
    class: &'static str,
    what: String,
}

impl Span {
    pub(crate) fn new(from: Timestamp, until: Timestamp, class: &'static str, what: &str) -> Self {
        Self { from, until: until.max(from), class, what: what.to_owned() }
    }

    pub(crate) fn mark(at: Timestamp, what: &str) -> Self {
        Self::new(at, at, "mark", what)
    }
}

impl TimeScale {
    fn length_s(&self) -> f64 {
        self.until.duration_since(self.from).as_secs_f64().max(0.001)
    }

    fn position(&self, at: Timestamp) -> f64 {
        (at.duration_since(self.from).as_secs_f64() / self.length_s()).clamp(0.0, 1.0) * UNITS
    }

    /// The heading of the column: durations since the start.
    pub(crate) fn axis(&self) -> Markup {
        let labels = [0.0, 0.25, 0.5, 0.75, 1.0].map(|share| {
            let text = if share == 0.0 { "0".to_owned() } else { html::seconds(share * self.length_s()) };
            format!("<span>{text}</span>")
        });
        Markup::new(format!("<span class=\"axis\">{}</span>", labels.join("")))
    }

    /// The intervals of one row. The other cells of the row have the figures as text.
    pub(crate) fn bar(&self, spans: &[Span]) -> Markup {
        let mut svg = String::from(
            "<svg class=\"bar-row\" viewBox=\"0 0 1000 16\" preserveAspectRatio=\"none\" aria-hidden=\"true\">",
        );
        for quarter in [250, 500, 750] {
            let _ = write!(svg, "<line class=\"grid\" x1=\"{quarter}\" x2=\"{quarter}\" y1=\"0\" y2=\"16\"/>");
        }
        for span in spans {
            let (left, right) = (self.position(span.from), self.position(span.until));
            let width = (right - left).max(MIN_UNITS);
            let left = left.min(UNITS - width);
            let (top, height) = if span.class == "waits" { (6, 4) } else { (2, 12) };
            let took = match span.class {
                "mark" => String::new(),
                _ => format!(", {}", html::seconds(span.until.duration_since(span.from).as_secs_f64())),
            };
            let after = html::seconds(span.from.duration_since(self.from).as_secs_f64().max(0.0));
            let _ = write!(
                svg,
                "<rect class=\"{}\" x=\"{left:.1}\" y=\"{top}\" width=\"{width:.1}\" height=\"{height}\"><title>{}{took}, \
                 after {after}</title></rect>",
                span.class,
                html::escape(&span.what)
            );
        }
        svg.push_str("</svg>");
        Markup::new(svg)
    }
}

/// A bar that is divided into shares, each with a class.
pub(crate) fn shares(parts: &[(&'static str, i64)], label: &str) -> Markup {
    let sum: i64 = parts.iter().map(|(_, part)| *part).sum();
    let label = html::escape(label);
    let mut svg = format!(
        "<svg class=\"shares\" viewBox=\"0 0 1000 8\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>"
    );
    let mut left = 0.0;
    for (class, part) in parts.iter().filter(|(_, part)| *part > 0) {
        let width = *part as f64 / sum.max(1) as f64 * UNITS;
        let _ = write!(svg, "<rect class=\"{class}\" x=\"{left:.1}\" width=\"{width:.1}\" height=\"8\"/>");
        left += width;
    }
    svg.push_str("</svg>");
    Markup::new(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).expect("a time")
    }

    #[test]
    fn intervals_are_drawn_at_their_share_of_the_period() {
        let scale = TimeScale { from: at(100), until: at(200) };
        let spans = [Span::new(at(125), at(150), "good", "<run>"), Span::mark(at(200), "failed attempt")];
        let bar = scale.bar(&spans).to_string();
        assert!(bar.contains("class=\"good\" x=\"250.0\" y=\"2\" width=\"250.0\""), "{bar}");
        assert!(
            bar.contains("class=\"mark\" x=\"996.0\" y=\"2\" width=\"4.0\""),
            "a mark at the end is visible: {bar}"
        );
        assert!(!bar.contains("<run>") && bar.contains("25 s, after 25 s"), "{bar}");
        assert!(scale.axis().to_string().contains("<span>1 min 40 s</span>"));
    }

    #[test]
    fn a_period_without_length_is_drawn() {
        let scale = TimeScale { from: at(5), until: at(5) };
        assert!(scale.bar(&[Span::new(at(5), at(5), "busy", "x")]).to_string().contains("width=\"4.0\""));
    }

    #[test]
    fn shares_fill_the_bar() {
        let bar = shares(&[("good", 1), ("bad", 0), ("rest", 3)], "1 of 4").to_string();
        assert!(bar.contains("x=\"0.0\" width=\"250.0\"") && bar.contains("x=\"250.0\" width=\"750.0\""), "{bar}");
        assert!(!bar.contains("\"bad\""), "{bar}");
    }
}
