//! Inserts a backlog of jobs in one statement, which would take minutes through the API. Only the benchmark calls this,
//! on a database without other data.

use domain::{JobState, Label, Name, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::Lane;
use crate::store::Store;

/// The state of the jobs with which a queue is filled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Runnable jobs.
    Waiting,
    /// Jobs parked for a held concurrency key, older than all others.
    Parked,
    /// Jobs that succeeded.
    Ended,
}

/// The other objects in the database during a measurement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Other queues of the same tenant.
    Queues,
    /// Other tenants with one queue each.
    Tenants,
}

impl Store {
    /// Adds `others` queues or tenants, each with `JOBS_EACH` waiting jobs.
    pub async fn fill_beside(&self, crowd: Crowd, others: u64) -> Result<(), StoreError> {
        self.write(FillCrowd { crowd, others }).await
    }

    /// Fills a queue with `jobs` jobs.
    pub async fn fill(&self, queue: Name, kind: Name, filling: Filling, jobs: u64) -> Result<(), StoreError> {
        let tenant = TenantId::DEFAULT;
        let guarded = filling == Filling::Parked;
        let lane = Lane { tenant, queue: queue.clone(), kind, priority: 0, affinity: None::<Label>, guarded };
        let lane = self.lane_ids(&[lane]).await?[0];
        self.write(Fill { queue, lane, filling, jobs }).await?;
        // In a database with older data autovacuum has run already. Without this it would run during the measurement.
        self.vacuum().await
    }

    /// Returns the position of PostgreSQL's WAL in bytes; `None` on SQLite.
    pub async fn log_position(&self) -> Result<Option<i64>, StoreError> {
        if self.is_postgres() { self.read(ReadLogPosition).await.map(Some) } else { Ok(None) }
    }
}

struct Fill {
    queue: Name,
    lane: i64,
    filling: Filling,
    jobs: u64,
}

const LIVE: Sql = Sql::new(
    &["insert into jobs (id, tenant, lane, state, run_at, parked, max_attempts, created_at, updated_at, principal, payload)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select unhex(printf('%012x70008000%012x', $4 / 1000, n)), $2, $3, 'queued', $4, $5, 3, $4, $4, 'bench', $6 from numbers"],
    "insert into jobs (id, tenant, lane, state, run_at, parked, max_attempts, created_at, updated_at, principal, payload)
     select (lpad(to_hex((extract(epoch from $4::timestamptz) * 1000)::bigint), 12, '0') || '70008000'
             || lpad(to_hex(n), 12, '0'))::uuid,
         $2, $3, 'queued', $4, $5, 3, $4, $4, 'bench', $6
     from generate_series(1, $1::bigint) n",
);
const ENDED: Sql = Sql::new(
    &["insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
           created_at, principal, payload)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select unhex(printf('%012x70008000%012x', $4 / 1000, n)), $2, $3, 'succeeded', $4, 1, 1, 3, $4, 0, 3, $4, 'bench', $6
       from numbers where $5 is null"],
    "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
         created_at, principal, payload)
     select (lpad(to_hex((extract(epoch from $4::timestamptz) * 1000)::bigint), 12, '0') || '70008000'
             || lpad(to_hex(n), 12, '0'))::uuid,
         $2, $3, 'succeeded', $4, 1, 1, 3, $4, 0, 3, $4, 'bench', $6
     from generate_series(1, $1::bigint) n where $5::text is null",
);
const HOLD: Sql = Sql::new(
    &["insert into holds (tenant, scope, job, epoch) values ($1, $2, zeroblob(16), 1)"],
    "insert into holds (tenant, scope, job, epoch) values ($1, $2, '00000000-0000-0000-0000-000000000000', 1)",
);

impl Operation for Fill {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let tenant = TenantId::DEFAULT;
        let scope = format!("key {} filled", self.queue);
        let parked = (self.filling == Filling::Parked).then_some(scope.as_str());
        let payload = format!(r#"{{"pad":"{}"}}"#, "x".repeat(190));
        let params = [
            Param::Int(self.jobs as i64),
            Param::Int(tenant.0),
            Param::Int(self.lane),
            Param::Time(tx.now().plus_s(-60)),
            Param::text(parked),
            Param::Json(&payload),
        ];
        let (statement, state) = match self.filling {
            Filling::Waiting | Filling::Parked => (&LIVE, JobState::Queued),
            Filling::Ended => (&ENDED, JobState::Succeeded),
        };
        tx.execute(statement, &params).await?;
        if parked.is_some() {
            tx.execute(&HOLD, &[Param::Int(tenant.0), Param::Text(&scope)]).await?;
        }
        let mut changes = CounterDeltas::default();
        changes.add(tenant, &self.queue, state, self.jobs as i64);
        changes.write(tx).await
    }
}

/// Waiting jobs of each queue of the crowd.
const JOBS_EACH: i64 = 10;
/// The ids of the crowd's tenants are greater than this.
const FIRST_OTHER: i64 = 1_000;

struct FillCrowd {
    crowd: Crowd,
    others: u64,
}

const TENANTS_BESIDE: Sql = Sql::new(
    &["insert into tenants (id, name, created_at)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select $2 + n, 'beside-' || n, $3 from numbers"],
    "insert into tenants (id, name, created_at)
     select $2::bigint + n, 'beside-' || n, $3 from generate_series(1, $1::bigint) n",
);
// One lane per queue. `$3` is 1 if each lane has a tenant of its own, otherwise 0.
const LANES_BESIDE: Sql = Sql::new(
    &["insert into lanes (tenant, queue, kind, priority, affinity, guarded)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select $2 + n * $3, 'beside-' || n, 'noop', 0, '', 0 from numbers"],
    "insert into lanes (tenant, queue, kind, priority, affinity, guarded)
     select $2::bigint + n * $3::bigint, 'beside-' || n, 'noop', 0, '', false from generate_series(1, $1::bigint) n",
);
const JOBS_BESIDE: Sql = Sql::new(
    &["insert into jobs (id, tenant, lane, state, run_at, max_attempts, created_at, updated_at, principal, payload)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select unhex(printf('%012x7000a000%06x%06x', $2 / 1000, l.lane, n)), l.tenant, l.lane, 'queued', $2, 3, $2, $2, 'bench', $3
       from lanes l, numbers where l.queue like 'beside-%'"],
    "insert into jobs (id, tenant, lane, state, run_at, max_attempts, created_at, updated_at, principal, payload)
     select (lpad(to_hex((extract(epoch from $2::timestamptz) * 1000)::bigint), 12, '0') || '7000a000'
             || lpad(to_hex(l.lane), 6, '0') || lpad(to_hex(n), 6, '0'))::uuid,
         l.tenant, l.lane, 'queued', $2, 3, $2, $2, 'bench', $3
     from lanes l, generate_series(1, $1::bigint) n where l.queue like 'beside-%'",
);

impl Operation for FillCrowd {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let (others, now) = (Param::Int(self.others as i64), Param::Time(tx.now().plus_s(-60)));
        let (first, step) = match self.crowd {
            Crowd::Queues => (TenantId::DEFAULT.0, 0),
            Crowd::Tenants => (FIRST_OTHER, 1),
        };
        if self.crowd == Crowd::Tenants {
            tx.execute(&TENANTS_BESIDE, &[others, Param::Int(FIRST_OTHER), now]).await?;
        }
        tx.execute(&LANES_BESIDE, &[others, Param::Int(first), Param::Int(step)]).await?;
        tx.execute(&JOBS_BESIDE, &[Param::Int(JOBS_EACH), now, Param::Json("{}")]).await?;
        let mut changes = CounterDeltas::default();
        for other in 1..=self.others as i64 {
            let queue = Name::stored(&format!("beside-{other}"));
            changes.add(TenantId(first + other * step), &queue, JobState::Queued, JOBS_EACH);
        }
        changes.write(tx).await
    }
}

struct ReadLogPosition;

const LOG_POSITION: Sql = Sql::new(
    &["select 0 as log_position"],
    "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint as log_position",
);

impl Operation for ReadLogPosition {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        tx.query_opt(&LOG_POSITION, &[]).await?.map_or(Ok(0), |row| row.int("log_position"))
    }
}
