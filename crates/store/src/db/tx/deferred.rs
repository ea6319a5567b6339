//! Deferred and prefetched statements on PostgreSQL: sent with the commit or with the begin, in one round trip.

use std::error::Error;

use bytes::BytesMut;

use futures_util::future::join_all;
use tokio_postgres::Statement;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};

use super::failure::Failure;
use super::session::PooledConnection;
use crate::error::StoreError;

/// A transaction that has not begun, because all of its statements were deferred.
pub(super) struct LazyTransaction<'a> {
    pub(super) opening: &'a str,
    pub(super) tenants: &'a str,
}

/// Commits, and sends all deferred statements in the same round trip. The server runs them in order. After one that fails
/// it answers the commit with a rollback, and this function returns the failure.
///
/// A single deferred statement of a transaction that has not begun is a transaction by itself.
pub(super) async fn commit(
    client: &PooledConnection,
    prepared: bool,
    lazy: Option<LazyTransaction<'_>>,
    deferred: Vec<DeferredStatement>,
) -> Result<(), Failure> {
    let opening = match (&lazy, deferred.as_slice()) {
        (Some(_), []) => return Ok(()),
        (Some(lazy), [only]) if prepared => return only.run_as_transaction(client, lazy.tenants).await,
        _ => lazy.map(|lazy| lazy.opening),
    };
    let mut statements = Vec::with_capacity(deferred.len());
    for deferred in &deferred {
        statements.push(if prepared { Some(deferred.prepare(client).await?) } else { None });
    }
    let values: Vec<Vec<&(dyn ToSql + Sync)>> = deferred.iter().map(|deferred| deferred.values().collect()).collect();
    let runs = deferred.iter().zip(&statements).zip(&values);
    let runs = runs.map(|((deferred, statement), values)| deferred.run(client, statement.as_ref(), values));
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

/// A failure here has no effect: nothing was sent yet.
async fn prepare(client: &PooledConnection, text: &str, types: &[Type]) -> Result<Statement, Failure> {
    client.prepare_typed_cached(text, types).await.map_err(|error| Failure::of(&error, "prepare"))
}

/// A statement with encoded parameters. They are encoded when given, because what they borrow may not live until the
/// commit.
pub(super) struct DeferredStatement {
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

impl DeferredStatement {
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

    /// Returns true if these are its parameters.
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

    pub(super) async fn prepare(&self, client: &PooledConnection) -> Result<Statement, Failure> {
        prepare(client, self.text, &self.types()).await
    }

    pub(super) async fn query(
        &self,
        client: &PooledConnection,
        statement: &Statement,
    ) -> Result<Vec<tokio_postgres::Row>, tokio_postgres::Error> {
        client.query(statement, &self.values().collect::<Vec<_>>()).await
    }

    async fn run_as_transaction(&self, client: &PooledConnection, tenants: &str) -> Result<(), Failure> {
        let statement = self.prepare(client).await?;
        let values: Vec<&(dyn ToSql + Sync)> = self.values().collect();
        let (set, ran) = tokio::join!(client.set_tenants(tenants), client.execute(&statement, &values));
        set.and(ran).map(|_| ()).map_err(|error| Failure::of_commit(&error))
    }

    /// Without a prepared statement (behind a pooler) the text is sent.
    async fn run(
        &self,
        client: &PooledConnection,
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
    fn a_deferred_statement_is_identified_by_its_text_and_parameters() {
        let of = |(number, text): (i64, Option<&'static str>)| {
            DeferredStatement::of("select $1, $2", vec![(&number, Type::INT8), (&text, Type::TEXT)])
                .expect("they have a form")
        };
        let has = |asked: &DeferredStatement, (number, text): (i64, Option<&'static str>)| {
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
}
