//! The serving side of a log transfer: the node whose engine has the container claims the reading, appends parts, and
//! reports the end.

use bytes::Bytes;
use domain::TenantId;
use domain::limits::LOG_BUFFERED_CHUNKS;

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::logs::{LogFault, LogReading, reader_timeout};
use crate::store::Store;

/// A reading that its node has claimed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedReading {
    pub reading: LogReading,
    pub container_id: String,
    pub tail: i64,
    pub follow: bool,
}

/// The result of appending a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Done,
    /// The buffer of unread parts is full. Retry later with the same part.
    Full,
    /// The reader has closed the reading.
    Closed,
}

impl Store {
    /// Claims up to `max` readings that were requested from this node, oldest first. Each reading is returned once.
    pub async fn claim_log_readings(&self, node: &str, max: usize) -> Result<Vec<ClaimedReading>, StoreError> {
        // Usually there is none. The read avoids a write transaction.
        if !self.read(HasLogReadings { node: node.to_owned() }).await? {
            return Ok(Vec::new());
        }
        self.write(ClaimLogReadings { node: node.to_owned(), max }).await
    }

    /// Renews the server's presence. Returns false if the reader has disappeared.
    pub async fn renew_log_server(&self, reading: LogReading) -> Result<bool, StoreError> {
        self.write(RenewServer { reading }).await
    }

    /// Appends a part. The numbers define the order in which parts are read.
    pub async fn append_log(&self, reading: LogReading, number: i64, part: Bytes) -> Result<Appended, StoreError> {
        self.write(AppendLog { reading, number, part }).await
    }

    /// Marks the end of the log. Parts that are still buffered can be read.
    pub async fn end_log(&self, reading: LogReading, fault: Option<LogFault>) -> Result<(), StoreError> {
        self.write(EndLog { reading, fault }).await
    }
}

struct HasLogReadings {
    node: String,
}

const HAS_READINGS: Sql = Sql::both(&["select id from log_readings where node = $1 and served_at is null limit 1"]);

impl Operation for HasLogReadings {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.query_opt(&HAS_READINGS, &[Param::Text(&self.node)]).await?.is_some())
    }
}

struct ClaimLogReadings {
    node: String,
    max: usize,
}

const CLAIM: Sql = Sql::both(&["update log_readings set served_at = $2 where served_at is null and id in (
         select id from log_readings where node = $1 and served_at is null and read_at > $3 order by id limit $4)
     returning id, tenant, container_id, tail, follow"]);

impl Operation for ClaimLogReadings {
    type Output = Vec<ClaimedReading>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<ClaimedReading>, StoreError> {
        let params = [Param::Text(&self.node), Param::Time(tx.now()), reader_timeout(tx), Param::Int(self.max as i64)];
        tx.query(&CLAIM, &params).await?.iter().map(claimed).collect()
    }
}

fn claimed(row: &Row) -> Result<ClaimedReading, StoreError> {
    Ok(ClaimedReading {
        reading: LogReading { id: row.uuid("id")?, tenant: TenantId(row.int("tenant")?) },
        container_id: row.text("container_id")?,
        tail: row.int("tail")?,
        follow: row.bool("follow")?,
    })
}

struct RenewServer {
    reading: LogReading,
}

const RENEW_SERVER: Sql =
    Sql::both(&["update log_readings set served_at = $3 where id = $1 and tenant = $2 and read_at > $4"]);

impl Operation for RenewServer {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let [id, tenant] = self.reading.params();
        let params = [id, tenant, Param::Time(tx.now()), reader_timeout(tx)];
        Ok(tx.execute(&RENEW_SERVER, &params).await? > 0)
    }
}

struct AppendLog {
    reading: LogReading,
    number: i64,
    part: Bytes,
}

// Locks the reading until the part is inserted, so that no part outlives its reading.
const LOCK: Sql = Sql::new(
    &["select id from log_readings where id = $1 and tenant = $2"],
    "select id from log_readings where id = $1 and tenant = $2 for key share",
);
const UNREAD: Sql = Sql::both(&["select count(*) as parts from log_parts where reading = $1 and tenant = $2"]);
const APPEND: Sql = Sql::both(&["insert into log_parts (reading, tenant, number, bytes) values ($1, $2, $3, $4)"]);

impl Operation for AppendLog {
    type Output = Appended;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Appended, StoreError> {
        let [id, tenant] = self.reading.params();
        if tx.query_opt(&LOCK, &[id, tenant]).await?.is_none() {
            return Ok(Appended::Closed);
        }
        let unread = tx.query_opt(&UNREAD, &[id, tenant]).await?.map(|row| row.int("parts")).transpose()?;
        if unread.is_some_and(|parts| parts >= LOG_BUFFERED_CHUNKS) {
            return Ok(Appended::Full);
        }
        tx.execute(&APPEND, &[id, tenant, Param::Int(self.number), Param::Blob(&self.part)]).await?;
        Ok(Appended::Done)
    }
}

struct EndLog {
    reading: LogReading,
    fault: Option<LogFault>,
}

const END: Sql = Sql::both(&["update log_readings set ended_at = $3, fault_code = $4, fault = $5
     where id = $1 and tenant = $2"]);

impl Operation for EndLog {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let [id, tenant] = self.reading.params();
        let code = self.fault.as_ref().map(|fault| fault.code.as_str());
        let message = self.fault.as_ref().map(|fault| fault.message.as_str());
        let params = [id, tenant, Param::Time(tx.now()), Param::text(code), Param::text(message)];
        tx.execute(&END, &params).await.map(|_| ())
    }
}
