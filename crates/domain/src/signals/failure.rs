//! Groups failures by cause: normalizes error messages by removing variable parts.
//!
//! The same cause produces messages with different ids, numbers, paths and addresses. [`message_pattern`] replaces them
//! by placeholders. It is one pass over a bounded message, so no input can make it slow.

use crate::limits::{FAILURE_PATTERN_BYTES, FAILURE_PATTERN_TOKENS};

/// Returns the message with its variable parts replaced.
///
/// Numbers become `#`, ids `<id>`, paths `<path>`, addresses and URLs `<address>`, times `<time>`, and quoted values
/// other than plain words `<value>`. Only the first line is used; the others are usually a stack trace.
pub fn message_pattern(message: &str) -> String {
    let line = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let mut pattern = String::new();
    for token in unquoted(line).split_whitespace().take(FAILURE_PATTERN_TOKENS) {
        let word = token_pattern(token);
        // Repeated placeholders are collapsed, as in "retries 1, 2, 3" or a list of paths.
        let last = pattern.rsplit(' ').next().unwrap_or_default();
        if is_placeholder(&word) && last == word {
            continue;
        }
        if !pattern.is_empty() {
            pattern.push(' ');
        }
        pattern.push_str(&word);
        if pattern.len() >= FAILURE_PATTERN_BYTES {
            break;
        }
    }
    let mut end = pattern.len().min(FAILURE_PATTERN_BYTES);
    while !pattern.is_char_boundary(end) {
        end -= 1;
    }
    pattern.truncate(end);
    pattern
}

/// Replaces quoted values by one token, unless they are plain words such as the name of a module.
fn unquoted(line: &str) -> String {
    let mut text = String::with_capacity(line.len());
    let mut rest = line;
    while let Some(at) = rest.find(['"', '\'', '`']) {
        let quote = rest[at..].chars().next().expect("it was found");
        let after = &rest[at + quote.len_utf8()..];
        // An apostrophe inside a word is not an opening quote.
        let opens = rest[..at].chars().next_back().is_none_or(|before| !before.is_alphanumeric());
        match after.find(quote).filter(|_| opens) {
            Some(end) => {
                let value = &after[..end];
                text.push_str(&rest[..at]);
                if is_plain_word(value) {
                    text.push_str(value);
                } else {
                    text.push_str("<value>");
                }
                rest = &after[end + quote.len_utf8()..];
            }
            None => {
                text.push_str(&rest[..at + quote.len_utf8()]);
                rest = after;
            }
        }
    }
    text.push_str(rest);
    text
}

fn is_plain_word(value: &str) -> bool {
    !value.is_empty() && value.len() <= 64 && value.chars().all(|c| c.is_alphabetic() || matches!(c, '_' | '-' | ' '))
}

fn is_placeholder(word: &str) -> bool {
    ["#", "<id>", "<path>", "<address>", "<time>", "<value>"].contains(&word)
}

/// Normalizes one token, without the punctuation around it.
fn token_pattern(token: &str) -> String {
    let is_edge =
        |c: char| matches!(c, ',' | ';' | ':' | '.' | '(' | ')' | '[' | ']' | '{' | '}' | '!' | '?' | '"' | '\'' | '`');
    let start = token.trim_start_matches(is_edge);
    let core = start.trim_end_matches(is_edge);
    if core.is_empty() {
        return token.to_owned();
    }
    if let Some((name, value)) = core.split_once('=')
        && !name.is_empty()
        && name.chars().all(|c| c.is_alphabetic() || c == '_' || c == '-')
    {
        return format!("{name}={}", core_pattern(value.trim_matches(is_edge)));
    }
    // Lists are often written without spaces. Each element is normalized separately.
    if core.contains(',') {
        let mut parts: Vec<String> = core.split(',').map(core_pattern).collect();
        parts.dedup();
        return parts.join(",");
    }
    core_pattern(core)
}

fn core_pattern(core: &str) -> String {
    if core.is_empty() || is_placeholder(core) {
        return core.to_owned();
    }
    if core.contains("://") || is_address(core) {
        return "<address>".into();
    }
    if is_time(core) {
        return "<time>".into();
    }
    if is_id(core) {
        return "<id>".into();
    }
    if is_path(core) {
        return "<path>".into();
    }
    numbers_out(core)
}

fn has_digit(text: &str) -> bool {
    text.bytes().any(|byte| byte.is_ascii_digit())
}

/// UUIDs, digests, hexadecimal words, and long random strings.
fn is_id(text: &str) -> bool {
    let bare = text.split_once(':').filter(|(name, _)| name.starts_with("sha")).map_or(text, |(_, digest)| digest);
    let hex = |text: &str| text.bytes().all(|byte| byte.is_ascii_hexdigit());
    if let Some(rest) = bare.strip_prefix("0x") {
        return !rest.is_empty() && hex(rest);
    }
    let undashed: String = bare.chars().filter(|c| *c != '-').collect();
    if undashed.len() >= 8
        && hex(&undashed)
        && has_digit(&undashed)
        && undashed.bytes().any(|b| b.is_ascii_alphabetic())
    {
        return true;
    }
    // Words do not alternate between letters and digits repeatedly.
    let changes =
        bare.as_bytes().windows(2).filter(|pair| pair[0].is_ascii_digit() != pair[1].is_ascii_digit()).count();
    bare.len() >= 10
        && changes >= 3
        && bare.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

/// IPv4, IPv6, `host:port`, `user@host`.
fn is_address(text: &str) -> bool {
    let (host, port) = text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port)));
    let is_port = port.is_some_and(|port| !port.is_empty() && port.bytes().all(|byte| byte.is_ascii_digit()));
    let quads = |host: &str| {
        let parts: Vec<&str> = host.split('.').collect();
        parts.len() == 4 && parts.iter().all(|part| part.parse::<u8>().is_ok())
    };
    if quads(text) || (is_port && quads(host)) {
        return true;
    }
    if is_port && (host.contains('.') || host == "localhost") && !host.contains('/') {
        return true;
    }
    let colons = text.bytes().filter(|byte| *byte == b':').count();
    if colons >= 2 && text.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b':') && !is_time(text) {
        return true;
    }
    text.split_once('@').is_some_and(|(user, host)| !user.is_empty() && host.contains('.'))
}

fn is_time(text: &str) -> bool {
    let bytes = text.as_bytes();
    let digits =
        |range: std::ops::Range<usize>| bytes.get(range).is_some_and(|part| part.iter().all(u8::is_ascii_digit));
    let date =
        bytes.len() >= 10 && digits(0..4) && bytes[4] == b'-' && digits(5..7) && bytes[7] == b'-' && digits(8..10);
    let clock =
        bytes.len() >= 8 && digits(0..2) && bytes[2] == b':' && digits(3..5) && bytes[5] == b':' && digits(6..8);
    date || clock
}

/// Text with slashes, other than a fraction or an alternative of two words.
fn is_path(text: &str) -> bool {
    let slashes = text.chars().filter(|c| matches!(c, '/' | '\\')).count();
    match slashes {
        0 => false,
        1 => text.starts_with(['/', '\\', '.', '~']) || text.contains([':', '.']) || has_digit(text),
        _ => true,
    }
}

fn numbers_out(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        if !c.is_ascii_digit() {
            out.push(c);
            continue;
        }
        while chars.next_if(|next| next.is_ascii_digit() || matches!(next, '.' | ',' | '_')).is_some() {}
        out.push('#');
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(message: &str, pattern: &str) {
        assert_eq!(message_pattern(message), pattern);
    }

    /// Requirement S7.
    #[test]
    fn a_message_pattern_replaces_ids_numbers_paths_and_addresses() {
        check(
            "connection to 10.0.3.17:5432 refused after 3 attempts",
            "connection to <address> refused after # attempts",
        );
        check("cannot read /var/lib/x/17.tar: no space", "cannot read <path> no space");
        check("layer sha256:9f86d081884c7d659a2feaa0c55ad015 is broken", "layer <id> is broken");
        check("job 0190a5d0-ac96-774b-bcce-b302099a8057 took 12.5s", "job <id> took #s");
        check("GET https://registry.example.com/v2/a?x=1 answered 429", "GET <address> answered #");
        check("module 'left-pad' not found", "module left-pad not found");
        check("image 'nginx:1.27' not found", "image <value> not found");
        check("at 2026-01-31T12:00:00Z: can't parse", "at <time> can't parse");
        check("retry=3 host=db7", "retry=# host=db#");
        check("out of memory\n  at main.c:17", "out of memory");
        check("code 137, 138, 139", "code #");
        check("node <db-17> is away", "node <db-#> is away");
        check("", "");
    }

    /// Requirement S7.
    #[test]
    fn a_message_pattern_leaves_plain_text_unchanged() {
        check("and/or is not defined", "and/or is not defined");
        check("TypeError: undefined is not a function", "TypeError undefined is not a function");
        check("decade of facade", "decade of facade");
    }

    proptest! {
        /// Requirement S7.
        #[test]
        fn any_message_has_a_bounded_pattern(message in ".{0,2000}") {
            let pattern = message_pattern(&message);
            prop_assert!(pattern.len() <= FAILURE_PATTERN_BYTES);
        }

        /// Requirement S7.
        #[test]
        fn messages_that_differ_only_in_numbers_share_a_pattern(a in 0u32.., b in 0u32..) {
            prop_assert_eq!(
                message_pattern(&format!("worker {a} ran out of memory at {a} MiB")),
                message_pattern(&format!("worker {b} ran out of memory at {b} MiB"))
            );
        }
    }
}
