//! The reading side of a log transfer: requests the log, takes its parts, renews its presence, and closes the reading.

use bytes::Bytes;
use domain::limits::LOG_IDLE_TIMEOUT_S;
use domain::runtimes::OperationCode;
use domain::{RuntimeName, TenantId, Time};

use crate::db::clock::new_uuid;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::logs::{LogFault, LogReading};
use crate::runtimes::{nodes, parsed};
use crate::store::Store;

/// A log to read.
#[derive(Clone, Debug)]
pub struct NewReading {
    pub tenant: TenantId,
    pub runtime: RuntimeName,
    pub container_id: String,
    /// The node that has the container.
    pub node: String,
    /// Number of last lines to start with.
    pub tail: i64,
    /// True to also read what is written later.
    pub follow: bool,
}

/// The new parts since the last read, in order, and the state of the transfer.
#[derive(Clone, Debug)]
pub struct LogRead {
    pub parts: Vec<Bytes>,
    pub status: LogStatus,
}

/// The state of a log transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LogStatus {
    /// The node has not started serving.
    Requested,
    /// More parts may follow.
    Open,
    /// No more parts follow. The fault is set if the engine refused.
    Ended(Option<LogFault>),
    /// The node has not renewed the transfer for `LOG_IDLE_TIMEOUT_S`, or the reading does not exist any more.
    Silent,
}

impl Store {
    /// Requests a log from its node. Returns `None` if the node is lost.
    pub async fn request_log(&self, new: NewReading) -> Result<Option<LogReading>, StoreError> {
        self.write(RequestLog { new }).await
    }

    /// Takes the parts that have arrived. Each part is returned once.
    pub async fn read_log(&self, reading: LogReading) -> Result<LogRead, StoreError> {
        self.write(ReadLog { reading }).await
    }

    /// Renews the reader's presence while it takes no parts.
    pub async fn renew_log_reader(&self, reading: LogReading) -> Result<(), StoreError> {
        self.write(RenewReader { reading }).await
    }

    /// Ends the transfer and deletes all of it.
    pub async fn close_log(&self, reading: LogReading) -> Result<(), StoreError> {
        self.write(CloseLog { reading }).await
    }
}

struct RequestLog {
    new: NewReading,
}

const REQUEST: Sql =
    Sql::both(&["insert into log_readings (id, tenant, runtime, container_id, node, tail, follow, read_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8)"]);

impl Operation for RequestLog {
    type Output = Option<LogReading>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.new.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<LogReading>, StoreError> {
        let NewReading { tenant, runtime, container_id, node, tail, follow } = &self.new;
        let now = tx.now();
        if !nodes::all(tx).await?.iter().any(|candidate| candidate.name == *node && !candidate.is_lost(now)) {
            return Ok(None);
        }
        let reading = LogReading { tenant: *tenant, id: new_uuid(now) };
        let params = [
            Param::Uuid(reading.id),
            Param::Int(tenant.0),
            Param::Text(runtime.as_str()),
            Param::Text(container_id),
            Param::Text(node),
            Param::Int(*tail),
            Param::Bool(*follow),
            Param::Time(now),
        ];
        tx.execute(&REQUEST, &params).await?;
        Ok(Some(reading))
    }
}

struct ReadLog {
    reading: LogReading,
}

const STATUS: Sql = Sql::both(&["select served_at, ended_at, fault_code, fault from log_readings
     where id = $1 and tenant = $2"]);
const PARTS: Sql = Sql::both(&["delete from log_parts where reading = $1 and tenant = $2 returning number, bytes"]);

impl Operation for ReadLog {
    type Output = LogRead;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<LogRead, StoreError> {
        let params = self.reading.params();
        // Read the status before the parts: if it is `Ended`, all parts are present by then.
        let status = match tx.query_opt(&STATUS, &params).await? {
            Some(row) => status(&row, tx.now())?,
            None => LogStatus::Silent,
        };
        let rows = tx.query(&PARTS, &params).await?;
        let part = |row: &Row| Ok((row.int("number")?, Bytes::from(row.opt_blob("bytes")?.unwrap_or_default())));
        let mut parts = rows.iter().map(part).collect::<Result<Vec<_>, StoreError>>()?;
        parts.sort_by_key(|(number, _)| *number);
        Ok(LogRead { parts: parts.into_iter().map(|(_, bytes)| bytes).collect(), status })
    }
}

fn status(row: &Row, now: Time) -> Result<LogStatus, StoreError> {
    let (served_at, ended_at) = (row.opt_time("served_at")?, row.opt_time("ended_at")?);
    if ended_at.is_none() {
        return Ok(match served_at {
            None => LogStatus::Requested,
            Some(at) if now.ms_since(at) > LOG_IDLE_TIMEOUT_S * 1_000 => LogStatus::Silent,
            Some(_) => LogStatus::Open,
        });
    }
    let code = row.opt_text("fault_code")?.map(|code| parsed("code", code, OperationCode::parse)).transpose()?;
    let message = row.opt_text("fault")?.unwrap_or_default();
    Ok(LogStatus::Ended(code.map(|code| LogFault { code, message })))
}

struct RenewReader {
    reading: LogReading,
}

const RENEW_READER: Sql = Sql::both(&["update log_readings set read_at = $3 where id = $1 and tenant = $2"]);

impl Operation for RenewReader {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let [id, tenant] = self.reading.params();
        tx.execute(&RENEW_READER, &[id, tenant, Param::Time(tx.now())]).await.map(|_| ())
    }
}

struct CloseLog {
    reading: LogReading,
}

const CLOSE: Sql = Sql::both(&["delete from log_readings where id = $1 and tenant = $2"]);
const CLOSE_PARTS: Sql = Sql::both(&["delete from log_parts where reading = $1 and tenant = $2"]);

impl Operation for CloseLog {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        // Delete the reading first. This waits for a concurrent append, which locks the reading, and prevents later
        // appends.
        tx.execute(&CLOSE, &self.reading.params()).await?;
        tx.execute(&CLOSE_PARTS, &self.reading.params()).await.map(|_| ())
    }
}
