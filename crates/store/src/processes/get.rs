//! Processes with their figures. A figure is a count by the very condition that the scan takes subjects by (W7).

use domain::limits::FIGURE_ROWS;
use domain::{Name, ProcessSettings, TenantId, Time};

use crate::error::StoreError;
use crate::processes::codec::settings_from_json;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug, PartialEq)]
pub struct Process {
    pub name: Name,
    pub settings: ProcessSettings,
    pub principal: String,
    pub created_at: Time,
    pub updated_at: Time,
    pub figures: Figures,
}

/// How many subjects a process has to do with, each counted up to a hundred thousand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// A job may be made for them now.
    pub eligible: i64,
    /// They have an unfinished job.
    pub active: i64,
    /// They would be eligible, but for a backoff.
    pub in_backoff: i64,
    /// Since when the first of the eligible has been.
    pub oldest: Option<Time>,
}

impl Store {
    pub async fn process(&self, tenant: TenantId, name: &Name) -> Result<Option<Process>, StoreError> {
        Ok(self.read(Get { tenant, name: Some(name.clone()), after: None, limit: 1 }).await?.pop())
    }

    /// By name, those after `after`.
    pub async fn list_processes(
        &self,
        tenant: TenantId,
        after: Option<Name>,
        limit: usize,
    ) -> Result<Vec<Process>, StoreError> {
        self.read(Get { tenant, name: None, after, limit }).await
    }
}

struct Get {
    tenant: TenantId,
    name: Option<Name>,
    after: Option<Name>,
    limit: usize,
}

const ONE: Sql = Sql::both(&["select name, queue, kind, settings, principal, created_at, updated_at from processes
     where tenant = $1 and name = $2 and dropped_at is null"]);
const ALL: Sql = Sql::both(&["select name, queue, kind, settings, principal, created_at, updated_at from processes
     where tenant = $1 and name > $2 and dropped_at is null order by name limit $3"]);
// The condition is that of `scan.rs::CANDIDATES`, word for word.
const ELIGIBLE: Sql = Sql::both(&["select count(*), min(ready_at) from (
         select s.ready_at from processes p
             join standings s on s.tenant = p.tenant and s.process = p.name and s.job is null and s.ready_at <= $3
                 and (s.check_at is null or s.check_at > $3) and (p.swept_to is null or s.subject <= p.swept_to)
         where p.tenant = $1 and p.name = $2 and p.dropped_at is null
         order by s.ready_at limit $4) eligible"]);
const ACTIVE: Sql = Sql::both(&["select count(*) from (
         select 1 from standings where tenant = $1 and process = $2 and job is not null limit $3) active"]);
// What waits for its next turn alone is not in backoff.
const IN_BACKOFF: Sql = Sql::both(&["select count(*) from (
         select 1 from standings where tenant = $1 and process = $2 and job is null and ready_at > $3
             and (pace_at is null or ready_at > pace_at) limit $4) held_off"]);

impl Operation for Get {
    type Output = Vec<Process>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<Process>, StoreError> {
        let tenant = Param::Int(self.tenant.0);
        let rows = match &self.name {
            Some(name) => tx.query(&ONE, &[tenant, Param::Text(name.as_str())]).await?,
            None => {
                let after = self.after.as_ref().map_or("", Name::as_str);
                tx.query(&ALL, &[tenant, Param::Text(after), Param::Int(self.limit as i64)]).await?
            }
        };
        let mut processes = Vec::with_capacity(rows.len());
        for row in &rows {
            let mut process = read(row)?;
            process.figures = figures(tx, self.tenant, &process.name).await?;
            processes.push(process);
        }
        Ok(processes)
    }
}

fn read(row: &Row) -> Result<Process, StoreError> {
    let (queue, kind) = (Name::stored(&row.text(1)?), Name::stored(&row.text(2)?));
    Ok(Process {
        name: Name::stored(&row.text(0)?),
        settings: settings_from_json(queue, kind, &row.text(3)?)?,
        principal: row.text(4)?,
        created_at: row.time(5)?,
        updated_at: row.time(6)?,
        figures: Figures::default(),
    })
}

async fn figures(tx: &mut Tx<'_>, tenant: TenantId, name: &Name) -> Result<Figures, StoreError> {
    let (tenant, name) = (Param::Int(tenant.0), Param::Text(name.as_str()));
    let (now, most) = (Param::Time(tx.now()), Param::Int(FIGURE_ROWS as i64));
    let one = |row: Option<Row>| row.ok_or_else(|| StoreError::unexpected("a count without a row"));
    let eligible = one(tx.query_opt(&ELIGIBLE, &[tenant, name, now, most]).await?)?;
    let active = one(tx.query_opt(&ACTIVE, &[tenant, name, most]).await?)?;
    let in_backoff = one(tx.query_opt(&IN_BACKOFF, &[tenant, name, now, most]).await?)?;
    Ok(Figures {
        eligible: eligible.int(0)?,
        oldest: eligible.opt_time(1)?,
        active: active.int(0)?,
        in_backoff: in_backoff.int(0)?,
    })
}
