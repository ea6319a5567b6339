//! A chart of latencies over time: two lines, and a table of the figures for screen readers.

use std::fmt::Write;

use jiff::Timestamp;

use crate::html::{self, Markup};

const WIDTH: f64 = 360.0;
const HEIGHT: f64 = 132.0;
const LEFT: f64 = 48.0;
const BOTTOM: f64 = 16.0;

/// Percentiles of the jobs that ended in one interval, in seconds. `None` without such jobs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LatencyPoint {
    pub at: Timestamp,
    pub p50_s: Option<f64>,
    pub p95_s: Option<f64>,
}

/// Draws the p50 and the p95 of each interval. Intervals without jobs interrupt the lines.
pub(crate) fn draw(points: &[LatencyPoint], what: &str) -> Markup {
    let highest = points.iter().filter_map(|point| point.p95_s).fold(0.0, f64::max);
    let top = round_up(highest);
    let plot = HEIGHT - BOTTOM;
    let step = (WIDTH - LEFT) / points.len().max(1) as f64;
    let x = |number: usize| LEFT + (number as f64 + 0.5) * step;
    let y = |seconds: f64| plot - seconds / top * (plot - 8.0);
    let what = html::escape(what);
    let mut svg = format!(
        "<svg class=\"chart small\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{what}; the table after it \
         has the figures\">"
    );
    for share in [0.0, 0.5, 1.0] {
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/><text x=\"{1}\" y=\"{2:.1}\" \
             text-anchor=\"end\">{3}</text>",
            y(top * share),
            LEFT - 6.0,
            y(top * share) + 3.5,
            if share == 0.0 { "0".to_owned() } else { html::seconds(top * share) }
        );
    }
    let (mut middle, mut late) = (String::new(), String::new());
    let mut table = format!(
        "<div class=\"unseen\"><table><caption>{what}</caption><thead><tr><th>From (UTC)</th><th>p50</th><th>p95</th></tr></thead><tbody>"
    );
    let mut is_after_gap = true;
    for (number, point) in points.iter().enumerate() {
        let (Some(p50), Some(p95)) = (point.p50_s, point.p95_s) else {
            is_after_gap = true;
            continue;
        };
        let command = if std::mem::take(&mut is_after_gap) { 'M' } else { 'L' };
        let (p50_text, p95_text) = (html::seconds(p50), html::seconds(p95));
        let from = point.at.strftime("%Y-%m-%d %H:%M");
        let _ = write!(middle, "{command}{:.1} {:.1}", x(number), y(p50));
        let _ = write!(late, "{command}{:.1} {:.1}", x(number), y(p95));
        let _ = write!(
            svg,
            "<circle class=\"middle\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2\"/><circle class=\"late\" cx=\"{:.1}\" cy=\"{:.1}\" r=\"2.5\">\
             <title>{from} UTC: p50 {p50_text}, p95 {p95_text}</title></circle>",
            x(number),
            y(p50),
            x(number),
            y(p95)
        );
        let _ = write!(table, "<tr><td>{from}</td><td>{p50_text}</td><td>{p95_text}</td></tr>");
    }
    let _ = write!(svg, "<path class=\"in\" d=\"{middle}\"/><path class=\"late\" d=\"{late}\"/>");
    let every = (points.len() / 4).max(1);
    for (number, point) in points.iter().enumerate().filter(|(number, _)| number % every == 0) {
        let at = point.at.strftime("%Y-%m-%dT%H:%M:00Z");
        let _ = write!(
            svg,
            "<text class=\"at\" x=\"{:.1}\" y=\"{}\" data-clock=\"{at}\">{}</text>",
            x(number) - step / 2.0,
            HEIGHT - 3.0,
            point.at.strftime("%H:%M")
        );
    }
    let _ = write!(svg, "</svg>{table}</tbody></table></div>");
    Markup::new(svg)
}

/// The smallest round duration for the end of a scale that is not below `max`.
fn round_up(max: f64) -> f64 {
    let mut unit = 0.001;
    while unit < 1e9 {
        if let Some(top) = [1.0, 2.0, 5.0].map(|step| step * unit).into_iter().find(|top| *top >= max) {
            return top;
        }
        unit *= 10.0;
    }
    max
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interval_without_jobs_interrupts_the_line_and_has_no_row() {
        let point = |minute: i64, p50_s: Option<f64>| LatencyPoint {
            at: Timestamp::from_second(60 * minute).expect("a time"),
            p50_s,
            p95_s: p50_s.map(|seconds| seconds * 2.0),
        };
        let chart = draw(&[point(0, Some(1.0)), point(1, None), point(2, Some(2.0))], "Run <time>").to_string();
        assert!(chart.contains("<td>1.0 s</td><td>2.0 s</td>") && chart.contains("Run &#60;time&#62;"), "{chart}");
        assert_eq!(
            (chart.matches("<tr><td>").count(), chart.matches("class=\"late\" d=\"M").count()),
            (2, 1),
            "{chart}"
        );
        assert!(!chart.contains('L'), "{chart}");
        assert_eq!([0.0, 0.4, 3.0, 70.0].map(round_up), [0.001, 0.5, 5.0, 100.0]);
    }
}
