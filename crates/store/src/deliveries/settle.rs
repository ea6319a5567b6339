//! Writes down how an attempt went, and what follows: done, again later, or out of attempts (Q10).

use domain::circuit::Circuit;
use domain::limits::RETRY_AFTER_S_MAX;
use domain::{DeliveryId, Time};
use uuid::Uuid;

use crate::clock::dice;
use crate::codec::retry_from_json;
use crate::deliveries::letters;
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Column, Operation, Param, Row, Sql, Tx};

/// One attempt, as it went.
#[derive(Clone, Debug)]
pub struct Attempted {
    pub delivery: DeliveryId,
    pub attempt: i32,
    pub at: Time,
    pub duration_ms: i64,
    pub status: Option<u16>,
    /// The beginning of what the receiver said.
    pub response: Option<String>,
    pub verdict: Verdict,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Delivered,
    Failed { error: String, blame: Blame, next: Next },
}

/// Whether the receiver itself is in trouble, which its circuit counts, or only this request was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blame {
    Receiver,
    Request,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// By the delivery's policy, and not before the receiver's own word.
    Again { not_before_s: Option<i64> },
    /// Another attempt would end the same.
    Never,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettledDelivery {
    Delivered,
    /// It will be tried again.
    Waiting,
    Failed,
    /// The lease had passed and somebody else has it now.
    Lost,
}

impl Store {
    pub async fn settle_delivery(&self, attempted: Attempted) -> Result<SettledDelivery, StoreError> {
        let kept_up = attempted.verdict.kept_up();
        let (settled, endpoint) = self.write(Settle { attempted }).await?;
        match (endpoint, kept_up) {
            (Some(endpoint), Some(true)) => self.paces().kept_up(endpoint),
            (Some(endpoint), Some(false)) => self.paces().in_trouble(endpoint),
            _ => {}
        }
        Ok(settled)
    }
}

impl Verdict {
    /// Whether the receiver keeps up with what it is sent, where this attempt tells.
    fn kept_up(&self) -> Option<bool> {
        match self {
            Self::Delivered => Some(true),
            Self::Failed { blame: Blame::Receiver, .. } => Some(false),
            Self::Failed { blame: Blame::Request, .. } => None,
        }
    }
}

struct Settle {
    attempted: Attempted,
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

impl Operation for Settle {
    /// With the endpoint, of an attempt that counted.
    type Output = (SettledDelivery, Option<i64>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let Attempted { delivery, attempt, .. } = &self.attempted;
        let params = [Param::Uuid(delivery.uuid()), Param::Int(i64::from(*attempt))];
        match tx.query_opt(&LOAD, &params).await? {
            Some(row) => Ok((self.settle(tx, &row).await?, Some(row.int(0)?))),
            None => Ok((SettledDelivery::Lost, None)),
        }
    }
}

impl Settle {
    async fn settle(&self, tx: &mut Tx<'_>, row: &Row) -> Result<SettledDelivery, StoreError> {
        let Attempted { delivery, attempt, at, duration_ms, status, response, verdict } = &self.attempted;
        let (now, id) = (tx.now(), Param::Uuid(delivery.uuid()));
        let status = Param::int(status.map(i64::from));
        let error = match verdict {
            Verdict::Delivered => None,
            Verdict::Failed { error, .. } => Some(error.as_str()),
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
        let endpoint = row.int(0)?;
        let Verdict::Failed { error, blame, next } = verdict else {
            tx.execute(&HEALED, &[Param::Int(endpoint)]).await?;
            tx.execute(&DONE, &[id, Param::Time(now), status]).await?;
            letters::delivered(tx, delivery.uuid()).await?;
            return Ok(SettledDelivery::Delivered);
        };
        match blame {
            Blame::Receiver => blame_receiver(tx, endpoint, error).await?,
            // It answered, so the way is open, whatever it thinks of this request.
            Blame::Request if self.attempted.status.is_some() => {
                tx.execute(&HEALED, &[Param::Int(endpoint)]).await?;
            }
            Blame::Request => {}
        }
        let Next::Again { not_before_s } = next else {
            tx.execute(&NOTE, &[id, status, Param::Text(error)]).await?;
            close_failed(tx, &[Close { id: delivery.uuid(), error: error.clone() }]).await?;
            return Ok(SettledDelivery::Failed);
        };
        if row.int(1)? <= 0 {
            tx.execute(&NOTE, &[id, status, Param::Text(error)]).await?;
            close_failed(tx, &[Close { id: delivery.uuid(), error: error.clone() }]).await?;
            return Ok(SettledDelivery::Failed);
        }
        let policy = retry_from_json(&row.text(3)?)?;
        let wait_s = policy.next_wait_s(row.opt_int(2)?.map(|wait| wait as u64));
        let asked_s = not_before_s.unwrap_or(0).clamp(0, RETRY_AFTER_S_MAX);
        let wait_ms = (wait_s as i64).max(asked_s).saturating_mul(1_000) + policy.jitter_ms(wait_s, dice());
        let params = [id, Param::Time(now.plus_ms(wait_ms)), Param::Int(wait_s as i64), status, Param::Text(error)];
        tx.execute(&AGAIN, &params).await?;
        Ok(SettledDelivery::Waiting)
    }
}

async fn blame_receiver(tx: &mut Tx<'_>, endpoint: i64, error: &str) -> Result<(), StoreError> {
    let Some(row) = tx.query_opt(&CIRCUIT, &[Param::Int(endpoint)]).await? else { return Ok(()) };
    let circuit = Circuit { failures: row.int(0)? as u32, open_until: row.opt_time(1)? };
    // It was under way when the others opened the circuit, and says nothing new.
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

/// A delivery that ends without having been delivered.
pub(crate) struct Close {
    pub(crate) id: Uuid,
    pub(crate) error: String,
}

/// The only way a delivery fails for good. What is left is a dead letter, or the end of a handler.
pub(crate) async fn close_failed(tx: &mut Tx<'_>, closing: &[Close]) -> Result<(), StoreError> {
    let columns = [
        Column::uuids(closing.iter().map(|close| close.id)),
        Column::texts(closing.iter().map(|close| close.error.as_str())),
    ];
    let now = Param::Time(tx.now());
    tx.execute_each(&CLOSE, &columns, &[now]).await?;
    letters::leave(tx, &closing.iter().map(|close| close.id).collect::<Vec<_>>()).await
}
