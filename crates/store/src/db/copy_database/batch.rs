//! Reads rows in batches in the order of their primary key, and inserts them on the target.

use super::PROGRESS;
use super::table::{ColumnKind, Table, TableColumn};
use super::value::CopiedValue;
use crate::db::tx::{Column, Operation, Param, Tx};
use crate::error::StoreError;

/// Rows of one batch.
const BATCH_ROWS: usize = 10_000;
/// A batch has fewer rows if the batch before it had more bytes than this.
const BATCH_BYTES: usize = 16 << 20;
pub(super) const FIRST_BATCH_ROWS: usize = 500;

/// Reads the rows that follow a row in the order of the primary key.
pub(super) struct ReadBatch {
    pub(super) table: Table,
    pub(super) after: Option<Vec<CopiedValue>>,
    /// Rows to skip, for a copy that continues.
    pub(super) skip: u64,
    pub(super) rows: usize,
}

impl ReadBatch {
    pub(super) fn first(table: &Table, skip: u64, rows: usize) -> Self {
        Self { table: table.clone(), after: None, skip, rows }
    }
}

pub(super) struct CopiedBatch {
    pub(super) rows: Vec<Vec<CopiedValue>>,
    asked: usize,
}

impl CopiedBatch {
    /// Rows of the next batch: twice as many while the rows are small.
    pub(super) fn next_rows(&self) -> usize {
        let bytes: usize = self.rows.iter().flatten().map(CopiedValue::bytes).sum();
        let fitting = self.rows.len().max(1) * BATCH_BYTES / bytes.max(1);
        fitting.min(self.asked * 2).clamp(1, BATCH_ROWS)
    }
}

impl Operation for ReadBatch {
    type Output = CopiedBatch;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<CopiedBatch, StoreError> {
        let Table { name, columns, key, .. } = &self.table;
        let listed: Vec<&str> = columns.iter().map(|column| column.name.as_str()).collect();
        let key_names: Vec<&str> = key.iter().map(|position| listed[*position]).collect();
        let (listed, key_names) = (listed.join(", "), key_names.join(", "));
        let mut params: Vec<Param<'_>> = Vec::new();
        let mut condition = String::new();
        if let Some(after) = &self.after {
            params.extend(key.iter().map(|position| after[*position].param(columns[*position].kind)));
            let marks: Vec<String> = (1..=params.len()).map(|number| format!("${number}")).collect();
            condition = format!(" where ({key_names}) > ({})", marks.join(", "));
        }
        let (limit, offset) = (self.rows, self.skip);
        let text = format!("select {listed} from {name}{condition} order by {key_names} limit {limit} offset {offset}");
        let mut rows = Vec::new();
        for row in tx.query_built(&text, &params).await? {
            let value = |(position, column): (usize, &TableColumn)| CopiedValue::read(&row, position, column.kind);
            rows.push(columns.iter().enumerate().map(value).collect::<Result<Vec<_>, _>>()?);
        }
        Ok(CopiedBatch { rows, asked: self.rows })
    }
}

/// Inserts rows on the target together with the progress of their table.
pub(super) struct InsertBatch {
    pub(super) table: Table,
    pub(super) rows: Vec<Vec<CopiedValue>>,
    pub(super) done: u64,
}

impl Operation for InsertBatch {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let Table { name, columns, .. } = &self.table;
        let (mut arrays, mut values, mut names, mut marks) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for (position, TableColumn { name, kind }) in columns.iter().enumerate() {
            let (array, value) = kind.array(&format!("n.c{position}"));
            values.push(value);
            names.push(name.as_str());
            marks.push(format!("${}::{array}[]", position + 1));
            arrays.push(self.column(position, *kind));
        }
        let elements: Vec<String> = (0..columns.len()).map(|position| format!("c{position}")).collect();
        let text = format!(
            "insert into {name} ({}) overriding system value select {} from unnest({}) as n ({})",
            names.join(", "),
            values.join(", "),
            marks.join(", "),
            elements.join(", ")
        );
        tx.query_each_built(&text, &arrays).await?;
        let progress = format!("update {PROGRESS} set copied = $1 where name = $2");
        tx.query_built(&progress, &[Param::Int(self.done as i64), Param::Text(name)]).await?;
        Ok(())
    }
}

impl InsertBatch {
    fn column(&self, position: usize, kind: ColumnKind) -> Column<'_> {
        let values = self.rows.iter().map(|row| &row[position]);
        match kind {
            ColumnKind::Int | ColumnKind::SmallInt | ColumnKind::Bool => Column::Int(
                values
                    .map(|value| match value {
                        CopiedValue::Int(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Real => Column::Real(
                values
                    .map(|value| match value {
                        CopiedValue::Real(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Text | ColumnKind::Blob => Column::Text(values.map(CopiedValue::text).collect()),
            ColumnKind::Json => Column::Json(values.map(CopiedValue::text).collect()),
            ColumnKind::Uuid => Column::Uuid(
                values
                    .map(|value| match value {
                        CopiedValue::Uuid(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
            ColumnKind::Time => Column::Time(
                values
                    .map(|value| match value {
                        CopiedValue::Time(value) => Some(*value),
                        _ => None,
                    })
                    .collect(),
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_of_large_rows_is_followed_by_a_smaller_one() {
        let batch = |bytes: usize, rows: usize| CopiedBatch {
            rows: vec![vec![CopiedValue::Text("x".repeat(bytes))]; rows],
            asked: rows,
        };
        assert_eq!(batch(10, 500).next_rows(), 1_000);
        assert_eq!(batch(1 << 20, 100).next_rows(), 16);
        assert_eq!(batch(64 << 20, 1).next_rows(), 1);
    }
}
