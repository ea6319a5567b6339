//! Values as both databases take and give them.
//!
//! SQLite keeps a UUID as a 16-byte blob, a time as integer microseconds, a boolean as 0 or 1 and JSON as text;
//! PostgreSQL has native types for each.

use std::error::Error;
use std::ops::RangeInclusive;

use bytes::{BufMut, BytesMut};
use domain::{JobId, Time, WorkerId};
use rusqlite::types::{ToSqlOutput, Value as SqliteValue, ValueRef};
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use crate::error::StoreError;

/// Microseconds between 1970 and PostgreSQL's epoch, 2000-01-01.
const POSTGRES_EPOCH_MICROS: i64 = 946_684_800_000_000;

/// The first and the last moment that PostgreSQL takes, from its epoch: in 4714 BC and in 294276.
const POSTGRES_MICROS: RangeInclusive<i64> = -211_813_488_000_000_000..=9_223_371_331_199_999_999;

/// A time that somebody asks for may lie before all of PostgreSQL's; nothing lies between that and its first one.
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

/// One column of a batch: the values of one parameter for each row.
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

/// A value of SQLite's. Most blobs are ids, which need no memory of their own.
pub enum Value {
    Null,
    Int(i64),
    Real(f64),
    Text(String),
    Blob(Vec<u8>),
    Sixteen([u8; 16]),
}

impl Value {
    pub(super) fn of(value: ValueRef<'_>) -> Result<Self, StoreError> {
        Ok(match value {
            ValueRef::Null => Self::Null,
            ValueRef::Integer(value) => Self::Int(value),
            ValueRef::Real(value) => Self::Real(value),
            ValueRef::Text(text) => {
                let text = std::str::from_utf8(text).map_err(|_| StoreError::unexpected("text that is not UTF-8"))?;
                Self::Text(text.to_owned())
            }
            ValueRef::Blob(bytes) => bytes.try_into().map_or_else(|_| Self::Blob(bytes.to_vec()), Self::Sixteen),
        })
    }
}

/// One row of an answer. Columns are read by position.
pub enum Row {
    Sqlite(Vec<Value>),
    Postgres(tokio_postgres::Row),
}

struct AnyInt(i64);

impl<'a> FromSql<'a> for AnyInt {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self(match *ty {
            Type::INT2 => i64::from(i16::from_sql(ty, raw)?),
            Type::INT4 => i64::from(i32::from_sql(ty, raw)?),
            _ => i64::from_sql(ty, raw)?,
        }))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::INT2 | Type::INT4 | Type::INT8)
    }
}

struct Anything;

impl<'a> FromSql<'a> for Anything {
    fn from_sql(_: &Type, _: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        Ok(Self)
    }

    fn accepts(_: &Type) -> bool {
        true
    }
}

struct AnyText(String);

impl<'a> FromSql<'a> for AnyText {
    fn from_sql(ty: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let raw = if *ty == Type::JSONB { raw.get(1..).unwrap_or_default() } else { raw };
        Ok(Self(std::str::from_utf8(raw)?.to_owned()))
    }

    fn accepts(ty: &Type) -> bool {
        matches!(*ty, Type::TEXT | Type::VARCHAR | Type::JSON | Type::JSONB | Type::NAME | Type::UNKNOWN)
    }
}

struct PostgresTime(Time);

impl<'a> FromSql<'a> for PostgresTime {
    fn from_sql(_: &Type, raw: &'a [u8]) -> Result<Self, Box<dyn Error + Sync + Send>> {
        let micros = i64::from_be_bytes(raw.try_into()?);
        Ok(Self(Time::from_micros(micros.saturating_add(POSTGRES_EPOCH_MICROS))))
    }

    fn accepts(ty: &Type) -> bool {
        *ty == Type::TIMESTAMPTZ
    }
}

fn wrong(column: usize, wanted: &str) -> StoreError {
    StoreError::unexpected(format!("column {column} is not {wanted}"))
}

fn postgres_error(column: usize, source: tokio_postgres::Error) -> StoreError {
    StoreError::Unexpected { context: format!("column {column}"), source: Some(Box::new(source)) }
}

impl Row {
    pub fn opt_int(&self, column: usize) -> Result<Option<i64>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Int(value)) => Ok(Some(*value)),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "an integer")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<AnyInt>>(column)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn int(&self, column: usize) -> Result<i64, StoreError> {
        self.opt_int(column)?.ok_or_else(|| wrong(column, "an integer, but null"))
    }

    /// The last column, on SQLite.
    pub(crate) fn row_id(&self) -> Result<i64, StoreError> {
        match self {
            Self::Sqlite(values) => self.int(values.len().saturating_sub(1)),
            Self::Postgres(_) => Err(StoreError::unexpected("a row of PostgreSQL has no row id")),
        }
    }

    pub fn opt_real(&self, column: usize) -> Result<Option<f64>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Real(value)) => Ok(Some(*value)),
                Some(Value::Int(value)) => Ok(Some(*value as f64)),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a number")),
            },
            Self::Postgres(row) => row.try_get(column).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn bool(&self, column: usize) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Int(value)) => Ok(*value != 0),
                _ => Err(wrong(column, "a boolean")),
            },
            Self::Postgres(row) => row.try_get(column).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_text(&self, column: usize) -> Result<Option<String>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Text(value)) => Ok(Some(value.clone())),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "text")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<AnyText>>(column)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn text(&self, column: usize) -> Result<String, StoreError> {
        self.opt_text(column)?.ok_or_else(|| wrong(column, "text, but null"))
    }

    /// The same where nobody reads it again: SQLite's is handed out and not copied.
    pub fn take_text(&mut self, column: usize) -> Result<String, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get_mut(column) {
                Some(Value::Text(value)) => Ok(std::mem::take(value)),
                _ => Err(wrong(column, "text")),
            },
            Self::Postgres(_) => self.text(column),
        }
    }

    pub fn is_null(&self, column: usize) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(values) => Ok(matches!(values.get(column), Some(Value::Null))),
            Self::Postgres(row) => row
                .try_get::<_, Option<Anything>>(column)
                .map(|value| value.is_none())
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_blob(&self, column: usize) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Blob(value)) => Ok(Some(value.clone())),
                Some(Value::Sixteen(value)) => Ok(Some(value.to_vec())),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "bytes")),
            },
            Self::Postgres(row) => row.try_get(column).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_uuid(&self, column: usize) -> Result<Option<Uuid>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Sixteen(value)) => Ok(Some(Uuid::from_bytes(*value))),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a UUID")),
            },
            Self::Postgres(row) => row.try_get(column).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn uuid(&self, column: usize) -> Result<Uuid, StoreError> {
        self.opt_uuid(column)?.ok_or_else(|| wrong(column, "a UUID, but null"))
    }

    pub fn job(&self, column: usize) -> Result<JobId, StoreError> {
        self.uuid(column).map(JobId::new)
    }

    pub fn opt_time(&self, column: usize) -> Result<Option<Time>, StoreError> {
        match self {
            Self::Sqlite(values) => match values.get(column) {
                Some(Value::Int(value)) => Ok(Some(Time::from_micros(*value))),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a time")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<PostgresTime>>(column)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn time(&self, column: usize) -> Result<Time, StoreError> {
        self.opt_time(column)?.ok_or_else(|| wrong(column, "a time, but null"))
    }
}
