//! Charts as inline SVG. They need no script, and each is followed by a table of its figures for screen readers.

use std::fmt::Write;

use jiff::Timestamp;

use crate::html::{self, Markup};

/// Job counts of one time interval.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ThroughputPoint {
    pub at: Timestamp,
    pub enqueued: i64,
    pub succeeded: i64,
    pub failed: i64,
}

const WIDTH: usize = 720;
/// Width of a chart that is placed next to others.
const HALF_WIDTH: usize = 360;
/// Hours shown by the chart of percentiles.
pub(crate) const HOURS: usize = 48;
const HEIGHT: usize = 132;
/// Margin for the axis labels.
const LEFT: usize = 40;
const BOTTOM: usize = 16;
/// The line of enqueued jobs is clipped at this multiple of the highest bar.
const BURST: i64 = 4;

/// Draws a small reliability plot: the promised share of each quantile against the measured one.
pub(crate) fn reliability(shares: &[(f64, f64)]) -> Markup {
    const SIDE: f64 = 56.0;
    if shares.is_empty() {
        return html::none();
    }
    let figures: Vec<String> =
        shares.iter().map(|(level, held)| format!("{:.0} %: {:.0} %", level * 100.0, held * 100.0)).collect();
    let mut svg = format!(
        "<svg class=\"chart\" width=\"{SIDE}\" height=\"{SIDE}\" viewBox=\"0 0 {SIDE} {SIDE}\" role=\"img\" \
         aria-label=\"promised: measured: {}\"><line class=\"grid\" x1=\"0\" y1=\"{SIDE}\" x2=\"{SIDE}\" y2=\"0\"/>",
        figures.join(", ")
    );
    for ((level, held), figure) in shares.iter().zip(&figures) {
        let (x, y) = (level * SIDE, SIDE - held * SIDE);
        let _ = write!(
            svg,
            "<rect class=\"good\" x=\"{:.1}\" y=\"{:.1}\" width=\"4\" height=\"4\"><title>{figure}</title></rect>",
            x - 2.0,
            y - 2.0
        );
    }
    svg.push_str("</svg>");
    Markup::new(svg)
}

/// Draws bars of ended jobs (failed on top of succeeded) and a line of enqueued jobs.
pub(crate) fn throughput(points: &[ThroughputPoint]) -> Markup {
    let highest = |figure: fn(&ThroughputPoint) -> i64| points.iter().map(figure).max().unwrap_or(0);
    let (ended, enqueued) = (highest(|point| point.succeeded + point.failed), highest(|point| point.enqueued));
    // A burst of enqueued jobs is clipped where it would flatten the bars; its figure is in the tooltip and the table.
    let highest = if ended == 0 { enqueued } else { ended.max(enqueued.min(ended * BURST)) };
    let top = round_up(highest.max(4));
    let plot = (HEIGHT - BOTTOM) as f64;
    let step = (WIDTH - LEFT) as f64 / points.len().max(1) as f64;
    let high = |figure: i64| figure as f64 / top as f64 * (plot - 6.0);
    let mut svg = format!(
        "<svg class=\"chart\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Jobs per minute in the last {} \
         minutes; the table after it has the figures\">",
        points.len()
    );
    for share in [0, 1, 2] {
        let figure = top * share / 2;
        let y = plot - high(figure);
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6,
            y + 3.5,
            compact(figure)
        );
    }
    let mut line = String::new();
    for (number, point) in points.iter().enumerate() {
        let x = LEFT as f64 + number as f64 * step;
        let (good, bad) = (high(point.succeeded), high(point.failed));
        let _ = write!(
            svg,
            "<g><title>{} UTC: {} enqueued, {} succeeded, {} failed</title>\
             <rect class=\"hit\" x=\"{x:.1}\" y=\"0\" width=\"{step:.1}\" height=\"{plot}\"/>\
             <rect class=\"good\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{good:.1}\"/>\
             <rect class=\"bad\" x=\"{:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{bad:.1}\"/></g>",
            point.at.strftime("%H:%M"),
            point.enqueued,
            point.succeeded,
            point.failed,
            x + 1.0,
            plot - good,
            (step - 2.0).max(1.0),
            x + 1.0,
            plot - good - bad,
            (step - 2.0).max(1.0),
        );
        let command = if number == 0 { 'M' } else { 'L' };
        let _ = write!(line, "{command}{:.1} {:.1}", x + step / 2.0, plot - high(point.enqueued.min(top)));
    }
    let _ = write!(svg, "<path class=\"in\" d=\"{line}\"/>");
    for (number, point) in points.iter().enumerate().filter(|(number, _)| number % 15 == 0) {
        let x = LEFT as f64 + number as f64 * step;
        let at = point.at.strftime("%Y-%m-%dT%H:%M:00Z");
        let _ = write!(
            svg,
            "<text class=\"at\" x=\"{x:.1}\" y=\"{}\" data-clock=\"{at}\">{}</text>",
            HEIGHT - 3,
            point.at.strftime("%H:%M")
        );
    }
    svg.push_str("</svg>");
    svg.push_str(&table(points));
    Markup::new(svg)
}

/// The figures as a table that is visible only to screen readers. Minutes without jobs are omitted.
fn table(points: &[ThroughputPoint]) -> String {
    let mut table = String::from(
        "<div class=\"unseen\"><table><caption>Jobs per minute</caption><thead><tr><th>Minute (UTC)</th><th>Enqueued</th>\
         <th>Succeeded</th><th>Failed</th></tr></thead><tbody>",
    );
    for point in points.iter().filter(|point| point.enqueued + point.succeeded + point.failed > 0) {
        let _ = write!(
            table,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td></tr>",
            point.at.strftime("%H:%M"),
            point.enqueued,
            point.succeeded,
            point.failed
        );
    }
    table.push_str("</tbody></table></div>");
    table
}

/// Percentiles of one hour, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HourlyPercentiles {
    pub at: Timestamp,
    pub p50: i64,
    pub p95: i64,
}

/// Draws the p50 and p95 of each hour against their targets.
pub(crate) fn percentiles(hours: &[HourlyPercentiles], targets: [i64; 2], now: Timestamp) -> Markup {
    let highest = hours.iter().map(|hour| hour.p95).max().unwrap_or(0).max(targets[1]);
    let top = round_up(highest);
    let plot = (HEIGHT - BOTTOM) as f64;
    let high = |ms: i64| ms as f64 / top as f64 * (plot - 6.0);
    let x_of = |ago: f64| LEFT as f64 + (1.0 - ago / HOURS as f64) * (HALF_WIDTH - LEFT) as f64;
    let mut svg = format!(
        "<svg class=\"chart small\" viewBox=\"0 0 {HALF_WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Time to first signal by \
         hour; the table after it has the figures\">"
    );
    for ago in (0..=HOURS).step_by(12) {
        let (anchor, label) = match ago {
            0 => ("end", "now".to_owned()),
            HOURS => ("start", format!("{ago} h ago")),
            _ => ("middle", format!("{ago} h")),
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{label}</text>",
            x_of(ago as f64),
            HEIGHT - 3
        );
    }
    for target in targets {
        let y = plot - high(target);
        let _ = write!(
            svg,
            "<line class=\"target\" x1=\"{LEFT}\" x2=\"{HALF_WIDTH}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
             <text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>",
            LEFT - 6,
            y + 3.5,
            html::seconds(target as f64 / 1_000.0)
        );
    }
    let mut table = String::from(
        "<div class=\"unseen\"><table><caption>Time to first signal by hour</caption><thead><tr><th>Hour (UTC)</th><th>p50</th>\
         <th>p95</th></tr></thead><tbody>",
    );
    let (mut middle, mut late) = (String::new(), String::new());
    for (number, HourlyPercentiles { at, p50, p95 }) in hours.iter().enumerate() {
        let x = x_of((now.duration_since(*at).as_secs_f64() / 3_600.0).clamp(0.0, HOURS as f64));
        let command = if number == 0 { 'M' } else { 'L' };
        let _ = write!(middle, "{command}{x:.1} {:.1}", plot - high(*p50));
        let _ = write!(late, "{command}{x:.1} {:.1}", plot - high(*p95));
        let hour = at.strftime("%Y-%m-%d %H:00");
        let _ = write!(table, "<tr><td>{hour}</td><td>{p50} ms</td><td>{p95} ms</td></tr>");
        let _ = write!(
            svg,
            "<circle class=\"middle\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2\"/><circle class=\"late\" cx=\"{x:.1}\" cy=\"{:.1}\" r=\"2.5\">\
             <title>{hour} UTC: p50 {p50} ms, p95 {p95} ms</title></circle>",
            plot - high(*p50),
            plot - high(*p95)
        );
    }
    let _ = write!(
        svg,
        "<path class=\"in\" d=\"{middle}\"/><path class=\"late\" d=\"{late}\"/></svg>{table}</tbody></table></div>"
    );
    Markup::new(svg)
}

/// Draws figures as a filled area, with `label` as its accessible name.
pub(crate) fn area(figures: &[i64], label: String) -> Markup {
    let top = round_up(figures.iter().copied().max().unwrap_or(0).max(2));
    let (width, plot) = (HALF_WIDTH as f64, (HEIGHT - BOTTOM) as f64);
    let step = (width - LEFT as f64) / figures.len().max(2).saturating_sub(1) as f64;
    let y = |figure: i64| plot - figure as f64 / top as f64 * (plot - 8.0);
    let mut line = String::new();
    for (number, figure) in figures.iter().enumerate() {
        let _ = write!(line, "L{:.1} {:.1}", LEFT as f64 + number as f64 * step, y(*figure));
    }
    let label = html::escape(&label);
    let mut svg = format!(
        "<svg class=\"chart small\" viewBox=\"0 0 {HALF_WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{label}\"><title>{label}</title>"
    );
    for figure in [0, top / 2, top] {
        let _ = write!(
            svg,
            "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{HALF_WIDTH}\" y1=\"{0:.1}\" y2=\"{0:.1}\"/><text x=\"{1}\" y=\"{2:.1}\" \
             text-anchor=\"end\">{3}</text>",
            y(figure),
            LEFT - 6,
            y(figure) + 3.5,
            compact(figure)
        );
    }
    let _ = write!(svg, "<path class=\"area\" d=\"M{LEFT} {plot}{line}L{width} {plot}Z\"/></svg>");
    Markup::new(svg)
}

/// Draws a sparkline with `label` as its accessible name.
pub(crate) fn spark(figures: &[i64], label: String) -> Markup {
    let top = figures.iter().copied().max().unwrap_or(0).max(1) as f64;
    let (width, height) = (96.0, 20.0);
    let step = width / figures.len().max(2).saturating_sub(1) as f64;
    let mut line = String::new();
    for (number, figure) in figures.iter().enumerate() {
        let command = if number == 0 { 'M' } else { 'L' };
        let _ = write!(
            line,
            "{command}{:.1} {:.1}",
            number as f64 * step,
            height - 1.5 - *figure as f64 / top * (height - 3.0)
        );
    }
    let label = html::escape(&label);
    Markup::new(format!(
        "<svg class=\"spark\" viewBox=\"0 0 96 20\" width=\"96\" height=\"20\" role=\"img\" aria-label=\"{label}\">\
         <title>{label}</title><path d=\"{line}\"/></svg>"
    ))
}

/// Draws a bar for a share from 0 to 1.
pub(crate) fn meter(share: &f64, class: &str) -> Markup {
    let width = (share.clamp(0.0, 1.0) * 96.0).round();
    Markup::new(format!(
        "<svg class=\"meter {class}\" viewBox=\"0 0 96 6\" width=\"96\" height=\"6\" aria-hidden=\"true\">\
         <rect class=\"whole\" width=\"96\" height=\"6\" rx=\"3\"/><rect class=\"part\" width=\"{width}\" height=\"6\" rx=\"3\"/></svg>"
    ))
}

/// An interval in which a runtime's health was `status`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HealthInterval {
    pub from: Timestamp,
    pub until: Timestamp,
    pub status: String,
}

/// Draws intervals next to each other, oldest first. Gaps mean that the health is unknown.
pub(crate) fn strip(intervals: &[HealthInterval], from: Timestamp, until: Timestamp, label: &str) -> Markup {
    let whole = until.duration_since(from).as_secs_f64().max(1.0);
    let x = |at: Timestamp| at.duration_since(from).as_secs_f64().clamp(0.0, whole) / whole * 240.0;
    let label = html::escape(label);
    let mut svg = format!(
        "<svg class=\"strip\" viewBox=\"0 0 240 14\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}; \
         the table after it has the figures\"><rect class=\"unknown\" width=\"240\" height=\"14\" rx=\"2\"/>"
    );
    let mut table = format!(
        "<div class=\"unseen\"><table><caption>{label}</caption><thead><tr><th>From (UTC)</th><th>Until (UTC)</th><th>Status</th>\
         </tr></thead><tbody>"
    );
    for interval in intervals {
        let (left, right) = (x(interval.from), x(interval.until));
        let class = if interval.status == "healthy" { "good" } else { "bad" };
        let status = html::escape(&interval.status).replace('_', " ");
        let [since, till] = [interval.from, interval.until].map(|at| at.strftime("%Y-%m-%d %H:%M:%S"));
        // Short intervals stay visible.
        let width = (right - left).max(1.5);
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{:.1}\" width=\"{width:.1}\" height=\"14\"><title>{status}, {since} to {till} UTC\
             </title></rect>",
            left.min(240.0 - width)
        );
        let _ = write!(table, "<tr><td>{since}</td><td>{till}</td><td>{status}</td></tr>");
    }
    let _ = write!(svg, "</svg>{table}</tbody></table></div>");
    Markup::new(svg)
}

/// The smallest round number for the end of a scale that is not below `most`.
fn round_up(max: i64) -> i64 {
    let mut unit = 1;
    loop {
        if let Some(top) = [2, 4, 6, 10].iter().map(|step| step * unit).find(|top| *top >= max) {
            return top;
        }
        unit *= 10;
    }
}

/// A number in short form: 12K, 1.2M.
pub(crate) fn compact(figure: i64) -> String {
    match figure {
        0..10_000 => html::count(&figure),
        10_000..1_000_000 => format!("{:.0}K", figure as f64 / 1e3),
        _ => format!("{:.1}M", figure as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scale_ends_at_or_above_its_highest_value() {
        for highest in [1, 2, 3, 5, 9, 11, 99, 101, 12_345] {
            assert!(round_up(highest) >= highest && round_up(highest) <= highest * 3, "{highest}");
        }
    }

    #[test]
    fn a_health_strip_shows_short_intervals_and_lists_them_as_text() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let failing = HealthInterval { from: at(86_399), until: at(86_400), status: "probe_failed".into() };
        let healthy = HealthInterval { from: at(43_200), until: at(86_399), status: "healthy".into() };
        let strip = strip(&[healthy, failing], at(0), at(86_400), "Health of <x>").to_string();
        assert!(strip.contains("<rect class=\"good\" x=\"120.0\" width=\"120.0\""), "{strip}");
        assert!(strip.contains("<rect class=\"bad\" x=\"238.5\" width=\"1.5\""), "{strip}");
        assert!(strip.contains("<td>probe failed</td>") && !strip.contains("<x>"), "{strip}");
    }

    #[test]
    fn a_burst_of_enqueued_jobs_does_not_flatten_the_completed_bars() {
        let point = |enqueued, succeeded| ThroughputPoint { at: Timestamp::UNIX_EPOCH, enqueued, succeeded, failed: 0 };
        let tallest = |points: &[ThroughputPoint]| {
            let chart = throughput(points).to_string();
            let bars = chart.split("<rect class=\"good\"").skip(1).filter_map(|bar| bar.split("height=\"").nth(1));
            bars.filter_map(|bar| bar.split('"').next()?.parse::<f64>().ok()).fold(0.0, f64::max)
        };
        assert!(tallest(&[point(20_000, 0), point(0, 10)]) > 20.0);
        let chart = throughput(&[point(400, 0)]).to_string();
        assert!(chart.contains(">400</text>"), "with nothing that ended the line has the scale: {chart}");
    }

    #[test]
    fn hourly_percentiles_are_drawn_at_their_hour() {
        let at = |hours: i64| Timestamp::from_second(hours * 3_600).unwrap();
        let hour = |hours: i64| HourlyPercentiles { at: at(hours), p50: 1, p95: 2 };
        let chart = percentiles(&[hour(76), hour(100)], [2_000, 5_000], at(100)).to_string();
        assert!(chart.contains("cx=\"200.0\"") && chart.contains("cx=\"360.0\""), "{chart}");
        assert!(chart.contains(">24 h</text>") && chart.contains(">now</text>"), "{chart}");
    }

    #[test]
    fn a_chart_lists_its_points_in_a_table() {
        assert!(throughput(&[]).to_string().ends_with("</table></div>"));
        let point = ThroughputPoint { at: Timestamp::UNIX_EPOCH, enqueued: 3, succeeded: 2, failed: 1 };
        let chart = throughput(&[point]).to_string();
        assert!(chart.contains("<td>00:00</td><td>3</td><td>2</td><td>1</td>"), "{chart}");
        assert!(!chart.contains("style="), "the policy forbids styles in attributes");
    }
}
