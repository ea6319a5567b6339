//! Who reads a log that is on another node: asks for it, takes what comes, says now and then that it is there, and leaves.

use bytes::Bytes;
use domain::limits::LOG_SILENCE_S;
use domain::runtime::OperationCode;
use domain::{RuntimeName, TenantId, Time};

use crate::clock::new_uuid;
use crate::error::StoreError;
use crate::runtimes::logs::{LogFault, LogReading};
use crate::runtimes::{known, nodes};
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// A log to be read.
#[derive(Clone, Debug)]
pub struct NewReading {
    pub tenant: TenantId,
    pub runtime: RuntimeName,
    pub container_id: String,
    /// Who is asked.
    pub node: String,
    /// Lines to begin with.
    pub tail: i64,
    /// Whether what is written later is told too.
    pub follow: bool,
}

/// What has come since the last look, in its order, and whether more may come.
#[derive(Clone, Debug)]
pub struct LogRead {
    pub parts: Vec<Bytes>,
    pub standing: Standing,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Its node has not begun.
    Asked,
    /// More may come.
    Open,
    /// Nothing more comes; with a fault, because the engine refused.
    Ended(Option<LogFault>),
    /// Its node was not heard for a while, or nobody knows of the reading any more.
    Silent,
}

impl Store {
    /// `None` where the node is lost: nobody is there to be asked.
    pub async fn ask_for_log(&self, new: NewReading) -> Result<Option<LogReading>, StoreError> {
        self.write(Ask { new }).await
    }

    /// Each part is told once.
    pub async fn read_log(&self, reading: LogReading) -> Result<LogRead, StoreError> {
        self.write(Read { reading }).await
    }

    /// Says that somebody still reads, also while nothing more is taken.
    pub async fn keep_reading_log(&self, reading: LogReading) -> Result<(), StoreError> {
        self.write(Keep { reading }).await
    }

    /// Nobody reads any more: nothing is left of it.
    pub async fn close_log(&self, reading: LogReading) -> Result<(), StoreError> {
        self.write(Close { reading }).await
    }
}

struct Ask {
    new: NewReading,
}

const ASK: Sql =
    Sql::both(&["insert into log_readings (id, tenant, runtime, container_id, node, tail, follow, read_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8)"]);

impl Operation for Ask {
    type Output = Option<LogReading>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.new.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Option<LogReading>, StoreError> {
        let NewReading { tenant, runtime, container_id, node, tail, follow } = &self.new;
        let now = tx.now();
        if !nodes::all(tx).await?.iter().any(|known| known.name == *node && !known.is_lost(now)) {
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
        tx.execute(&ASK, &params).await?;
        Ok(Some(reading))
    }
}

struct Read {
    reading: LogReading,
}

const STANDING: Sql = Sql::both(&["select served_at, ended_at, fault_code, fault from log_readings
     where id = $1 and tenant = $2"]);
const PARTS: Sql = Sql::both(&["delete from log_parts where reading = $1 and tenant = $2 returning number, bytes"]);

impl Operation for Read {
    type Output = LogRead;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<LogRead, StoreError> {
        let params = self.reading.params();
        // First how it stands: what has ended by then is there whole.
        let standing = match tx.query_opt(&STANDING, &params).await? {
            Some(row) => standing(&row, tx.now())?,
            None => Standing::Silent,
        };
        let rows = tx.query(&PARTS, &params).await?;
        let part = |row: &Row| Ok((row.int(0)?, Bytes::from(row.opt_blob(1)?.unwrap_or_default())));
        let mut parts = rows.iter().map(part).collect::<Result<Vec<_>, StoreError>>()?;
        parts.sort_by_key(|(number, _)| *number);
        Ok(LogRead { parts: parts.into_iter().map(|(_, bytes)| bytes).collect(), standing })
    }
}

fn standing(row: &Row, now: Time) -> Result<Standing, StoreError> {
    let (served_at, ended_at) = (row.opt_time(0)?, row.opt_time(1)?);
    if ended_at.is_none() {
        return Ok(match served_at {
            None => Standing::Asked,
            Some(at) if now.ms_since(at) > LOG_SILENCE_S * 1_000 => Standing::Silent,
            Some(_) => Standing::Open,
        });
    }
    let code = row.opt_text(2)?.map(|code| known("code", code, OperationCode::parse)).transpose()?;
    let message = row.opt_text(3)?.unwrap_or_default();
    Ok(Standing::Ended(code.map(|code| LogFault { code, message })))
}

struct Keep {
    reading: LogReading,
}

const KEEP: Sql = Sql::both(&["update log_readings set read_at = $3 where id = $1 and tenant = $2"]);

impl Operation for Keep {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let [id, tenant] = self.reading.params();
        tx.execute(&KEEP, &[id, tenant, Param::Time(tx.now())]).await.map(|_| ())
    }
}

struct Close {
    reading: LogReading,
}

const CLOSE: Sql = Sql::both(&["delete from log_readings where id = $1 and tenant = $2"]);
const CLOSE_PARTS: Sql = Sql::both(&["delete from log_parts where reading = $1 and tenant = $2"]);

impl Operation for Close {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.reading.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        // The reading first: a part that is being added to it is there before the parts go, and no other comes after.
        tx.execute(&CLOSE, &self.reading.params()).await?;
        tx.execute(&CLOSE_PARTS, &self.reading.params()).await.map(|_| ())
    }
}
