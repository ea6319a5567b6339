//! Settles an attempt of a delivery: delivered, retried later, or failed for good. Updates the circuit of its endpoint.

use domain::limits::RETRY_AFTER_MAX_S;
use domain::triggers::circuit::Circuit;
use domain::{DeliveryId, Time};
use uuid::Uuid;

use crate::db::clock::random_unit;
use crate::db::codec::retry_from_json;
use crate::db::tx::{Column, Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::deliveries::letters;

/// The result of one attempt.
#[derive(Clone, Debug)]
pub struct CompletedAttempt {
    pub delivery: DeliveryId,
    pub attempt: i32,
    pub at: Time,
    pub duration_ms: i64,
    pub status: Option<u16>,
    /// The beginning of the response body.
    pub response: Option<String>,
    pub outcome: DeliveryOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeliveryOutcome {
    Delivered,
    Failed { error: String, blame: Blame, next: RetryAdvice },
}

/// Whether a failure counts against the receiver's circuit (`Receiver`) or concerns only this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    Receiver,
    Request,
}

/// Whether a failed attempt can be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Retry according to the delivery's policy, but not before the receiver's `Retry-After`.
    Allowed { not_before_s: Option<i64> },
    /// Another attempt would fail in the same way.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledDelivery {
    Delivered,
    /// A retry is scheduled.
    Waiting,
    Failed,
    /// The lease expired and another node may have claimed the delivery. The result was ignored.
    Lost,
}

impl Store {
    /// Records the result of an attempt.
    pub async fn settle_delivery(&self, attempted: CompletedAttempt) -> Result<SettledDelivery, StoreError> {
        let succeeded = attempted.outcome.succeeded();
        let (settled, endpoint) = self.write(SettleDelivery { attempted }).await?;
        match (endpoint, succeeded) {
            (Some(endpoint), Some(true)) => self.endpoint_limiter().succeeded(endpoint),
            (Some(endpoint), Some(false)) => self.endpoint_limiter().failed(endpoint),
            _ => {}
        }
        Ok(settled)
    }
}

impl DeliveryOutcome {
    /// Returns whether the receiver keeps up with its requests. `None` if this attempt does not show it.
    fn succeeded(&self) -> Option<bool> {
        match self {
            Self::Delivered => Some(true),
            Self::Failed { blame: Blame::Receiver, .. } => Some(false),
            Self::Failed { blame: Blame::Request, .. } => None,
        }
    }
}

struct SettleDelivery {
    attempted: CompletedAttempt,
}

const LOAD: Sql = Sql::new(
    &["select endpoint, tries_left, wait_s, retry, failures from deliveries
       where id = $1 and attempt = $2 and leased_at is not null"],
    "select endpoint, tries_left, wait_s, retry, failures from deliveries
     where id = $1 and attempt = $2 and leased_at is not null for update",
);
const ATTEMPT: Sql = Sql::both(&["insert into delivery_attempts
         (delivery, attempt, at, duration_ms, status, error, response)
     values ($1, $2, $3, $4, $5, $6, $7) on conflict do nothing"]);
const DONE: Sql =
    Sql::both(&["update deliveries set state = 'delivered', due_at = null, leased_at = null, ended_at = $2,
         status = $3, error = null
     where id = $1"]);
const AGAIN: Sql =
    Sql::both(&["update deliveries set due_at = $2, leased_at = null, failures = failures + 1, wait_s = $3,
         status = $4, error = $5
     where id = $1"]);
const NOTE: Sql = Sql::both(&["update deliveries set failures = failures + 1, status = $2, error = $3 where id = $1"]);
const CLOSE: Sql = Sql::new(
    &["update deliveries set state = 'failed', due_at = null, leased_at = null, ended_at = $3, error = $2 where id = $1"],
    "update deliveries d set state = 'failed', due_at = null, leased_at = null, ended_at = $3::timestamptz, error = n.error
     from unnest($1::uuid[], $2::text[]) as n(id, error) where d.id = n.id",
);
const CIRCUIT: Sql = Sql::new(
    &["select failures, open_until from endpoints where id = $1"],
    "select failures, open_until from endpoints where id = $1 for update",
);
const NOTED: Sql = Sql::both(&["update endpoints set last_error = $2 where id = $1"]);
const HEALED: Sql = Sql::both(&["update endpoints set failures = 0, open_until = null, last_error = null
     where id = $1 and failures > 0"]);
const BROKEN: Sql = Sql::both(&["update endpoints set failures = $2, open_until = $3, last_error = $4 where id = $1"]);

impl Operation for SettleDelivery {
    /// The endpoint is `None` if the result was ignored.
    type Output = (SettledDelivery, Option<i64>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let CompletedAttempt { delivery, attempt, .. } = &self.attempted;
        let params = [Param::Uuid(delivery.uuid()), Param::Int(i64::from(*attempt))];
        match tx.query_opt(&LOAD, &params).await? {
            Some(row) => Ok((self.settle(tx, &row).await?, Some(row.int("endpoint")?))),
            None => Ok((SettledDelivery::Lost, None)),
        }
    }
}

impl SettleDelivery {
    async fn settle(&self, tx: &mut Tx<'_>, row: &Row) -> Result<SettledDelivery, StoreError> {
        let CompletedAttempt { delivery, attempt, at, duration_ms, status, response, outcome } = &self.attempted;
        let (now, id) = (tx.now(), Param::Uuid(delivery.uuid()));
        let status = Param::int(status.map(i64::from));
        let error = match outcome {
            DeliveryOutcome::Delivered => None,
            DeliveryOutcome::Failed { error, .. } => Some(error.as_str()),
        };
        let params = [
            id,
            Param::Int(i64::from(*attempt)),
            Param::Time(*at),
            Param::Int(*duration_ms),
            status,
            Param::text(error),
            Param::text(response.as_deref()),
        ];
        tx.execute(&ATTEMPT, &params).await?;
        let endpoint = row.int("endpoint")?;
        let DeliveryOutcome::Failed { error, blame, next } = outcome else {
            tx.execute(&HEALED, &[Param::Int(endpoint)]).await?;
            tx.execute(&DONE, &[id, Param::Time(now), status]).await?;
            letters::handler_delivered(tx, delivery.uuid()).await?;
            return Ok(SettledDelivery::Delivered);
        };
        match blame {
            Blame::Receiver => blame_receiver(tx, endpoint, error).await?,
            // The receiver responded, so it is reachable, even if it rejects this request.
            Blame::Request if self.attempted.status.is_some() => {
                tx.execute(&HEALED, &[Param::Int(endpoint)]).await?;
            }
            Blame::Request => {}
        }
        let RetryAdvice::Allowed { not_before_s } = next else {
            tx.execute(&NOTE, &[id, status, Param::Text(error)]).await?;
            close_failed(tx, &[FailedDelivery { id: delivery.uuid(), error: error.clone() }]).await?;
            return Ok(SettledDelivery::Failed);
        };
        if row.int("tries_left")? <= 0 {
            tx.execute(&NOTE, &[id, status, Param::Text(error)]).await?;
            close_failed(tx, &[FailedDelivery { id: delivery.uuid(), error: error.clone() }]).await?;
            return Ok(SettledDelivery::Failed);
        }
        let policy = retry_from_json(&row.text("retry")?)?;
        let wait_s = policy.next_wait_s(row.opt_int("wait_s")?.map(|wait| wait as u64));
        let retry_after_s = not_before_s.unwrap_or(0).clamp(0, RETRY_AFTER_MAX_S);
        let wait_ms =
            (wait_s as i64).max(retry_after_s).saturating_mul(1_000) + policy.jitter_ms(wait_s, random_unit());
        let params = [id, Param::Time(now.plus_ms(wait_ms)), Param::Int(wait_s as i64), status, Param::Text(error)];
        tx.execute(&AGAIN, &params).await?;
        Ok(SettledDelivery::Waiting)
    }
}

async fn blame_receiver(tx: &mut Tx<'_>, endpoint: i64, error: &str) -> Result<(), StoreError> {
    let Some(row) = tx.query_opt(&CIRCUIT, &[Param::Int(endpoint)]).await? else { return Ok(()) };
    let circuit = Circuit { failures: row.int("failures")? as u32, open_until: row.opt_time("open_until")? };
    // The attempt started before the circuit opened, so its failure adds no information.
    if circuit.is_open(tx.now()) {
        return tx.execute(&NOTED, &[Param::Int(endpoint), Param::Text(error)]).await.map(|_| ());
    }
    let circuit = circuit.failed(tx.now());
    let params = [
        Param::Int(endpoint),
        Param::Int(i64::from(circuit.failures)),
        Param::time(circuit.open_until),
        Param::Text(error),
    ];
    tx.execute(&BROKEN, &params).await.map(|_| ())
}

/// A delivery that fails for good.
pub(crate) struct FailedDelivery {
    pub(crate) id: Uuid,
    pub(crate) error: String,
}

/// Fails deliveries for good. This is the only path to the state `failed`: it also writes the dead letters and ends the
/// handlers.
pub(crate) async fn close_failed(tx: &mut Tx<'_>, closing: &[FailedDelivery]) -> Result<(), StoreError> {
    let columns = [
        Column::uuids(closing.iter().map(|close| close.id)),
        Column::texts(closing.iter().map(|close| close.error.as_str())),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&CLOSE, &columns, &[now]).await?;
    letters::insert_dead_letters(tx, &closing.iter().map(|close| close.id).collect::<Vec<_>>()).await
}
