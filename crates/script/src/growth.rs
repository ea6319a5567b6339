//! Replacements for functions of the language that would build a string before its size is checked, or one that is not
//! checked at all. They check first.

use std::ops::{Range, RangeInclusive};

use rhai::{Engine, EvalAltResult, FuncRegistration, ImmutableString, Position};

use crate::Limits;
use crate::functions::CallResult;

pub(crate) fn register(engine: &mut Engine, limits: &Limits) {
    replacing(engine, limits.string_bytes);
    padding(engine, limits.string_bytes);
    characters(engine);
}

fn too_large() -> Box<EvalAltResult> {
    EvalAltResult::ErrorDataTooLarge("Length of string".into(), Position::NONE).into()
}

fn replacing(engine: &mut Engine, most: usize) {
    let new = || FuncRegistration::new("replace").with_purity(false);
    new().register_into_engine(engine, move |text: &mut ImmutableString, old: &str, by: &str| -> CallResult<()> {
        replace(text, old, by, most)
    });
    new().register_into_engine(engine, move |text: &mut ImmutableString, old: &str, by: char| -> CallResult<()> {
        replace(text, old, by.encode_utf8(&mut [0; 4]), most)
    });
    new().register_into_engine(engine, move |text: &mut ImmutableString, old: char, by: &str| -> CallResult<()> {
        replace(text, old.encode_utf8(&mut [0; 4]), by, most)
    });
    new().register_into_engine(engine, move |text: &mut ImmutableString, old: char, by: char| -> CallResult<()> {
        replace(text, old.encode_utf8(&mut [0; 4]), by.encode_utf8(&mut [0; 4]), most)
    });
}

/// Each match can become as long as a string may be, and there can be as many matches as the string has bytes.
fn replace(text: &mut ImmutableString, old: &str, by: &str, most: usize) -> CallResult<()> {
    if text.is_empty() {
        return Ok(());
    }
    let matches = text.matches(old).count();
    let unchanged = text.len() - matches * old.len();
    if unchanged.saturating_add(matches.saturating_mul(by.len())) > most {
        return Err(too_large());
    }
    *text = text.replace(old, by).into();
    Ok(())
}

fn padding(engine: &mut Engine, most: usize) {
    let pad = move |text: &mut ImmutableString, length: i64, with: &str| -> CallResult<()> {
        let missing = usize::try_from(length).unwrap_or(0).saturating_sub(text.chars().count());
        // The language's own `pad` would loop forever with an empty string.
        if missing == 0 || with.is_empty() {
            return Ok(());
        }
        if text.len().saturating_add(missing) > most {
            return Err(too_large());
        }
        let more: String = with.chars().cycle().take(missing).collect();
        *text = format!("{text}{more}").into();
        Ok(())
    };
    FuncRegistration::new("pad").with_purity(false).register_into_engine(engine, pad);
}

/// The language's own `chars` returns an array that no limit counts. A string yields the same characters in a loop.
fn characters(engine: &mut Engine) {
    engine.register_get("chars", |text: &mut ImmutableString| text.clone());
    engine.register_fn("chars", |text: ImmutableString| text);
    engine.register_fn("chars", |text: &str, from: i64| part(text, from, i64::MAX));
    engine.register_fn("chars", |text: &str, from: i64, length: i64| part(text, from, length));
    engine.register_fn("chars", |text: &str, range: Range<i64>| {
        let from = range.start.max(0);
        part(text, from, range.end.saturating_sub(from))
    });
    engine.register_fn("chars", |text: &str, range: RangeInclusive<i64>| {
        let from = (*range.start()).max(0);
        part(text, from, range.end().saturating_sub(from).saturating_add(1))
    });
}

/// `length` characters from `from`, which counts from the end if negative.
fn part(text: &str, from: i64, length: i64) -> ImmutableString {
    let skipped = match usize::try_from(from) {
        Ok(from) => from,
        Err(_) => text.chars().count().saturating_sub(from.unsigned_abs() as usize),
    };
    text.chars().skip(skipped).take(usize::try_from(length).unwrap_or(0)).collect()
}
