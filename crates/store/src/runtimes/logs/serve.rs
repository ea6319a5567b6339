//! The node whose engine has the container: takes what it was asked for, adds part after part, and says how it ended.

use bytes::Bytes;
use domain::TenantId;
use domain::limits::LOG_PARTS_AHEAD;

use crate::error::StoreError;
use crate::runtimes::logs::{LogFault, LogReading, gone_before};
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// A reading in the hands of its node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakenReading {
    pub reading: LogReading,
    pub container_id: String,
    pub tail: i64,
    pub follow: bool,
}

/// What became of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    Done,
    /// As much as may wait is not read yet: come again with the same part.
    Full,
    /// Nobody reads any more.
    Gone,
}

impl Store {
    /// Up to `max` of those that this node is asked for, oldest first, each of them once.
    pub async fn take_log_readings(&self, node: &str, max: usize) -> Result<Vec<TakenReading>, StoreError> {
        // Most of the time there is none: then nothing is written.
        if !self.read(Any { node: node.to_owned() }).await? {
            return Ok(Vec::new());
        }
        self.write(Take { node: node.to_owned(), max }).await
    }

    /// Says that this node is still at it, and tells whether somebody still reads.
    pub async fn keep_serving_log(&self, reading: LogReading) -> Result<bool, StoreError> {
        self.write(Keep { reading }).await
    }

    /// Parts are numbered in the order in which they are to be read.
    pub async fn append_log(&self, reading: LogReading, number: i64, part: Bytes) -> Result<Appended, StoreError> {
        self.write(Append { reading, number, part }).await
    }

    /// Nothing more comes. What waits is still read.
    pub async fn end_log(&self, reading: LogReading, fault: Option<LogFault>) -> Result<(), StoreError> {
        self.write(End { reading, fault }).await
    }
}

struct Any {
    node: String,
}

const ANY: Sql = Sql::both(&["select id from log_readings where node = $1 and served_at is null limit 1"]);

impl Operation for Any {
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        Ok(tx.query_opt(&ANY, &[Param::Text(&self.node)]).await?.is_some())
    }
}

struct Take {
    node: String,
    max: usize,
}

const TAKE: Sql = Sql::both(&["update log_readings set served_at = $2 where served_at is null and id in (
         select id from log_readings where node = $1 and served_at is null and read_at > $3 order by id limit $4)
     returning id, tenant, container_id, tail, follow"]);

impl Operation for Take {
    type Output = Vec<TakenReading>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TakenReading>, StoreError> {
        let params = [Param::Text(&self.node), Param::Time(tx.now()), gone_before(tx), Param::Int(self.max as i64)];
        tx.query(&TAKE, &params).await?.iter().map(taken).collect()
    }
}

fn taken(row: &Row) -> Result<TakenReading, StoreError> {
    Ok(TakenReading {
        reading: LogReading { id: row.uuid(0)?, tenant: TenantId(row.int(1)?) },
        container_id: row.text(2)?,
        tail: row.int(3)?,
        follow: row.bool(4)?,
    })
}

struct Keep {
    reading: LogReading,
}

const KEEP: Sql = Sql::both(&["update log_readings set served_at = $3 where id = $1 and tenant = $2 and read_at > $4"]);

impl Operation for Keep {
    type Output = bool;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        let [id, tenant] = self.reading.params();
        let params = [id, tenant, Param::Time(tx.now()), gone_before(tx)];
        Ok(tx.execute(&KEEP, &params).await? > 0)
    }
}

struct Append {
    reading: LogReading,
    number: i64,
    part: Bytes,
}

// Held until the part is there, so that it does not outlive its reading.
const HOLD: Sql = Sql::new(
    &["select id from log_readings where id = $1 and tenant = $2"],
    "select id from log_readings where id = $1 and tenant = $2 for key share",
);
const UNREAD: Sql = Sql::both(&["select count(*) from log_parts where reading = $1 and tenant = $2"]);
const APPEND: Sql = Sql::both(&["insert into log_parts (reading, tenant, number, bytes) values ($1, $2, $3, $4)"]);

impl Operation for Append {
    type Output = Appended;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Appended, StoreError> {
        let [id, tenant] = self.reading.params();
        if tx.query_opt(&HOLD, &[id, tenant]).await?.is_none() {
            return Ok(Appended::Gone);
        }
        let unread = tx.query_opt(&UNREAD, &[id, tenant]).await?.map(|row| row.int(0)).transpose()?;
        if unread.is_some_and(|parts| parts >= LOG_PARTS_AHEAD) {
            return Ok(Appended::Full);
        }
        tx.execute(&APPEND, &[id, tenant, Param::Int(self.number), Param::Blob(&self.part)]).await?;
        Ok(Appended::Done)
    }
}

struct End {
    reading: LogReading,
    fault: Option<LogFault>,
}

const END: Sql = Sql::both(&["update log_readings set ended_at = $3, fault_code = $4, fault = $5
     where id = $1 and tenant = $2"]);

impl Operation for End {
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
