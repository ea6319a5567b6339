//! HTML fragments that several pages use. Every function escapes its input.

use std::fmt::{self, Display, Write};

use askama::filters::{Escaper, Html, HtmlSafe};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use serde_json::Value;
use wire::RawValue;

/// Characters of the first line of a message; the rest is shown on demand.
const LINE_CHARACTERS: usize = 300;
/// JSON is shown up to this size and then truncated.
const SHOWN_BYTES: usize = 24 * 1024;

/// Text that is already HTML.
#[derive(Clone, Debug, Default)]
pub(crate) struct Markup(String);

impl Markup {
    pub(crate) fn new(html: String) -> Self {
        Self(html)
    }
}

impl Display for Markup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl HtmlSafe for Markup {}

/// Escapes text for use in content or in a quoted attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    let _ = Html.write_escaped_str(&mut escaped, text);
    escaped
}

fn utc_time(at: &Timestamp, show: &str) -> Markup {
    time_element(at, show, &format!("{} UTC", at.strftime("%Y-%m-%d %H:%M:%S")))
}

fn time_element(at: &Timestamp, show: &str, title: &str) -> Markup {
    let utc = at.strftime("%Y-%m-%d %H:%M:%S");
    let exact = at.strftime("%Y-%m-%dT%H:%M:%S.%3fZ");
    let title = escape(title);
    Markup(format!("<time datetime=\"{exact}\" title=\"{title}\" data-show=\"{show}\">{utc} UTC</time>"))
}

/// A time that scripts show in the reader's time zone, with the time in `zone` as a tooltip.
pub(crate) fn time_by(at: &Timestamp, zone: &TimeZone) -> Markup {
    let own = at.to_zoned(zone.clone()).strftime("%Y-%m-%d %H:%M:%S").to_string();
    time_element(at, "time", &format!("{own} {}", zone.iana_name().unwrap_or("UTC")))
}

/// A time that scripts show in the reader's time zone, with UTC as a tooltip.
pub(crate) fn time(at: &Timestamp) -> Markup {
    utc_time(at, "time")
}

/// A time that scripts show relative to now.
pub(crate) fn ago(at: &Timestamp) -> Markup {
    utc_time(at, "ago")
}

pub(crate) fn opt_ago(at: &Option<Timestamp>) -> Markup {
    at.as_ref().map_or_else(none, ago)
}

/// The placeholder for a missing value.
pub(crate) fn none() -> Markup {
    Markup("<span class=\"none\" aria-label=\"none\">–</span>".into())
}

pub(crate) fn opt(text: &Option<String>) -> Markup {
    text.as_ref().map_or_else(none, |text| Markup(escape(text)))
}

/// A number with thousands separators.
pub fn count(number: &i64) -> String {
    let digits = number.unsigned_abs().to_string();
    let mut text = String::from(if *number < 0 { "-" } else { "" });
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A duration in its two largest units.
pub(crate) fn seconds(seconds: f64) -> String {
    match seconds {
        s if !s.is_finite() || s < 0.0 => "–".into(),
        s if s < 0.9995 => format!("{:.0} ms", s * 1_000.0),
        s if s < 9.95 => format!("{s:.1} s"),
        s if s < 59.5 => format!("{s:.0} s"),
        s => {
            let whole = s.round() as u64;
            let pair = |large: &str, a: u64, small: &str, b: u64| match b {
                0 => format!("{a} {large}"),
                b => format!("{a} {large} {b} {small}"),
            };
            match whole {
                0..3_600 => pair("min", whole / 60, "s", whole % 60),
                3_600..86_400 => pair("h", whole / 3_600, "min", whole % 3_600 / 60),
                _ => pair("d", whole / 86_400, "h", whole % 86_400 / 3_600),
            }
        }
    }
}

/// Both quantiles of an estimate, or one if they are equal.
pub(crate) fn eta(eta: &wire::EtaRange) -> String {
    let (p50, p90) = (seconds(eta.p50), seconds(eta.p90));
    if p50 == p90 { p50 } else { format!("{p50} (p50), {p90} (p90)") }
}

/// The duration between two times; without an end, a duration that scripts keep up to date.
pub(crate) fn took(from: &Option<Timestamp>, to: &Option<Timestamp>) -> Markup {
    match (from, to) {
        (Some(from), Some(to)) => Markup(seconds(to.duration_since(*from).as_secs_f64().max(0.0))),
        (Some(from), None) => utc_time(from, "elapsed"),
        _ => none(),
    }
}

/// The state of a run: `running` has the color of working jobs.
pub(crate) fn run_state(run: &str) -> Markup {
    if run == "running" { Markup("<span class=\"state state-working\">running</span>".into()) } else { state(run) }
}

/// A state as a colored label. The color carries no information beyond the text.
pub(crate) fn state(state: &str) -> Markup {
    let text = escape(state);
    let class = if state.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_') { state } else { "other" };
    Markup(format!("<span class=\"state state-{class}\">{}</span>", text.replace('_', " ")))
}

/// Percent-encodes a name as one path segment.
pub fn segment(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for byte in name.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(byte)),
            other => drop(write!(encoded, "%{other:02X}")),
        }
    }
    encoded
}

/// The end of an id. The beginning is a timestamp and similar for all ids.
pub fn short(id: &uuid::Uuid) -> String {
    let id = id.to_string();
    format!("…{}", &id[id.len() - 8..])
}

pub(crate) fn bytes(bytes: &i64) -> String {
    let size = *bytes as f64;
    match size {
        s if s < 1_024.0 => format!("{bytes} B"),
        s if s < 1_048_576.0 => format!("{:.1} KiB", s / 1_024.0),
        s if s < 1_073_741_824.0 => format!("{:.1} MiB", s / 1_048_576.0),
        s => format!("{:.2} GiB", s / 1_073_741_824.0),
    }
}

/// The first line of a message, for a row of a table.
pub(crate) fn first_line(message: &str) -> &str {
    message.trim().lines().next().unwrap_or_default()
}

/// An error message: its first line, and the whole text on demand if there is more, such as a traceback.
pub(crate) fn message(message: &str) -> Markup {
    let line = first_line(message);
    let short: String = line.chars().take(LINE_CHARACTERS).collect();
    if short.len() == message.trim().len() {
        return prose(message.trim());
    }
    let dots = if short.len() < line.len() { "…" } else { "" };
    Markup(format!(
        "<details class=\"whole\"><summary>{}{dots}</summary><pre tabindex=\"0\">{}</pre></details>",
        prose(&short),
        escape(&cut(message.to_owned(), SHOWN_BYTES))
    ))
}

/// Text for people, with names in backticks as code.
pub(crate) fn prose(text: &str) -> Markup {
    let mut html = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, code, after)) = rest.split_once('`').and_then(|(before, rest)| {
        let (code, after) = rest.split_once('`')?;
        Some((before, code, after))
    }) {
        let _ = write!(html, "{}<code>{}</code>", escape(before), escape(code));
        rest = after;
    }
    html.push_str(&escape(rest));
    Markup(html)
}

/// Indented JSON, truncated at `SHOWN_BYTES`.
pub(crate) fn json(value: &RawValue) -> String {
    let parsed: Result<Value, _> = serde_json::from_str(value.get());
    let pretty = parsed.and_then(|value| serde_json::to_string_pretty(&value));
    cut(pretty.unwrap_or_else(|_| value.get().to_owned()), SHOWN_BYTES)
}

/// Complete JSON for a form field that sends it back.
pub(crate) fn whole_json(value: &RawValue) -> String {
    let parsed: Result<Value, _> = serde_json::from_str(value.get());
    // Numbers that serde_json cannot represent exactly keep their original text.
    match parsed.and_then(|parsed| Ok((serde_json::to_string(&parsed)?, serde_json::to_string_pretty(&parsed)?))) {
        Ok((same, pretty)) if same == value.get() => pretty,
        _ => value.get().to_owned(),
    }
}

pub(crate) fn cut(mut text: String, max_bytes: usize) -> String {
    if text.len() > max_bytes {
        let end = (0..=max_bytes).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
        let rest = text.len() - end;
        text.truncate(end);
        let _ = write!(text, "\n… {} more", bytes(&(rest as i64)));
    }
    text
}

/// The address of a link that a worker supplied: an HTTP URL or a path of this server. Other schemes, such as
/// `javascript:`, return `None`.
pub(crate) fn link(root: &str, href: &str) -> Option<String> {
    if href.starts_with("https://") || href.starts_with("http://") {
        return Some(href.to_owned());
    }
    let path = href.strip_prefix('/').filter(|path| !path.starts_with(['/', '\\']))?;
    Some(format!("{root}{path}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_escaped_in_html() {
        for text in ["<script>", "\"><img src=x onerror=alert(1)>", "' onmouseover='x", "&lt;"] {
            let shown = escape(text);
            assert!(!shown.contains(['<', '>', '"', '\'']), "{shown}");
            assert!(!state(text).to_string().contains("<script"), "{text}");
        }
    }

    #[test]
    fn a_traceback_is_one_line_until_it_is_opened() {
        let shown = message("boom <x>\n  at a.rs:1\n  at b.rs:2").to_string();
        assert!(shown.contains("<summary>boom &#60;x&#62;</summary>") && shown.contains("at b.rs:2</pre>"), "{shown}");
        assert_eq!(message(" it broke \n").to_string(), "it broke");
        assert!(message(&"x".repeat(400)).to_string().contains(&format!("<summary>{}…</summary>", "x".repeat(300))));
    }

    #[test]
    fn names_in_backticks_are_code() {
        assert_eq!(prose("after `a: <b>` and `c`").to_string(), "after <code>a: &#60;b&#62;</code> and <code>c</code>");
        assert_eq!(prose("one ` alone").to_string(), "one ` alone");
    }

    #[test]
    fn a_link_is_an_http_url_or_a_local_path() {
        assert_eq!(link("../", "/api/v1/jobs/x").as_deref(), Some("../api/v1/jobs/x"));
        assert_eq!(link("./", "https://example.com/a").as_deref(), Some("https://example.com/a"));
        for bad in ["javascript:alert(1)", "//evil.example", "/\\evil.example", "data:text/html,x", "", "jobs"] {
            assert_eq!(link("./", bad), None, "{bad}");
        }
    }

    #[test]
    fn a_name_is_encoded_as_one_path_segment() {
        assert_eq!(segment("a/b#c?ä"), "a%2Fb%23c%3F%C3%A4");
        assert_eq!(segment("v1.2_x-y~z"), "v1.2_x-y~z");
    }

    #[test]
    fn durations_are_shown_in_at_most_two_units() {
        let shown = [0.0, 0.25, 1.0, 9.0, 59.0, 60.0, 61.0, 3_599.6, 7_320.0, 90_000.0].map(seconds);
        assert_eq!(
            shown,
            ["0 ms", "250 ms", "1.0 s", "9.0 s", "59 s", "1 min", "1 min 1 s", "1 h", "2 h 2 min", "1 d 1 h"]
        );
        assert_eq!([0, 12, 1_234, -1_234_567].map(|number| count(&number)), ["0", "12", "1,234", "-1,234,567"]);
    }
}
