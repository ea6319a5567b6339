//! The first or the last digits of an id, as people type them. The list of jobs and the command line find jobs by them.

use uuid::Uuid;

use crate::limits::ID_PART_DIGITS;

/// Hexadecimal digits in lower case, without dashes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct IdPart(String);

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must have {ID_PART_DIGITS} to 32 hexadecimal digits; dashes are ignored")]
pub struct IdPartError;

impl IdPart {
    pub fn parse(text: &str) -> Result<Self, IdPartError> {
        let digits: String = text.chars().filter(|letter| *letter != '-').map(|l| l.to_ascii_lowercase()).collect();
        let is_valid = (ID_PART_DIGITS..=32).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_hexdigit());
        if is_valid { Ok(Self(digits)) } else { Err(IdPartError) }
    }

    /// The smallest and the largest id that begin with these digits.
    pub fn range(&self) -> (Uuid, Uuid) {
        let filled = |digit: char| {
            let text: String = self.0.chars().chain(std::iter::repeat(digit)).take(32).collect();
            Uuid::parse_str(&text).expect("32 hexadecimal digits are an id")
        };
        (filled('0'), filled('f'))
    }

    pub fn begins(&self, id: Uuid) -> bool {
        let (first, last) = self.range();
        (first..=last).contains(&id)
    }

    pub fn ends(&self, id: Uuid) -> bool {
        id.as_simple().to_string().ends_with(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ID: Uuid = Uuid::from_u128(0x0193_5a3e_8c11_7c4d_9a01_5b6c_7d8e_9f10);

    fn check(text: &str, begins: bool, ends: bool) {
        let part = IdPart::parse(text).unwrap();
        assert_eq!((part.begins(ID), part.ends(ID)), (begins, ends), "{text}");
    }

    #[test]
    fn an_id_is_recognized_by_its_first_and_its_last_digits() {
        check("01935a", true, false);
        check("01935A3E-8c", true, false);
        check("8e9f10", false, true);
        check("7D8E-9F10", false, true);
        check(&ID.to_string(), true, true);
        check("01935b", false, false);
    }

    #[test]
    fn too_few_digits_and_other_letters_are_refused() {
        for text in ["", "01935", "0-1-9-3-5", "01935g", "@last", &"0".repeat(33), "größe0"] {
            assert_eq!(IdPart::parse(text), Err(IdPartError), "{text}");
        }
    }
}
