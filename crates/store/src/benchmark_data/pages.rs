//! Inserts the data that pages show, as in a busy installation, with a few statements per lane. Only the benchmark
//! calls this, on a database without other data.

use domain::{JobState, Label, Name, TenantId};

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::counters::CounterDeltas;
use crate::queue::lanes::Lane;
use crate::store::Store;

/// Number of queues.
const QUEUES: usize = 10;
/// Number of kinds in each queue.
const KINDS: usize = 2;
/// Number of affinities of each kind in the first queue.
const AFFINITIES: usize = 5;
/// Period over which the creation times of jobs are spread.
const PERIOD_US: i64 = 7 * 24 * 3_600 * 1_000_000;
/// One in this many jobs waits; the others have ended.
const ONE_WAITING_IN: u64 = 10;

impl Store {
    /// Inserts about `jobs` jobs. Most have ended, and three in twenty of those failed. Some have subjects, runs, tags,
    /// dead letters or deliveries.
    pub async fn fill_pages(&self, jobs: u64) -> Result<(), StoreError> {
        let tenant = TenantId::DEFAULT;
        let mut lanes = Vec::new();
        for queue in 0..QUEUES {
            for kind in 0..KINDS {
                let affinities = if queue == 0 { 1..=AFFINITIES } else { 0..=0 };
                lanes.extend(affinities.map(|affinity| Lane {
                    tenant,
                    queue: Name::stored(&format!("queue-{queue}")),
                    kind: Name::stored(&format!("kind-{kind}")),
                    priority: 0,
                    affinity: (affinity > 0).then(|| Label::stored(&format!("model-{affinity}"))),
                    guarded: false,
                }));
            }
        }
        let ids = self.lane_ids(&lanes).await?;
        let each = (jobs / lanes.len() as u64).max(1);
        for (lane, id) in lanes.into_iter().zip(ids) {
            self.write(FillLane { queue: lane.queue, lane: id, jobs: each }).await?;
        }
        self.write(FillRelatedRows).await
    }
}

struct FillLane {
    queue: Name,
    lane: i64,
    jobs: u64,
}

const ENDED: Sql = Sql::new(
    &["insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, started_at, begun_at, finished_at,
           depth, version, created_at, principal, payload, worker, subject, run, error, error_code)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select unhex(printf('%012x7%03x8000%012x', at / 1000, $3 % 4096, n)), $2, $3,
           case when n % 20 < 16 then 'succeeded' when n % 20 < 19 then 'failed' else 'canceled' end,
           at, 1, 1, 3, at, at, at + 1000000, 0, 3, at, 'bench', $6, zeroblob(16),
           case when n % 10 = 0 then 'machine-' || (n % 1000) end, case when n % 49 = 0 then 'run-' || (n / 1000) end,
           case when n % 20 between 16 and 18 then $7 end,
           case when n % 20 between 16 and 18 then 'BOOM' end
       from (select n, $4 - n * $5 as at from numbers)"],
    "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, started_at, begun_at, finished_at,
         depth, version, created_at, principal, payload, worker, subject, run, error, error_code)
     select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex($3::bigint % 4096), 3, '0')
             || '8000' || lpad(to_hex(n), 12, '0'))::uuid, $2, $3,
         case when n % 20 < 16 then 'succeeded' when n % 20 < 19 then 'failed' else 'canceled' end,
         at, 1, 1, 3, at, at, at + interval '1 second', 0, 3, at, 'bench', $6, '00000000-0000-0000-0000-000000000000',
         case when n % 10 = 0 then 'machine-' || (n % 1000) end, case when n % 49 = 0 then 'run-' || (n / 1000) end,
         case when n % 20 between 16 and 18 then $7::json end,
         case when n % 20 between 16 and 18 then 'BOOM' end
     from (select n, $4::timestamptz - (n * $5::bigint) * interval '1 microsecond' as at
           from generate_series(1, $1::bigint) n) numbers",
);
const WAITING: Sql = Sql::new(
    &["insert into jobs (id, tenant, lane, state, run_at, max_attempts, created_at, updated_at, principal, payload)
       with recursive numbers(n) as (select 1 union all select n + 1 from numbers where n < $1)
       select unhex(printf('%012x7%03x9000%012x', at / 1000, $3 % 4096, n)), $2, $3, 'queued', at, 3, at, at, 'bench', $6
       from (select n, $4 - n * $5 as at from numbers)"],
    "insert into jobs (id, tenant, lane, state, run_at, max_attempts, created_at, updated_at, principal, payload)
     select (lpad(to_hex((extract(epoch from at) * 1000)::bigint), 12, '0') || '7' || lpad(to_hex($3::bigint % 4096), 3, '0')
             || '9000' || lpad(to_hex(n), 12, '0'))::uuid, $2, $3, 'queued', at, 3, at, at, 'bench', $6
     from (select n, $4::timestamptz - (n * $5::bigint) * interval '1 microsecond' as at
           from generate_series(1, $1::bigint) n) numbers",
);

impl Operation for FillLane {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let tenant = TenantId::DEFAULT;
        let waiting = self.jobs / ONE_WAITING_IN;
        let ended = self.jobs - waiting;
        let payload = format!(r#"{{"pad":"{}"}}"#, "x".repeat(190));
        let mut changes = CounterDeltas::default();
        let error = r#"{"code":"BOOM","message":"it broke","retryable":false}"#;
        let since = Param::Time(tx.now().plus_s(-60));
        let lane = |jobs: u64| {
            let interval = Param::Int(PERIOD_US / jobs.max(1) as i64);
            [
                Param::Int(jobs as i64),
                Param::Int(tenant.0),
                Param::Int(self.lane),
                since,
                interval,
                Param::Json(&payload),
            ]
        };
        let [a, b, c, d, e, f] = lane(ended);
        tx.execute(&ENDED, &[a, b, c, d, e, f, Param::Json(error)]).await?;
        if waiting > 0 {
            tx.execute(&WAITING, &lane(waiting)).await?;
        }
        // Of every twenty jobs, sixteen succeeded, three failed and one was canceled.
        let of = |from: u64, until: u64| (1..=ended).filter(|n| (from..until).contains(&(n % 20))).count() as i64;
        changes.add(tenant, &self.queue, JobState::Succeeded, of(0, 16));
        changes.add(tenant, &self.queue, JobState::Failed, of(16, 19));
        changes.add(tenant, &self.queue, JobState::Canceled, of(19, 20));
        changes.add(tenant, &self.queue, JobState::Queued, waiting as i64);
        changes.write(tx).await
    }
}

struct FillRelatedRows;

const TAGS: Sql = Sql::both(&["insert into job_tags (tenant, tag, job)
     select tenant, 'nightly', id from ended where tenant = $1 and run is not null"]);
const LETTERS: Sql =
    Sql::both(&["insert into dead_letters (id, tenant, event_id, source, op, job, queue, kind, error_code,
         payload, depth, attempts, attempt_count, first_attempt_at, last_attempt_at, last_error, created_at)
     select id, tenant, id, 'job', 'failed', id, 'queue-0', 'kind-0', error_code, payload, 0, $2, 1, finished_at,
         finished_at, error, finished_at
     from ended where tenant = $1 and run is not null and state = 'failed'"]);
const ENDPOINT: Sql =
    Sql::both(&["insert into endpoints (tenant, origin, created_at) values ($1, 'https://example.com', $2)"]);
const DELIVERIES: Sql = Sql::both(&["insert into deliveries (id, tenant, endpoint, source, op, job, principal, depth, url,
         method, headers, secrets, body, timeout_ms, retry, max_attempts, state, attempt, tries_left, status, created_at,
         give_up_at, ended_at)
     select id, tenant, (select min(e.id) from endpoints e where e.tenant = $1), 'job', state, id, 'bench', 0,
         'https://example.com/hook', 'POST', '[]', '[]', '{}', 10000, '{}', 12, 'delivered', 1, 11, 204, finished_at,
         finished_at, finished_at
     from ended where tenant = $1 and run is not null"]);
const TIMELINE: Sql = Sql::both(&[
    "insert into timeline (tenant, at, event, subject, job, actor)
     select tenant, finished_at, 'finished', subject, id, 'bench' from ended where tenant = $1 and subject is not null",
]);
// In a database with older data autovacuum has updated the statistics already. Here they are updated explicitly.
const ANALYZE: Sql = Sql::new(&["select 1"], "analyze");

impl Operation for FillRelatedRows {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let tenant = Param::Int(TenantId::DEFAULT.0);
        tx.execute(&ENDPOINT, &[tenant, Param::Time(tx.now())]).await?;
        for statement in [&TAGS, &DELIVERIES, &TIMELINE] {
            tx.execute(statement, &[tenant]).await?;
        }
        let attempts = r#"[{"at":0,"code":"BOOM","message":"it broke","retryable":false}]"#;
        tx.execute(&LETTERS, &[tenant, Param::Json(attempts)]).await?;
        tx.query(&ANALYZE, &[]).await.map(drop)
    }
}
