//! Statements that travel to PostgreSQL with the commit, in one round trip.

use std::error::Error;

use bytes::BytesMut;
use deadpool_postgres::Object;
use futures_util::future::join_all;
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use crate::error::StoreError;

/// Commits, with all that was left for later in the same round trip. The server runs them in order; after one that
/// fails it takes the commit for a rollback, and the failure is told. A wall that is not up yet goes first.
pub(super) async fn commit(
    client: &Object,
    wall: Option<&str>,
    later: Vec<Later>,
) -> Result<(), tokio_postgres::Error> {
    let values: Vec<Vec<&(dyn ToSql + Sync)>> = later.iter().map(Later::values).collect();
    let statements = later.iter().zip(&values).map(|(later, values)| later.run(client, values));
    let raise = async {
        match wall {
            Some(wall) => client.batch_execute(wall).await,
            None => Ok(()),
        }
    };
    let (raised, ran, committed) = tokio::join!(raise, join_all(statements), client.batch_execute("commit"));
    raised?;
    ran.into_iter().collect::<Result<Vec<u64>, _>>()?;
    committed
}

/// A statement with its parameters, encoded when it was given: what they borrowed may be gone by the commit.
pub(super) struct Later {
    /// The text, where nothing may be prepared.
    statement: Result<Statement, &'static str>,
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
    /// A prepared statement knows the types of its parameters; a text takes those that the values have.
    pub(super) fn of(
        statement: Result<Statement, &'static str>,
        values: Vec<(&(dyn ToSql + Sync), Type)>,
    ) -> Result<Self, StoreError> {
        let mut params = Vec::with_capacity(values.len());
        for (place, (value, of_value)) in values.into_iter().enumerate() {
            let of_statement = statement.as_ref().ok().and_then(|statement| statement.params().get(place).cloned());
            let ty = of_statement.unwrap_or(of_value);
            let mut bytes = BytesMut::new();
            let is_null = value.to_sql_checked(&ty, &mut bytes);
            let is_null = is_null.map_err(|error| StoreError::unexpected(error.to_string()))?;
            params.push((Encoded(matches!(is_null, IsNull::No).then_some(bytes)), ty));
        }
        Ok(Self { statement, params })
    }

    fn values(&self) -> Vec<&(dyn ToSql + Sync)> {
        self.params.iter().map(|(value, _)| value as &(dyn ToSql + Sync)).collect()
    }

    async fn run(&self, client: &Object, values: &[&(dyn ToSql + Sync)]) -> Result<u64, tokio_postgres::Error> {
        match &self.statement {
            Ok(statement) => client.execute(statement, values).await,
            Err(text) => {
                let typed: Vec<(&(dyn ToSql + Sync), Type)> =
                    self.params.iter().map(|(value, ty)| (value as &(dyn ToSql + Sync), ty.clone())).collect();
                client.execute_typed(text, &typed).await
            }
        }
    }
}
