//! What a token looks like: `windlass_`, 43 letters and digits drawn at random, and 6 that check them.
//!
//! The prefix and the checksum are for scanners that look for leaked secrets: they can tell a real token from text that
//! happens to look like one, and a mistyped token is refused before anything is looked up.

use std::fmt;

use crate::limits::TOKEN_RANDOM;

pub const PREFIX: &str = "windlass_";
const CHECKSUM: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A token as its owner holds it. It is shown once and never written down here: only its hash is kept.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a token of this program, or it was not copied whole")]
pub struct NotAToken;

impl TokenText {
    /// From random bytes, as many as it takes: each letter is equally likely, so a byte above 247 is passed over.
    pub fn from_random(mut byte: impl FnMut() -> u8) -> Self {
        let mut text = String::from(PREFIX);
        while text.len() < PREFIX.len() + TOKEN_RANDOM {
            let drawn = byte();
            if drawn < 248 {
                text.push(char::from(ALPHABET[usize::from(drawn % 62)]));
            }
        }
        text.push_str(&checksum(&text));
        Self(text)
    }

    pub fn parse(text: &str) -> Result<Self, NotAToken> {
        let random = text.strip_prefix(PREFIX).ok_or(NotAToken)?;
        let whole = random.len() == TOKEN_RANDOM + CHECKSUM && random.bytes().all(|byte| ALPHABET.contains(&byte));
        if !whole {
            return Err(NotAToken);
        }
        let (body, check) = text.split_at(PREFIX.len() + TOKEN_RANDOM);
        if checksum(body) == check { Ok(Self(text.to_owned())) } else { Err(NotAToken) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Logs and panics never show it.
impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}…")
    }
}

/// CRC-32 (the one of zip and Ethernet) in six digits of base 62.
fn checksum(text: &str) -> String {
    let mut crc = !0u32;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    let mut left = !crc;
    let mut digits = [0u8; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(left % 62) as usize];
        left /= 62;
    }
    digits.iter().map(|digit| char::from(*digit)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(seed: u8) -> TokenText {
        let mut next = seed;
        TokenText::from_random(|| {
            next = next.wrapping_mul(97).wrapping_add(13);
            next
        })
    }

    #[test]
    fn x7_a_token_reads_back_and_a_changed_one_does_not() {
        let token = token(7);
        assert_eq!(token.as_str().len(), 58);
        assert_eq!(TokenText::parse(token.as_str()), Ok(token.clone()));
        for place in PREFIX.len()..58 {
            let mut changed = token.as_str().to_owned().into_bytes();
            changed[place] = if changed[place] == b'a' { b'b' } else { b'a' };
            assert_eq!(TokenText::parse(std::str::from_utf8(&changed).unwrap()), Err(NotAToken), "at {place}");
        }
        for text in ["", "windlass_", "Bearer x", &token.as_str()[1..], &format!("{}0", token.as_str()), "windlass_ü"]
        {
            assert_eq!(TokenText::parse(text), Err(NotAToken), "{text}");
        }
    }

    #[test]
    fn x7_a_token_is_not_shown_by_debug() {
        assert_eq!(format!("{:?}", token(1)), "windlass_…");
    }

    #[test]
    fn the_checksum_is_the_known_one() {
        // CRC-32 of "123456789" is 0xCBF43926, which is 3421780262 in base 62.
        assert_eq!(checksum("123456789"), "3jZRME");
    }
}
