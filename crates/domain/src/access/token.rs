//! The format of tokens: `windlass_`, 43 random letters and digits, and a checksum of 6.
//!
//! The prefix and the checksum serve secret scanners, which can distinguish a real token from similar text. A mistyped
//! token is also refused without a lookup.

use std::fmt;

use crate::limits::TOKEN_RANDOM_CHARS;

pub const PREFIX: &str = "windlass_";
const CHECKSUM: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// A token in plain text. It is shown once; the database stores only its hash.
#[derive(Clone, PartialEq, Eq)]
pub struct TokenText(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not a valid Windlass token; check that it was copied completely")]
pub struct InvalidToken;

impl TokenText {
    /// Draws random bytes until the token is complete. Bytes above 247 are skipped, so that all characters are equally
    /// likely.
    pub fn from_random(mut byte: impl FnMut() -> u8) -> Self {
        let mut text = String::from(PREFIX);
        while text.len() < PREFIX.len() + TOKEN_RANDOM_CHARS {
            let drawn = byte();
            if drawn < 248 {
                text.push(char::from(ALPHABET[usize::from(drawn % 62)]));
            }
        }
        text.push_str(&checksum(&text));
        Self(text)
    }

    pub fn parse(text: &str) -> Result<Self, InvalidToken> {
        let random = text.strip_prefix(PREFIX).ok_or(InvalidToken)?;
        let whole =
            random.len() == TOKEN_RANDOM_CHARS + CHECKSUM && random.bytes().all(|byte| ALPHABET.contains(&byte));
        if !whole {
            return Err(InvalidToken);
        }
        let (body, check) = text.split_at(PREFIX.len() + TOKEN_RANDOM_CHARS);
        if checksum(body) == check { Ok(Self(text.to_owned())) } else { Err(InvalidToken) }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Redacted, so that logs and panics do not contain the token.
impl fmt::Debug for TokenText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}…")
    }
}

/// CRC-32 (as in zip and Ethernet) as six base-62 digits.
fn checksum(text: &str) -> String {
    let mut crc = !0u32;
    for byte in text.bytes() {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
        }
    }
    let mut remaining = !crc;
    let mut digits = [0u8; CHECKSUM];
    for digit in digits.iter_mut().rev() {
        *digit = ALPHABET[(remaining % 62) as usize];
        remaining /= 62;
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

    /// Requirement X7.
    #[test]
    fn a_token_with_any_changed_character_does_not_parse() {
        let token = token(7);
        assert_eq!(token.as_str().len(), 58);
        assert_eq!(TokenText::parse(token.as_str()), Ok(token.clone()));
        for index in PREFIX.len()..58 {
            let mut changed = token.as_str().to_owned().into_bytes();
            changed[index] = if changed[index] == b'a' { b'b' } else { b'a' };
            assert_eq!(TokenText::parse(std::str::from_utf8(&changed).unwrap()), Err(InvalidToken), "at {index}");
        }
        for text in ["", "windlass_", "Bearer x", &token.as_str()[1..], &format!("{}0", token.as_str()), "windlass_ü"]
        {
            assert_eq!(TokenText::parse(text), Err(InvalidToken), "{text}");
        }
    }

    /// Requirement X7.
    #[test]
    fn debug_output_hides_the_token() {
        assert_eq!(format!("{:?}", token(1)), "windlass_…");
    }

    #[test]
    fn the_token_checksum_matches_the_published_crc32_vector() {
        // CRC-32 of "123456789" is 0xCBF43926, which is 3421780262 in base 62.
        assert_eq!(checksum("123456789"), "3jZRME");
    }
}
