//! Enqueues jobs in a PostgreSQL transaction of the caller, with the SQL function `windlass.enqueue`.

use wire::JobRequest;

/// The statement that enqueues a job. Its one parameter is a text, and it returns one row with the job's id as `uuid`.
///
/// Any driver executes it in the caller's transaction. With `sqlx`:
///
/// ```ignore
/// let EnqueueStatement { sql, parameter } = EnqueueStatement::of(&Welcome { user: 7 }.request()?)?;
/// let job: Uuid = sqlx::query_scalar(sql).bind(parameter).fetch_one(&mut *transaction).await?;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnqueueStatement {
    /// The text of the statement.
    pub sql: &'static str,
    /// The parameter: the request as JSON.
    pub parameter: String,
}

const ENQUEUE: &str = "select windlass.enqueue(queue => j->>'queue', kind => j->>'kind',
    payload => coalesce(j->'payload', 'null'), affinity => j->>'affinity',
    priority => coalesce((j->>'priority')::integer, 0), run_at => (j->>'run_at')::timestamptz, subject => j->>'subject',
    process => j->>'process', run => j->>'run', unique_key => j->>'unique_key',
    unique_for_s => (j->>'unique_for_s')::bigint, concurrency_key => j->>'concurrency_key',
    max_attempts => coalesce((j->>'max_attempts')::integer, 3), timeout_s => (j->>'timeout_s')::bigint,
    tags => (select array_agg(t) from json_array_elements_text(j->'tags') as tags(t)))
    from (select $1::text::json as j) request";

/// Why a job was not enqueued. After an error of the database, the transaction can only be rolled back.
#[non_exhaustive]
#[derive(Debug, thiserror::Error)]
pub enum TransactionalError {
    /// The request has a field that `windlass.enqueue` does not have. The transaction is unchanged.
    #[error("the field `{0}` cannot be set in a transaction; set it on the queue, or enqueue the job over HTTP")]
    UnsupportedField(&'static str),
    /// The request cannot be serialized. The transaction is unchanged.
    #[error("cannot serialize the job")]
    Encode(#[from] serde_json::Error),
    /// The request is invalid, for example because its payload is too large.
    #[error("invalid job: {0}")]
    Invalid(String),
    /// The database role has no tenant; `windlass tenant grant-db-role` grants one.
    #[error("the database role may not enqueue jobs: {0}")]
    NotPermitted(String),
    /// The database has no schema `windlass`, or an older one.
    #[error("the database has no function windlass.enqueue: {0}")]
    NotMigrated(String),
    /// Any other error of the database.
    #[error("the database did not enqueue the job")]
    Database(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl EnqueueStatement {
    /// The statement for a request.
    pub fn of(request: &JobRequest) -> Result<Self, TransactionalError> {
        let unsupported = [
            ("unique_by", request.unique_by.is_some()),
            ("debounce", request.debounce.is_some()),
            ("batch", request.batch.is_some()),
            ("retry", request.retry.is_some()),
            ("deadline_s", request.deadline_s.is_some()),
            ("traceparent", request.traceparent.is_some()),
            ("webhook", request.webhook.is_some()),
        ];
        match unsupported.into_iter().find(|(_, is_set)| *is_set) {
            Some((field, _)) => Err(TransactionalError::UnsupportedField(field)),
            None => Ok(Self { sql: ENQUEUE, parameter: serde_json::to_string(request)? }),
        }
    }
}

impl TransactionalError {
    /// The error for what the database returned: its SQLSTATE, its message, and the error of the driver.
    pub fn of_sqlstate(
        sqlstate: &str,
        message: &str,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        match sqlstate {
            // Invalid parameter, number out of range, text that is no time.
            "22023" | "22003" | "22007" | "22008" => Self::Invalid(message.to_owned()),
            "42501" => Self::NotPermitted(message.to_owned()),
            // Unknown schema or function.
            "3F000" | "42883" => Self::NotMigrated(message.to_owned()),
            _ => Self::Database(source.into()),
        }
    }
}

/// Enqueues a job in a transaction. The job exists if and only if the transaction commits.
#[cfg(feature = "tokio-postgres")]
pub async fn enqueue_in(
    transaction: &mut tokio_postgres::Transaction<'_>,
    request: &JobRequest,
) -> Result<uuid::Uuid, TransactionalError> {
    let EnqueueStatement { sql, parameter } = EnqueueStatement::of(request)?;
    let row = transaction.query_one(sql, &[&parameter]).await.map_err(|error| match error.as_db_error() {
        Some(refused) => {
            let (sqlstate, message) = (refused.code().code().to_owned(), refused.message().to_owned());
            TransactionalError::of_sqlstate(&sqlstate, &message, error)
        }
        None => TransactionalError::Database(error.into()),
    })?;
    row.try_get(0).map_err(|error| TransactionalError::Database(error.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_the_function_lacks_is_refused() {
        let request = JobRequest { queue: "q".into(), kind: "k".into(), ..JobRequest::default() };
        let statement = EnqueueStatement::of(&request).unwrap();
        assert_eq!(statement.parameter, r#"{"queue":"q","kind":"k"}"#);
        let refused = EnqueueStatement::of(&JobRequest { deadline_s: Some(1), ..request });
        assert!(matches!(refused, Err(TransactionalError::UnsupportedField("deadline_s"))));
    }
}
