//! The tables of both databases and the types of their columns.

/// A table of both databases.
#[derive(Clone, Debug)]
pub(super) struct Table {
    pub(super) name: String,
    pub(super) columns: Vec<TableColumn>,
    /// Positions of the columns of the primary key, in its order.
    pub(super) key: Vec<usize>,
    /// Column with a sequence, if any.
    pub(super) identity: Option<String>,
    /// Rows that an interrupted copy has copied.
    pub(super) copied: u64,
}

#[derive(Clone, Debug)]
pub(super) struct TableColumn {
    pub(super) name: String,
    pub(super) kind: ColumnKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ColumnKind {
    Int,
    SmallInt,
    Bool,
    Real,
    Text,
    Json,
    Blob,
    Uuid,
    Time,
}

impl ColumnKind {
    pub(super) fn parse(text: &str) -> Option<Self> {
        Some(match text {
            "bigint" => Self::Int,
            "integer" => Self::SmallInt,
            "boolean" => Self::Bool,
            "double precision" => Self::Real,
            "text" => Self::Text,
            "json" => Self::Json,
            "bytea" => Self::Blob,
            "uuid" => Self::Uuid,
            "timestamp with time zone" => Self::Time,
            _ => return None,
        })
    }

    /// The type of the array that carries the values, and the expression that converts an element.
    pub(super) fn array(self, element: &str) -> (&'static str, String) {
        match self {
            Self::Int => ("bigint", element.to_owned()),
            Self::SmallInt => ("bigint", format!("{element}::integer")),
            Self::Bool => ("bigint", format!("{element} <> 0")),
            Self::Real => ("double precision", element.to_owned()),
            Self::Text => ("text", element.to_owned()),
            Self::Json => ("json", element.to_owned()),
            Self::Blob => ("text", format!("{element}::bytea")),
            Self::Uuid => ("uuid", element.to_owned()),
            Self::Time => ("timestamptz", element.to_owned()),
        }
    }
}
