//! Statements that travel to PostgreSQL with the commit, in one round trip.

use std::error::Error;
use std::fmt::Write;

use bytes::BytesMut;
use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::error::StoreError;
use crate::wall::SETTING;

/// Commits, with all that was left for later in the same round trip. The server runs them in order; after one that
/// fails it takes the commit for a rollback, and the failure is told.
pub(super) async fn commit(client: &Object, prepared: bool, later: Vec<Later>) -> Result<(), tokio_postgres::Error> {
    ended(client, prepared, None, later).await
}

/// The same for a transaction that was not opened yet, because all of it was left for later. What is prepared is one
/// statement then, which is a transaction by itself; elsewhere the opening goes first.
pub(super) async fn commit_unopened(
    client: &Object,
    prepared: bool,
    unopened: Unopened<'_>,
    later: Vec<Later>,
) -> Result<(), tokio_postgres::Error> {
    if prepared && !later.is_empty() {
        return as_one(client, unopened.wall, &later).await;
    }
    ended(client, prepared, Some(unopened.opening), later).await
}

/// A transaction that is still to be opened.
pub(super) struct Unopened<'a> {
    pub(super) opening: &'a str,
    pub(super) wall: Option<&'a str>,
}

async fn ended(
    client: &Object,
    prepared: bool,
    opening: Option<&str>,
    later: Vec<Later>,
) -> Result<(), tokio_postgres::Error> {
    let mut statements = Vec::with_capacity(later.len());
    for later in &later {
        let statement =
            if prepared { Some(client.prepare_typed_cached(later.text, &later.types()).await?) } else { None };
        statements.push(statement);
    }
    let values: Vec<Vec<&(dyn ToSql + Sync)>> = later.iter().map(|later| later.values().collect()).collect();
    let runs = later.iter().zip(&statements).zip(&values);
    let runs = runs.map(|((later, statement), values)| later.run(client, statement.as_ref(), values));
    let open = async {
        match opening {
            Some(opening) => client.batch_execute(opening).await,
            None => Ok(()),
        }
    };
    let (opened, ran, committed) = tokio::join!(open, join_all(runs), client.batch_execute("commit"));
    opened?;
    ran.into_iter().collect::<Result<Vec<u64>, _>>()?;
    committed
}

async fn as_one(client: &Object, wall: Option<&str>, later: &[Later]) -> Result<(), tokio_postgres::Error> {
    let types: Vec<Type> = later.iter().flat_map(Later::types).chain([Type::TEXT]).collect();
    let statement = client.prepare_typed_cached(&one_statement(later), &types).await?;
    let wall = wall.unwrap_or_default();
    let values: Vec<&(dyn ToSql + Sync)> =
        later.iter().flat_map(Later::values).chain([&wall as &(dyn ToSql + Sync)]).collect();
    client.execute(&statement, &values).await.map(|_| ())
}

/// All of them as one statement, their parameters one after the other. PostgreSQL runs the statement itself first, which
/// puts up the wall, and then what stands in its `with` and nobody reads from.
fn one_statement(later: &[Later]) -> String {
    let mut text = String::from("with ");
    let mut before = 0;
    for (number, later) in later.iter().enumerate() {
        let comma = if number > 0 { ", " } else { "" };
        let _ = write!(text, "{comma}later_{number} as (");
        let mut parts = later.text.split('$');
        text.push_str(parts.next().unwrap_or_default());
        for part in parts {
            let digits = part.len() - part.trim_start_matches(|letter: char| letter.is_ascii_digit()).len();
            let _ = match part[..digits].parse::<usize>() {
                Ok(parameter) => write!(text, "${}{}", before + parameter, &part[digits..]),
                Err(_) => write!(text, "${part}"),
            };
        }
        text.push(')');
        before += later.params.len();
    }
    let _ = write!(text, " select set_config('{SETTING}', ${}, true)", before + 1);
    text
}

/// A statement with its parameters, encoded when it was given: what they borrowed may be gone by the commit.
pub(super) struct Later {
    text: &'static str,
    params: Vec<(Encoded, Type)>,
}

#[derive(Debug)]
struct Encoded(Option<BytesMut>);

impl ToSql for Encoded {
    fn to_sql(&self, _: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn Error + Sync + Send>> {
        let Some(bytes) = &self.0 else { return Ok(IsNull::Yes) };
        out.extend_from_slice(bytes);
        Ok(IsNull::No)
    }

    fn accepts(_: &Type) -> bool {
        true
    }

    to_sql_checked!();
}

impl Later {
    pub(super) fn of(text: &'static str, values: Vec<(&(dyn ToSql + Sync), Type)>) -> Result<Self, StoreError> {
        let mut params = Vec::with_capacity(values.len());
        for (value, ty) in values {
            let mut bytes = BytesMut::new();
            let is_null = value.to_sql_checked(&ty, &mut bytes);
            let is_null = is_null.map_err(|error| StoreError::unexpected(error.to_string()))?;
            params.push((Encoded(matches!(is_null, IsNull::No).then_some(bytes)), ty));
        }
        Ok(Self { text, params })
    }

    fn values(&self) -> impl Iterator<Item = &(dyn ToSql + Sync)> {
        self.params.iter().map(|(value, _)| value as &(dyn ToSql + Sync))
    }

    fn types(&self) -> Vec<Type> {
        self.params.iter().map(|(_, ty)| ty.clone()).collect()
    }

    /// Without a statement nothing may be prepared: then the text goes.
    async fn run(
        &self,
        client: &Object,
        statement: Option<&Statement>,
        values: &[&(dyn ToSql + Sync)],
    ) -> Result<u64, tokio_postgres::Error> {
        match statement {
            Some(statement) => client.execute(statement, values).await,
            None => {
                let typed: Vec<(&(dyn ToSql + Sync), Type)> = self.values().zip(self.types()).collect();
                client.execute_typed(self.text, &typed).await
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statements_become_one_with_their_parameters_in_a_row() {
        let number: &(dyn ToSql + Sync) = &1i64;
        let of = |text, count| Later::of(text, vec![(number, Type::INT8); count]).expect("numbers have a form");
        let later = [of("insert into a select $1, $2 || '$'", 2), of("insert into b values ($10, $1)", 10)];
        assert_eq!(
            one_statement(&later),
            "with later_0 as (insert into a select $1, $2 || '$'), later_1 as (insert into b values ($12, $3)) \
             select set_config('windlass.tenant', $13, true)",
        );
    }
}
