//! Reads `multipart/form-data`: the few fields of an upload, whole.

use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use bytes::Bytes;

pub(super) struct Part {
    pub(super) name: String,
    pub(super) filename: Option<String>,
    pub(super) content: Bytes,
}

/// The boundary that the content type names.
pub(super) fn boundary(headers: &HeaderMap) -> Option<String> {
    let text = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    let (essence, rest) = text.split_once(';')?;
    if !essence.trim().eq_ignore_ascii_case("multipart/form-data") {
        return None;
    }
    let value = rest.split(';').find_map(|part| part.trim().strip_prefix("boundary="))?;
    let boundary = value.trim_matches('"');
    (!boundary.is_empty() && boundary.len() <= 70).then(|| boundary.to_owned())
}

/// The parts of a body; `None` where it is not one.
pub(super) fn parts(body: &Bytes, boundary: &str) -> Option<Vec<Part>> {
    let mark = format!("--{boundary}");
    let mut rest = body.strip_prefix(mark.as_bytes())?;
    let mut parts = Vec::new();
    loop {
        if rest.starts_with(b"--") {
            return Some(parts);
        }
        rest = rest.strip_prefix(b"\r\n")?;
        let head_end = find(rest, b"\r\n\r\n")?;
        let head = std::str::from_utf8(&rest[..head_end]).ok()?;
        rest = &rest[head_end + 4..];
        let end = find(rest, format!("\r\n{mark}").as_bytes())?;
        let disposition = head.lines().find_map(|line| {
            let (name, value) = line.split_once(':')?;
            name.eq_ignore_ascii_case("content-disposition").then_some(value)
        })?;
        parts.push(Part {
            name: parameter(disposition, "name")?,
            filename: parameter(disposition, "filename"),
            content: body.slice_ref(&rest[..end]),
        });
        rest = &rest[end + 2 + mark.len()..];
    }
}

fn parameter(disposition: &str, wanted: &str) -> Option<String> {
    let mut rest = disposition.split_once(';')?.1;
    loop {
        let (name, value) = rest.split_once('=')?;
        let (value, then) = match value.strip_prefix('"') {
            Some(quoted) => quoted.split_once('"')?,
            None => value.split_at(value.find(';').unwrap_or(value.len())),
        };
        if name.trim().eq_ignore_ascii_case(wanted) {
            return Some(value.trim().to_owned());
        }
        rest = then.trim_start().strip_prefix(';')?;
    }
}

/// What is sought begins with a byte that is rare in the text, so a look for that byte comes first.
fn find(text: &[u8], wanted: &[u8]) -> Option<usize> {
    let first = *wanted.first()?;
    let mut from = 0;
    while let Some(at) = text[from..].iter().position(|byte| *byte == first) {
        if text[from + at..].starts_with(wanted) {
            return Some(from + at);
        }
        from += at + 1;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r8_an_upload_is_read_as_it_was_sent() {
        let body = Bytes::from_static(
            b"--x\r\nContent-Disposition: form-data; name=\"purpose\"\r\n\r\nbatch\r\n--x\r\n\
              Content-Disposition: form-data; name=\"file\"; filename=\"a; b.jsonl\"\r\nContent-Type: text/plain\r\n\r\n\
              one\r\ntwo\n\r\n--x--\r\n",
        );
        let found = parts(&body, "x").expect("two parts");
        assert_eq!((found[0].name.as_str(), &found[0].content[..]), ("purpose", &b"batch"[..]));
        assert_eq!((found[1].filename.as_deref(), &found[1].content[..]), (Some("a; b.jsonl"), &b"one\r\ntwo\n"[..]));
        for odd in
            [&b""[..], b"--x", b"--x\r\n\r\n", b"--y--", b"--x\r\nContent-Disposition: form-data\r\n\r\n\r\n--x--"]
        {
            assert!(parts(&Bytes::from_static(odd), "x").is_none(), "{odd:?}");
        }
    }
}
