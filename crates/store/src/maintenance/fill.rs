//! Fills a database for measurements: a backlog that would take minutes to enqueue and work off, in one statement.
//! Called by the benchmark alone, on a database that holds nothing else.

use domain::{JobState, Label, Name, TenantId};

use crate::counters::Changes;
use crate::error::StoreError;
use crate::lanes::Lane;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// What a queue is filled with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Filling {
    /// Jobs that can run.
    Waiting,
    /// Jobs that wait for a key somebody holds, older than any other.
    Parked,
    /// Jobs that succeeded.
    Ended,
}

/// Who else is there while something is measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crowd {
    /// Other queues of the same tenant.
    Queues,
    /// Other tenants, with a queue each.
    Tenants,
}

impl Store {
    /// So many others, each with a few jobs that wait.
    pub async fn fill_beside(&self, crowd: Crowd, others: u64) -> Result<(), StoreError> {
        self.write(FillBeside { crowd, others }).await
    }

    pub async fn fill(&self, queue: Name, kind: Name, filling: Filling, jobs: u64) -> Result<(), StoreError> {
        let tenant = TenantId::DEFAULT;
        let guarded = filling == Filling::Parked;
        let lane = Lane { tenant, queue: queue.clone(), kind, priority: 0, affinity: None::<Label>, guarded };
        let lane = self.lane_ids(&[lane]).await?[0];
        self.write(Fill { queue, lane, filling, jobs }).await?;
        // A database that has had its jobs for a while has been looked after. This one would be while it is measured.
        self.vacuum().await
    }

    /// How far PostgreSQL's log has come, in bytes.
    pub async fn log_position(&self) -> Result<Option<i64>, StoreError> {
        if self.is_postgres() { self.read(LogPosition).await.map(Some) } else { Ok(None) }
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
        let mut changes = Changes::default();
        changes.add(tenant, &self.queue, state, self.jobs as i64);
        changes.write(tx).await
    }
}

/// Jobs that each of a crowd has waiting.
const JOBS_EACH: i64 = 10;
/// Tenants of the crowd have higher numbers.
const FIRST_OTHER: i64 = 1_000;

struct FillBeside {
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
// One lane each; the number of a tenant grows with the lane's where there is one for each.
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

impl Operation for FillBeside {
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
        let mut changes = Changes::default();
        for other in 1..=self.others as i64 {
            let queue = Name::stored(&format!("beside-{other}"));
            changes.add(TenantId(first + other * step), &queue, JobState::Queued, JOBS_EACH);
        }
        changes.write(tx).await
    }
}

struct LogPosition;

const LOG_POSITION: Sql = Sql::new(&["select 0"], "select pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint");

impl Operation for LogPosition {
    type Output = i64;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<i64, StoreError> {
        tx.query_opt(&LOG_POSITION, &[]).await?.map_or(Ok(0), |row| row.int(0))
    }
}
