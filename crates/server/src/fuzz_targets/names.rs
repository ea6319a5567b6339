//! Fuzz targets for names, labels, ids, tokens, globs and cursors.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use domain::limits::{LABEL_BYTES, NAME_BYTES};
use domain::runtimes::{ImageRef, OperationCode};
use domain::triggers::trigger::Glob;
use domain::{Label, Name, Right, Role, RuntimeName, TokenText};
use uuid::Uuid;

use super::{accepted, first_line};
use crate::cursor;
use crate::error::ApiError;

/// An accepted name or label must be stored unchanged, within its length limit and without control characters.
pub fn name(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(name) = Name::new(&text) {
        assert_eq!(name.as_str(), text);
        assert!(text.len() <= NAME_BYTES && text.bytes().all(|byte| byte.is_ascii_graphic()));
        assert!(Label::new(&text).is_ok(), "a name is a label");
    }
    if let Ok(label) = Label::new(&text) {
        assert_eq!(label.as_str(), text);
        assert!(text.len() <= LABEL_BYTES && text.trim() == text && !text.chars().any(char::is_control));
    }
    if let Ok(name) = RuntimeName::new(&text) {
        assert!(!name.as_str().starts_with('.') && !name.as_str().contains(['/', '\\']), "it becomes part of a path");
    }
    if let Ok(image) = ImageRef::new(&text) {
        assert_eq!(ImageRef::new(image.as_str()).as_ref(), Ok(&image));
        assert_ne!(image.check_patch(&image), Err(OperationCode::SemverPatchOnly), "an image is a patch of itself");
    }
    if let Ok(id) = Uuid::try_parse(&text) {
        assert_eq!(Uuid::try_parse(&id.to_string()), Ok(id));
    }
    if let Ok(right) = Right::grantable(&text) {
        assert_eq!(right.to_string(), text);
    }
    if let Ok(role) = text.parse::<Role>() {
        assert_eq!(role.to_string(), text);
    }
    token(&text, data);
}

fn token(text: &str, data: &[u8]) {
    if let Ok(token) = TokenText::parse(text) {
        assert_eq!(token.as_str(), text);
        assert!(!format!("{token:?}").contains(&text[10..]), "Debug must not reveal a token");
    }
    // A token made from any random bytes must parse, and must not parse with one letter changed.
    let mut random =
        data.iter().chain(b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".iter()).cycle();
    let token = TokenText::from_random(|| *random.next().expect("the iterator is endless") % 248);
    assert_eq!(TokenText::parse(token.as_str()).as_ref(), Ok(&token));
    let at = 9 + usize::from(data.first().copied().unwrap_or(0)) % (token.as_str().len() - 9);
    let other = if token.as_str().as_bytes()[at] == b'x' { "y" } else { "x" };
    let mut changed = token.as_str().to_owned();
    changed.replace_range(at..=at, other);
    assert!(TokenText::parse(&changed).is_err());
}

/// Input: a glob, then a text. The glob must print as it was written, and match like the naive matcher.
pub fn glob(data: &[u8]) {
    let (glob, text) = first_line(data);
    let (source, text) = (String::from_utf8_lossy(glob), String::from_utf8_lossy(text));
    let Ok(glob) = Glob::parse(&source) else { return };
    assert_eq!(glob.to_string(), source);
    assert_eq!(glob.matches(&text), naive(source.as_bytes(), text.as_bytes()), "{source} on {text}");
}

fn naive(glob: &[u8], text: &[u8]) -> bool {
    match (glob, text) {
        ([b'*', rest @ ..], text) => (0..=text.len()).any(|skipped| naive(rest, &text[skipped..])),
        ([first, glob @ ..], [got, text @ ..]) => first == got && naive(glob, text),
        (glob, text) => glob.is_empty() && text.is_empty(),
    }
}

type Listing = (&'static str, fn(Option<&str>) -> Result<Option<String>, ApiError>);

/// Every listing: decodes a cursor and encodes it again.
const LISTINGS: [Listing; 21] = [
    ("abandoned", |text| Ok(cursor::abandoned(text)?.map(cursor::after_abandoned))),
    ("dead letters", |text| Ok(cursor::dead_letter(text)?.map(cursor::after_dead_letter))),
    ("deliveries", |text| Ok(cursor::delivery(text)?.map(cursor::after_delivery))),
    ("eligible", |text| Ok(cursor::eligible(text)?.map(|(at, subject)| cursor::after_eligible(at, &subject)))),
    ("failures", |text| Ok(cursor::failure(text)?.map(cursor::after_failure))),
    ("jobs", |text| Ok(cursor::job(text)?.map(cursor::after_job))),
    ("keys", |text| Ok(cursor::key(text)?.map(|key| cursor::after_key(&key)))),
    ("operations", |text| Ok(cursor::operation(text)?.map(cursor::after_operation))),
    ("pools", |text| Ok(cursor::pool(text)?.map(|name| cursor::after_pool(&name)))),
    ("processes", |text| Ok(cursor::process(text)?.map(|name| cursor::after_process(&name)))),
    ("queues", |text| Ok(cursor::queue(text)?.map(|name| cursor::after_queue(&name)))),
    ("runs", |text| Ok(cursor::run(text)?.map(cursor::after_run))),
    ("runtimes", |text| Ok(cursor::runtime(text)?.map(|name| cursor::after_runtime(&name)))),
    ("signals", |text| Ok(cursor::signal(text)?.map(cursor::after_signal))),
    ("signatures", |text| Ok(cursor::signature(text)?.map(cursor::after_signature))),
    ("subjects", |text| Ok(cursor::subject(text)?.map(|subject| cursor::after_subject(&subject)))),
    ("tenants", |text| Ok(cursor::tenant(text)?.map(|name| cursor::after_tenant(&name)))),
    ("timeline", |text| Ok(cursor::timeline(text)?.map(cursor::after_timeline))),
    ("tokens", |text| Ok(cursor::token(text)?.map(cursor::after_token))),
    ("triggers", |text| Ok(cursor::trigger(text)?.map(cursor::after_trigger))),
    ("workers", |text| Ok(cursor::worker(text)?.map(cursor::after_worker))),
];

/// The input as a cursor, and as the bytes inside one. At most one listing may accept it, and must produce the same
/// cursor again.
pub fn cursor(data: &[u8]) {
    check_cursor(&String::from_utf8_lossy(data));
    check_cursor(&URL_SAFE_NO_PAD.encode(data));
}

fn check_cursor(text: &str) {
    let mut accepting = Vec::new();
    for (listing, read) in LISTINGS {
        if let Some(Some(encoded)) = accepted(read(Some(text))) {
            assert_eq!(encoded, text, "{listing}");
            accepting.push(listing);
        }
    }
    assert!(accepting.len() <= 1, "{text} is accepted by {accepting:?}");
}
