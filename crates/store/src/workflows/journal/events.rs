//! Sends a signal event to one job. The event resolves the first open operation that waits for it, in the same
//! transaction, or is kept for a later one.

use domain::limits::{JOB_EVENTS, MAX_COUNTED_ROWS};
use domain::{JobId, JobState, Label, TenantId};

use super::AwaitedEvent;
use super::resolve::{Resolution, resolve};
use crate::db::canonical_json::canonical_json;
use crate::db::codec::from_json;
use crate::db::effects::Effects;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::get;
use crate::queue::lanes::LaneCache;
use crate::queue::transition;
use crate::store::Store;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    Accepted,
    /// An earlier request with the same idempotency key sent it.
    Duplicate,
    /// The idempotency key was used with another event.
    KeyReused,
    AlreadyEnded(JobState),
    /// The job has too many events that no operation has got.
    TooManyEvents,
    NotFound,
}

/// A signal event.
#[derive(Clone, Debug)]
pub struct NewJobEvent {
    pub job: JobId,
    pub name: Label,
    /// JSON.
    pub data: Box<str>,
    pub idempotency_key: Option<String>,
    pub principal: String,
}

impl Store {
    /// Sends a signal event to a job. Returns after the commit.
    pub async fn send_event(&self, tenant: TenantId, event: NewJobEvent) -> Result<Sent, StoreError> {
        let (sent, effects) = self.write(SendEvent { tenant, event, lanes: self.lanes().clone() }).await?;
        self.announce(&effects);
        Ok(sent)
    }
}

struct SendEvent {
    tenant: TenantId,
    event: NewJobEvent,
    lanes: LaneCache,
}

const BY_KEY: Sql = Sql::both(&["select name, data from job_events where job = $1 and idempotency_key = $2"]);
const LAST: Sql = Sql::both(&["select coalesce(max(number), 0) as last,
     coalesce(sum(case when consumed_by is null then 1 else 0 end), 0) as kept from job_events where job = $1"]);
const OPEN: Sql = Sql::both(&["select position, key, input from journal_entries
     where job = $1 and op = 'event' and seq is null order by position limit $2"]);
const INSERT: Sql = Sql::both(&["insert into job_events (job, number, tenant, name, idempotency_key, principal, at,
         consumed_by, data)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $9)"]);

impl Operation for SendEvent {
    const READS_TRIGGER_VERSION: bool = true;
    type Output = (Sent, Effects);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(Sent, Effects), StoreError> {
        let NewJobEvent { job, name, data, idempotency_key, principal } = &self.event;
        let (mut counters, mut effects) = (CounterDeltas::default(), Effects::default());
        let live = transition::load(tx, &[*job]).await?.remove(job).filter(|live| live.tenant == self.tenant);
        if live.is_none() {
            let sent = get::find(tx, self.tenant, *job).await?;
            return Ok((sent.map_or(Sent::NotFound, |ended| Sent::AlreadyEnded(ended.state)), effects));
        }
        if let Some(key) = idempotency_key
            && let Some(row) = tx.query_opt(&BY_KEY, &[Param::from(*job), Param::Text(key)]).await?
        {
            let is_same =
                row.text("name")? == name.as_str() && canonical_json(&row.text("data")?) == canonical_json(data);
            return Ok((if is_same { Sent::Duplicate } else { Sent::KeyReused }, effects));
        }
        let row = tx.query_opt(&LAST, &[Param::from(*job)]).await?;
        let row = row.ok_or_else(|| StoreError::unexpected("an aggregate has no row"))?;
        let number = row.int("last")? + 1;
        let awaited = self.awaited(tx).await?;
        if awaited.is_none() && row.int("kept")? >= JOB_EVENTS as i64 {
            return Ok((Sent::TooManyEvents, effects));
        }
        let params = [
            Param::from(*job),
            Param::Int(number),
            Param::Int(self.tenant.0),
            Param::Text(name.as_str()),
            Param::text(idempotency_key.as_deref()),
            Param::Text(principal),
            Param::Time(tx.now()),
            Param::text(awaited.as_ref().map(|(_, key)| key.as_str())),
            Param::Json(data),
        ];
        tx.execute(&INSERT, &params).await?;
        if let Some((position, _)) = awaited {
            let resolution = Resolution { job: *job, position, outcome: Ok(data.to_string()) };
            resolve(tx, &self.lanes, &[resolution], &mut counters, &mut effects).await?;
            transition::close(tx, &self.lanes, counters, &mut effects).await?;
        }
        Ok((Sent::Accepted, effects))
    }
}

impl SendEvent {
    /// The first open operation that waits for the event: its position and key.
    async fn awaited(&self, tx: &mut Tx<'_>) -> Result<Option<(i64, String)>, StoreError> {
        for row in tx.query(&OPEN, &[Param::from(self.event.job), Param::Int(MAX_COUNTED_ROWS as i64)]).await? {
            let awaited: AwaitedEvent = from_json(&row.text("input")?)?;
            if awaited.is_matched_by(self.event.name.as_str(), &self.event.data) {
                return Ok(Some((row.int("position")?, row.text("key")?)));
            }
        }
        Ok(None)
    }
}
