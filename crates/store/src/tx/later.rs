//! Statements that travel to PostgreSQL with the commit, in one round trip, or with the opening.

use std::error::Error;
use std::fmt::Write;

use bytes::BytesMut;
use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::failure::Failure;
use crate::error::StoreError;
use crate::wall::SETTING;

/// A transaction that is still to be opened, because all of it was left for later.
pub(super) struct Unopened<'a> {
    pub(super) opening: &'a str,
    pub(super) wall: Option<&'a str>,
}

/// Commits, with all that was left for later in the same round trip. The server runs them in order; after one that
/// fails it takes the commit for a rollback, and the failure is told.
///
/// What was not opened is one statement, where statements are prepared: a transaction by itself.
pub(super) async fn commit(
    client: &Object,
    prepared: bool,
    unopened: Option<Unopened<'_>>,
    later: Vec<Later>,
) -> Result<(), Failure> {
    let opening = match unopened {
        Some(_) if later.is_empty() => return Ok(()),
        Some(Unopened { wall, .. }) if prepared => return as_one(client, wall, &later).await,
        Some(Unopened { opening, .. }) => Some(opening),
        None => None,
    };
    let mut statements = Vec::with_capacity(later.len());
    for later in &later {
        statements.push(if prepared { Some(later.prepare(client).await?) } else { None });
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
    let ran = ran.into_iter().collect::<Result<Vec<u64>, _>>();
    opened.and(ran).and(committed).map_err(|error| Failure::of_commit(&error))
}

async fn as_one(client: &Object, wall: Option<&str>, later: &[Later]) -> Result<(), Failure> {
    let types: Vec<Type> = later.iter().flat_map(Later::types).chain([Type::TEXT]).collect();
    let statement = prepare(client, &one_statement(later), &types).await?;
    let wall = wall.unwrap_or_default();
    let values: Vec<&(dyn ToSql + Sync)> =
        later.iter().flat_map(Later::values).chain([&wall as &(dyn ToSql + Sync)]).collect();
    client.execute(&statement, &values).await.map(|_| ()).map_err(|error| Failure::of_commit(&error))
}

/// Nothing has been done yet when this fails.
async fn prepare(client: &Object, text: &str, types: &[Type]) -> Result<Statement, Failure> {
    client.prepare_typed_cached(text, types).await.map_err(|error| Failure::of(&error, "prepare"))
}

/// All of them as one statement, their parameters one after the other. They see nothing of each other, and which comes first is
/// not said.
///
/// PostgreSQL runs the statement itself first, which puts up the wall, and then what stands in its `with` and nobody reads
/// from. That is how it does it and not what it promises: the tests of the wall hold a new version of it to that.
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

    pub(super) fn is_of(&self, text: &str) -> bool {
        self.text == text
    }

    /// Whether these are its parameters.
    pub(super) fn has(&self, values: &[(&(dyn ToSql + Sync), Type)]) -> bool {
        let mut bytes = BytesMut::new();
        let mut is = |kept: &Encoded, value: &(dyn ToSql + Sync), ty: &Type| {
            bytes.clear();
            match value.to_sql_checked(ty, &mut bytes) {
                Ok(IsNull::No) => kept.0.as_ref() == Some(&bytes),
                Ok(IsNull::Yes) => kept.0.is_none(),
                Err(_) => false,
            }
        };
        let mut pairs = self.params.iter().zip(values);
        self.params.len() == values.len() && pairs.all(|((kept, _), (value, ty))| is(kept, *value, ty))
    }

    pub(super) async fn prepare(&self, client: &Object) -> Result<Statement, Failure> {
        prepare(client, self.text, &self.types()).await
    }

    pub(super) async fn query(
        &self,
        client: &Object,
        statement: &Statement,
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        client.query(statement, &self.values().collect::<Vec<_>>()).await
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
    fn what_was_asked_ahead_is_known_by_its_parameters() {
        let of = |(number, text): (i64, Option<&'static str>)| {
            Later::of("select $1, $2", vec![(&number, Type::INT8), (&text, Type::TEXT)]).expect("they have a form")
        };
        let has = |asked: &Later, (number, text): (i64, Option<&'static str>)| {
            asked.has(&[(&number, Type::INT8), (&text, Type::TEXT)])
        };
        let asked = of((1, Some("a")));
        assert!(asked.is_of("select $1, $2") && !asked.is_of("select $2, $1"));
        assert!(has(&asked, (1, Some("a"))));
        for other in [(2, Some("a")), (1, Some("b")), (1, Some("")), (1, None)] {
            assert!(!has(&asked, other), "{other:?}");
        }
        assert!(has(&of((1, None)), (1, None)) && !has(&of((1, None)), (1, Some(""))));
        assert!(!asked.has(&[(&1i64, Type::INT8)]), "there is one missing");
    }

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
