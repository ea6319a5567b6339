//! Charts as inline SVG: no script draws them, and a screen reader gets the same figures as a table.

use std::fmt::Write;

use jiff::Timestamp;

use crate::html::{self, Markup};

/// What happened in one stretch of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Point {
    pub at: Timestamp,
    pub enqueued: i64,
    pub succeeded: i64,
    pub failed: i64,
}

const WIDTH: usize = 720;
/// Of a chart that stands beside others.
const HALF_WIDTH: usize = 360;
/// Hours that it shows.
pub(crate) const HOURS: usize = 48;
const HEIGHT: usize = 132;
/// Room for the figures of the scale.
const LEFT: usize = 40;
const BOTTOM: usize = 16;
/// How many times what ended the line of what came in may rise above it.
const BURST: i64 = 4;

/// Bars of what ended, failures on top of successes, and a line of what came in.
pub(crate) fn throughput(points: &[Point]) -> Markup {
    let most = |figure: fn(&Point) -> i64| points.iter().map(figure).max().unwrap_or(0);
    let (ended, enqueued) = (most(|point| point.succeeded + point.failed), most(|point| point.enqueued));
    // A burst of what came in is cut off where it would press what ended flat; the words have its figure.
    let most = if ended == 0 { enqueued } else { ended.max(enqueued.min(ended * BURST)) };
    let top = round_up(most.max(4));
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
        let way = if number == 0 { 'M' } else { 'L' };
        let _ = write!(line, "{way}{:.1} {:.1}", x + step / 2.0, plot - high(point.enqueued.min(top)));
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

/// The figures of a chart for those who cannot see it; minutes in which nothing happened are left out.
fn table(points: &[Point]) -> String {
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

/// A reading of one hour, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    pub at: Timestamp,
    pub p50: i64,
    pub p95: i64,
}

/// Two lines against their targets, over the hours until now.
pub(crate) fn readings(readings: &[Reading], targets: [i64; 2], now: Timestamp) -> Markup {
    let most = readings.iter().map(|reading| reading.p95).max().unwrap_or(0).max(targets[1]);
    let top = round_up(most);
    let plot = (HEIGHT - BOTTOM) as f64;
    let high = |ms: i64| ms as f64 / top as f64 * (plot - 6.0);
    let at_hours = |ago: f64| LEFT as f64 + (1.0 - ago / HOURS as f64) * (HALF_WIDTH - LEFT) as f64;
    let mut svg = format!(
        "<svg class=\"chart small\" viewBox=\"0 0 {HALF_WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"Time to first signal by \
         hour; the table after it has the figures\">"
    );
    for ago in (0..=HOURS).step_by(12) {
        let (anchor, words) = match ago {
            0 => ("end", "now".to_owned()),
            HOURS => ("start", format!("{ago} h ago")),
            _ => ("middle", format!("{ago} h")),
        };
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{}\" text-anchor=\"{anchor}\">{words}</text>",
            at_hours(ago as f64),
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
    for (number, Reading { at, p50, p95 }) in readings.iter().enumerate() {
        let x = at_hours((now.duration_since(*at).as_secs_f64() / 3_600.0).clamp(0.0, HOURS as f64));
        let way = if number == 0 { 'M' } else { 'L' };
        let _ = write!(middle, "{way}{x:.1} {:.1}", plot - high(*p50));
        let _ = write!(late, "{way}{x:.1} {:.1}", plot - high(*p95));
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

/// A line in little room, with its newest figure in words.
pub(crate) fn spark(figures: &[i64], label: String) -> Markup {
    let top = figures.iter().copied().max().unwrap_or(0).max(1) as f64;
    let (width, height) = (96.0, 20.0);
    let step = width / figures.len().max(2).saturating_sub(1) as f64;
    let mut line = String::new();
    for (number, figure) in figures.iter().enumerate() {
        let way = if number == 0 { 'M' } else { 'L' };
        let _ = write!(
            line,
            "{way}{:.1} {:.1}",
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

/// A bar that says how much of a whole there is.
pub(crate) fn meter(share: &f64, class: &str) -> Markup {
    let width = (share.clamp(0.0, 1.0) * 96.0).round();
    Markup::new(format!(
        "<svg class=\"meter {class}\" viewBox=\"0 0 96 6\" width=\"96\" height=\"6\" aria-hidden=\"true\">\
         <rect class=\"whole\" width=\"96\" height=\"6\" rx=\"3\"/><rect class=\"part\" width=\"{width}\" height=\"6\" rx=\"3\"/></svg>"
    ))
}

/// A stretch of time in which something was as it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    pub from: Timestamp,
    pub until: Timestamp,
    pub what: String,
}

/// Stretches side by side, oldest first; where there is none, nothing is known.
pub(crate) fn strip(stretches: &[Stretch], from: Timestamp, until: Timestamp, label: &str) -> Markup {
    let whole = until.duration_since(from).as_secs_f64().max(1.0);
    let x = |at: Timestamp| at.duration_since(from).as_secs_f64().clamp(0.0, whole) / whole * 240.0;
    let label = html::escape(label);
    let mut svg = format!(
        "<svg class=\"strip\" viewBox=\"0 0 240 14\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{label}; \
         the table after it has the figures\"><rect class=\"unknown\" width=\"240\" height=\"14\" rx=\"2\"/>"
    );
    let mut table = format!(
        "<div class=\"unseen\"><table><caption>{label}</caption><thead><tr><th>From (UTC)</th><th>Until (UTC)</th><th>What</th>\
         </tr></thead><tbody>"
    );
    for stretch in stretches {
        let (left, right) = (x(stretch.from), x(stretch.until));
        let class = if stretch.what == "healthy" { "good" } else { "bad" };
        let what = html::escape(&stretch.what).replace('_', " ");
        let [since, till] = [stretch.from, stretch.until].map(|at| at.strftime("%Y-%m-%d %H:%M:%S"));
        // What was short is still seen.
        let width = (right - left).max(1.5);
        let _ = write!(
            svg,
            "<rect class=\"{class}\" x=\"{:.1}\" width=\"{width:.1}\" height=\"14\"><title>{what}, {since} to {till} UTC\
             </title></rect>",
            left.min(240.0 - width)
        );
        let _ = write!(table, "<tr><td>{since}</td><td>{till}</td><td>{what}</td></tr>");
    }
    let _ = write!(svg, "</svg>{table}</tbody></table></div>");
    Markup::new(svg)
}

/// The next figure that a scale ends well on.
fn round_up(most: i64) -> i64 {
    let mut unit = 1;
    loop {
        if let Some(top) = [2, 4, 6, 10].iter().map(|step| step * unit).find(|top| *top >= most) {
            return top;
        }
        unit *= 10;
    }
}

/// A figure in little room.
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
    fn a_scale_ends_above_its_highest_figure() {
        for most in [1, 2, 3, 5, 9, 11, 99, 101, 12_345] {
            assert!(round_up(most) >= most && round_up(most) <= most * 3, "{most}");
        }
    }

    #[test]
    fn a_strip_shows_what_was_short_and_tells_it_in_words() {
        let at = |s: i64| Timestamp::from_second(s).unwrap();
        let ill = Stretch { from: at(86_399), until: at(86_400), what: "probe_failed".into() };
        let well = Stretch { from: at(43_200), until: at(86_399), what: "healthy".into() };
        let strip = strip(&[well, ill], at(0), at(86_400), "Health of <x>").to_string();
        assert!(strip.contains("<rect class=\"good\" x=\"120.0\" width=\"120.0\""), "{strip}");
        assert!(strip.contains("<rect class=\"bad\" x=\"238.5\" width=\"1.5\""), "{strip}");
        assert!(strip.contains("<td>probe failed</td>") && !strip.contains("<x>"), "{strip}");
    }

    #[test]
    fn a_burst_of_what_came_in_leaves_what_ended_to_be_seen() {
        let point = |enqueued, succeeded| Point { at: Timestamp::UNIX_EPOCH, enqueued, succeeded, failed: 0 };
        let tallest = |points: &[Point]| {
            let chart = throughput(points).to_string();
            let bars = chart.split("<rect class=\"good\"").skip(1).filter_map(|bar| bar.split("height=\"").nth(1));
            bars.filter_map(|bar| bar.split('"').next()?.parse::<f64>().ok()).fold(0.0, f64::max)
        };
        assert!(tallest(&[point(20_000, 0), point(0, 10)]) > 20.0);
        let chart = throughput(&[point(400, 0)]).to_string();
        assert!(chart.contains(">400</text>"), "with nothing that ended the line has the scale: {chart}");
    }

    #[test]
    fn readings_stand_where_their_hour_is() {
        let at = |hours: i64| Timestamp::from_second(hours * 3_600).unwrap();
        let reading = |hours: i64| Reading { at: at(hours), p50: 1, p95: 2 };
        let chart = readings(&[reading(76), reading(100)], [2_000, 5_000], at(100)).to_string();
        assert!(chart.contains("cx=\"200.0\"") && chart.contains("cx=\"360.0\""), "{chart}");
        assert!(chart.contains(">24 h</text>") && chart.contains(">now</text>"), "{chart}");
    }

    #[test]
    fn a_chart_without_points_is_empty_and_one_with_points_tells_them_in_words() {
        assert!(throughput(&[]).to_string().ends_with("</table></div>"));
        let point = Point { at: Timestamp::UNIX_EPOCH, enqueued: 3, succeeded: 2, failed: 1 };
        let chart = throughput(&[point]).to_string();
        assert!(chart.contains("<td>00:00</td><td>3</td><td>2</td><td>1</td>"), "{chart}");
        assert!(!chart.contains("style="), "the policy forbids styles in attributes");
    }
}
