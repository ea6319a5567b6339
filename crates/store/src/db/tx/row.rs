//! Decoding of result rows of both databases.

use std::error::Error;
use std::fmt::Display;
use std::sync::Arc;

use domain::{JobId, Time};
use rusqlite::types::ValueRef;
use tokio_postgres::types::{FromSql, Type};
use uuid::Uuid;

use super::value::POSTGRES_EPOCH_MICROS;
use crate::error::StoreError;

/// A value of SQLite. Most blobs are ids of 16 bytes, which need no allocation.
pub(super) enum Value {
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

    /// The size of a text or a blob.
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Text(text) => text.len(),
            Self::Blob(bytes) => bytes.len(),
            Self::Null | Self::Int(_) | Self::Real(_) | Self::Sixteen(_) => 0,
        }
    }
}

/// One row of a result. Columns are read by name.
///
/// A hot loop resolves the names once per result (`positions`) and reads by position.
pub enum Row {
    Sqlite(SqliteRow),
    Postgres(tokio_postgres::Row),
}

pub struct SqliteRow {
    /// Shared by all rows of a result.
    pub(super) names: Arc<[Box<str>]>,
    pub(super) values: Vec<Value>,
}

/// The name or the position of a column.
pub trait ColumnRef: Copy + Display {
    fn position(self, row: &Row) -> Result<usize, StoreError>;
}

impl ColumnRef for usize {
    fn position(self, _: &Row) -> Result<usize, StoreError> {
        Ok(self)
    }
}

impl ColumnRef for &str {
    fn position(self, row: &Row) -> Result<usize, StoreError> {
        let position = match row {
            Row::Sqlite(row) => row.names.iter().position(|name| **name == *self),
            Row::Postgres(row) => row.columns().iter().position(|column| column.name() == self),
        };
        position.ok_or_else(|| StoreError::unexpected(format!("the result has no column {self}")))
    }
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

fn wrong(column: impl Display, wanted: &str) -> StoreError {
    StoreError::unexpected(format!("column {column} is not {wanted}"))
}

fn postgres_error(column: impl Display, source: tokio_postgres::Error) -> StoreError {
    StoreError::Unexpected { context: format!("column {column}"), source: Some(Box::new(source)) }
}

impl Row {
    /// The positions of these columns, for a loop over the rows of one result.
    pub fn positions<const N: usize>(&self, names: [&str; N]) -> Result<[usize; N], StoreError> {
        let mut positions = [0; N];
        for (position, name) in positions.iter_mut().zip(names) {
            *position = name.position(self)?;
        }
        Ok(positions)
    }

    pub fn opt_int(&self, column: impl ColumnRef) -> Result<Option<i64>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Int(value)) => Ok(Some(*value)),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "an integer")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<AnyInt>>(column.position(self)?)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn int(&self, column: impl ColumnRef) -> Result<i64, StoreError> {
        self.opt_int(column)?.ok_or_else(|| wrong(column, "an integer, but null"))
    }

    /// The last column, on SQLite.
    pub(crate) fn row_id(&self) -> Result<i64, StoreError> {
        match self {
            Self::Sqlite(row) => self.int(row.values.len().saturating_sub(1)),
            Self::Postgres(_) => Err(StoreError::unexpected("a row of PostgreSQL has no row id")),
        }
    }

    pub fn opt_real(&self, column: impl ColumnRef) -> Result<Option<f64>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Real(value)) => Ok(Some(*value)),
                Some(Value::Int(value)) => Ok(Some(*value as f64)),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a number")),
            },
            Self::Postgres(row) => row.try_get(column.position(self)?).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn bool(&self, column: impl ColumnRef) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Int(value)) => Ok(*value != 0),
                _ => Err(wrong(column, "a boolean")),
            },
            Self::Postgres(row) => row.try_get(column.position(self)?).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_text(&self, column: impl ColumnRef) -> Result<Option<String>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Text(value)) => Ok(Some(value.clone())),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "text")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<AnyText>>(column.position(self)?)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn text(&self, column: impl ColumnRef) -> Result<String, StoreError> {
        self.opt_text(column)?.ok_or_else(|| wrong(column, "text, but null"))
    }

    /// Reads a text that is not read again. On SQLite it is moved out of the row instead of copied.
    pub fn take_text(&mut self, column: impl ColumnRef) -> Result<String, StoreError> {
        let position = column.position(self)?;
        match self {
            Self::Sqlite(row) => match row.values.get_mut(position) {
                Some(Value::Text(value)) => Ok(std::mem::take(value)),
                _ => Err(wrong(column, "text")),
            },
            Self::Postgres(_) => self.text(position),
        }
    }

    pub fn is_null(&self, column: impl ColumnRef) -> Result<bool, StoreError> {
        match self {
            Self::Sqlite(row) => Ok(matches!(row.values.get(column.position(self)?), Some(Value::Null))),
            Self::Postgres(row) => row
                .try_get::<_, Option<Anything>>(column.position(self)?)
                .map(|value| value.is_none())
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_blob(&self, column: impl ColumnRef) -> Result<Option<Vec<u8>>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Blob(value)) => Ok(Some(value.clone())),
                Some(Value::Sixteen(value)) => Ok(Some(value.to_vec())),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "bytes")),
            },
            Self::Postgres(row) => row.try_get(column.position(self)?).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn opt_uuid(&self, column: impl ColumnRef) -> Result<Option<Uuid>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Sixteen(value)) => Ok(Some(Uuid::from_bytes(*value))),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a UUID")),
            },
            Self::Postgres(row) => row.try_get(column.position(self)?).map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn uuid(&self, column: impl ColumnRef) -> Result<Uuid, StoreError> {
        self.opt_uuid(column)?.ok_or_else(|| wrong(column, "a UUID, but null"))
    }

    pub fn job(&self, column: impl ColumnRef) -> Result<JobId, StoreError> {
        self.uuid(column).map(JobId::new)
    }

    pub fn opt_time(&self, column: impl ColumnRef) -> Result<Option<Time>, StoreError> {
        match self {
            Self::Sqlite(row) => match row.values.get(column.position(self)?) {
                Some(Value::Int(value)) => Ok(Some(Time::from_micros(*value))),
                Some(Value::Null) => Ok(None),
                _ => Err(wrong(column, "a time")),
            },
            Self::Postgres(row) => row
                .try_get::<_, Option<PostgresTime>>(column.position(self)?)
                .map(|value| value.map(|v| v.0))
                .map_err(|e| postgres_error(column, e)),
        }
    }

    pub fn time(&self, column: impl ColumnRef) -> Result<Time, StoreError> {
        self.opt_time(column)?.ok_or_else(|| wrong(column, "a time, but null"))
    }
}
