//! Parameters of statements, encoded for both databases.
//!
//! SQLite stores a UUID as a 16-byte blob, a time as integer microseconds, a boolean as 0 or 1 and JSON as text.
//! PostgreSQL has a native type for each.

use std::error::Error;
use std::ops::RangeInclusive;

use bytes::{BufMut, BytesMut};
use domain::{JobId, Time, WorkerId};
use rusqlite::types::{ToSqlOutput, Value as SqliteValue, ValueRef};
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

/// Microseconds between 1970 and PostgreSQL's epoch, 2000-01-01.
pub(super) const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The range of `timestamptz`, in microseconds from its epoch: 4714 BC to 294276.
const POSTGRES_MICROS: RangeInclusive<i64> = -211_813_488_000_000_000..=9_223_371_331_199_999_999;

/// Clamps a time to the range of `timestamptz`. Only times that a caller asks for are outside of it.
fn postgres_micros(time: Time) -> i64 {
    time.micros().saturating_sub(POSTGRES_EPOCH_MICROS).clamp(*POSTGRES_MICROS.start(), *POSTGRES_MICROS.end())
}

/// One parameter of a statement.
#[derive(Clone, Copy, Debug)]
pub enum Param<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Real(f64),
    Text(&'a str),
    Json(&'a str),
    Blob(&'a [u8]),
    Uuid(Uuid),
    Time(Time),
}

impl<'a> Param<'a> {
    pub fn text(value: Option<&'a str>) -> Self {
        value.map_or(Self::Null, Self::Text)
    }

    pub fn json(value: Option<&'a str>) -> Self {
        value.map_or(Self::Null, Self::Json)
    }

    pub fn int(value: Option<i64>) -> Self {
        value.map_or(Self::Null, Self::Int)
    }

    pub fn time(value: Option<Time>) -> Self {
        value.map_or(Self::Null, Self::Time)
    }

    pub fn uuid(value: Option<Uuid>) -> Self {
        value.map_or(Self::Null, Self::Uuid)
    }

    pub(super) fn postgres_type(&self) -> Type {
        match self {
            Self::Null => Type::UNKNOWN,
            Self::Bool(_) => Type::BOOL,
            Self::Int(_) => Type::INT8,
            Self::Real(_) => Type::FLOAT8,
            Self::Text(_) => Type::TEXT,
            Self::Json(_) => Type::JSON,
            Self::Blob(_) => Type::BYTEA,
            Self::Uuid(_) => Type::UUID,
            Self::Time(_) => Type::TIMESTAMPTZ,
        }
    }
}

impl From<JobId> for Param<'_> {
    fn from(id: JobId) -> Self {
        Self::Uuid(id.uuid())
    }
}

impl From<WorkerId> for Param<'_> {
    fn from(id: WorkerId) -> Self {
        Self::Uuid(id.uuid())
    }
}

impl rusqlite::ToSql for Param<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(match self {
            Self::Null => ToSqlOutput::Owned(SqliteValue::Null),
            Self::Bool(value) => ToSqlOutput::Owned(SqliteValue::Integer(i64::from(*value))),
            Self::Int(value) => ToSqlOutput::Owned(SqliteValue::Integer(*value)),
            Self::Real(value) => ToSqlOutput::Owned(SqliteValue::Real(*value)),
            Self::Text(value) | Self::Json(value) => ToSqlOutput::Borrowed(ValueRef::Text(value.as_bytes())),
            Self::Blob(value) => ToSqlOutput::Borrowed(ValueRef::Blob(value)),
            Self::Uuid(value) => ToSqlOutput::Borrowed(ValueRef::Blob(value.as_bytes())),
            Self::Time(value) => ToSqlOutput::Owned(SqliteValue::Integer(value.micros())),
        })
    }
}

impl ToSql for Param<'_> {
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        match self {
            Self::Null => return Ok(IsNull::Yes),
            Self::Bool(value) => out.put_u8(u8::from(*value)),
            Self::Int(value) => match *ty {
                Type::INT2 => out.put_i16(i16::try_from(*value)?),
                Type::INT4 => out.put_i32(i32::try_from(*value)?),
                _ => out.put_i64(*value),
            },
            Self::Real(value) => match *ty {
                Type::FLOAT4 => out.put_f32(*value as f32),
                _ => out.put_f64(*value),
            },
            Self::Text(value) | Self::Json(value) => {
                if *ty == Type::JSONB {
                    out.put_u8(1);
                }
                out.put_slice(value.as_bytes());
            }
            Self::Blob(value) => out.put_slice(value),
            Self::Uuid(value) => out.put_slice(value.as_bytes()),
            Self::Time(value) => out.put_i64(postgres_micros(*value)),
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

/// One column of a batch: the value of one parameter for each row.
#[derive(Clone, Debug)]
pub enum Column<'a> {
    Int(Vec<Option<i64>>),
    Real(Vec<Option<f64>>),
    Text(Vec<Option<&'a str>>),
    Json(Vec<Option<&'a str>>),
    Uuid(Vec<Option<Uuid>>),
    Time(Vec<Option<Time>>),
}

impl<'a> Column<'a> {
    pub fn ints(values: impl IntoIterator<Item = i64>) -> Self {
        Self::Int(values.into_iter().map(Some).collect())
    }

    pub fn texts(values: impl IntoIterator<Item = &'a str>) -> Self {
        Self::Text(values.into_iter().map(Some).collect())
    }

    pub fn uuids(values: impl IntoIterator<Item = Uuid>) -> Self {
        Self::Uuid(values.into_iter().map(Some).collect())
    }

    pub fn jobs(values: impl IntoIterator<Item = JobId>) -> Self {
        Self::Uuid(values.into_iter().map(|id| Some(id.uuid())).collect())
    }

    pub(super) fn len(&self) -> usize {
        match self {
            Self::Int(values) => values.len(),
            Self::Real(values) => values.len(),
            Self::Text(values) | Self::Json(values) => values.len(),
            Self::Uuid(values) => values.len(),
            Self::Time(values) => values.len(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(super) fn param(&self, row: usize) -> Param<'_> {
        match self {
            Self::Int(values) => Param::int(values[row]),
            Self::Real(values) => values[row].map_or(Param::Null, Param::Real),
            Self::Text(values) => Param::text(values[row]),
            Self::Json(values) => Param::json(values[row]),
            Self::Uuid(values) => Param::uuid(values[row]),
            Self::Time(values) => Param::time(values[row]),
        }
    }

    pub(super) fn postgres_type(&self) -> Type {
        match self {
            Self::Int(_) => Type::INT8_ARRAY,
            Self::Real(_) => Type::FLOAT8_ARRAY,
            Self::Text(_) => Type::TEXT_ARRAY,
            Self::Json(_) => Type::JSON_ARRAY,
            Self::Uuid(_) => Type::UUID_ARRAY,
            Self::Time(_) => Type::TIMESTAMPTZ_ARRAY,
        }
    }
}

impl ToSql for Column<'_> {
    /// The array format: dimensions, a null flag, the element type, then each element with its length.
    fn to_sql(&self, ty: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let element = match ty.kind() {
            tokio_postgres::types::Kind::Array(element) => element.clone(),
            _ => return Err(format!("a column goes into an array, not {ty}").into()),
        };
        out.reserve(20 + self.len() * 24);
        out.put_i32(1);
        out.put_i32(1);
        out.put_u32(element.oid());
        out.put_i32(i32::try_from(self.len())?);
        out.put_i32(1);
        for row in 0..self.len() {
            let start = out.len();
            out.put_i32(0);
            let length = match self.param(row).to_sql(&element, out)? {
                IsNull::Yes => -1,
                IsNull::No => i32::try_from(out.len() - start - 4)?,
            };
            out[start..start + 4].copy_from_slice(&length.to_be_bytes());
        }
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}
