//! The values of copied rows, in a form that both databases can store, and their hashes.

use std::fmt::Write;

use domain::Time;
use sha2::{Digest, Sha256};
use uuid::Uuid;

use super::table::ColumnKind;
use crate::db::tx::{Param, Row};
use crate::error::StoreError;

/// A value that both databases can store. Text, JSON and hexadecimal bytes are one kind.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum CopiedValue {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Uuid(Uuid),
    Time(Time),
}

impl CopiedValue {
    pub(super) fn read(row: &Row, position: usize, kind: ColumnKind) -> Result<Self, StoreError> {
        if row.is_null(position)? {
            return Ok(Self::Null);
        }
        let value = match kind {
            ColumnKind::Int | ColumnKind::SmallInt => row.opt_int(position)?.map(Self::Int),
            ColumnKind::Bool => Some(Self::Int(i64::from(row.bool(position)?))),
            ColumnKind::Real => row.opt_real(position)?.map(Self::Real),
            ColumnKind::Text | ColumnKind::Json => row.opt_text(position)?.map(Self::Text),
            ColumnKind::Blob => row.opt_blob(position)?.map(|bytes| Self::Text(hex(&bytes))),
            ColumnKind::Uuid => row.opt_uuid(position)?.map(Self::Uuid),
            ColumnKind::Time => row.opt_time(position)?.map(Self::Time),
        };
        Ok(value.unwrap_or(Self::Null))
    }

    /// A parameter for a key. Keys have no bytes.
    pub(super) fn param(&self, kind: ColumnKind) -> Param<'_> {
        match self {
            Self::Null => Param::Null,
            Self::Int(value) if kind == ColumnKind::Bool => Param::Bool(*value != 0),
            Self::Int(value) => Param::Int(*value),
            Self::Real(value) => Param::Real(*value),
            Self::Text(value) => Param::Text(value),
            Self::Uuid(value) => Param::Uuid(*value),
            Self::Time(value) => Param::Time(*value),
        }
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            _ => None,
        }
    }

    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            _ => 8,
        }
    }
}

/// The form in which PostgreSQL reads bytes from text.
fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(2 + bytes.len() * 2);
    text.push_str("\\x");
    for byte in bytes {
        let _infallible = write!(text, "{byte:02x}");
    }
    text
}

pub(super) fn hash(row: &[CopiedValue]) -> u128 {
    let mut hash = Sha256::new();
    for value in row {
        match value {
            CopiedValue::Null => hash.update([0]),
            CopiedValue::Int(value) => hash.update([&[1][..], &value.to_be_bytes()].concat()),
            CopiedValue::Real(value) => hash.update([&[2][..], &value.to_bits().to_be_bytes()].concat()),
            CopiedValue::Text(text) => {
                hash.update([&[3][..], &(text.len() as u64).to_be_bytes()].concat());
                hash.update(text);
            }
            CopiedValue::Uuid(value) => hash.update([&[4][..], value.as_bytes()].concat()),
            CopiedValue::Time(value) => hash.update([&[5][..], &value.micros().to_be_bytes()].concat()),
        }
    }
    let bytes: [u8; 32] = hash.finalize().into();
    u128::from_be_bytes(bytes[..16].try_into().expect("half of 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_of_a_row_depends_on_every_value_and_its_place() {
        let text = |text: &str| CopiedValue::Text(text.into());
        let rows = [
            vec![text("a"), text("b")],
            vec![text("b"), text("a")],
            vec![text("ab"), text("")],
            vec![text("a"), CopiedValue::Null],
            vec![CopiedValue::Int(0), CopiedValue::Null],
            vec![CopiedValue::Real(0.0), CopiedValue::Null],
            vec![CopiedValue::Time(Time::from_micros(0)), CopiedValue::Null],
        ];
        for (place, row) in rows.iter().enumerate() {
            for other in &rows[place + 1..] {
                assert_ne!(hash(row), hash(other), "{row:?} {other:?}");
            }
        }
        assert_eq!(hex(&[0, 171]), "\\x00ab");
    }
}
