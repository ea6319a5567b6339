//! Lists dead letters, newest first, and counts them.

use domain::limits::MAX_COUNTED_ROWS;
use domain::{DeadLetterId, JobId, TenantId, Time, TriggerId};
use uuid::Uuid;

use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;
use crate::triggers::dead_letters::{DeadLetter, handlers, read};

/// Selects dead letters. An absent field matches every letter.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterFilter {
    pub resolved: Option<bool>,
    pub source: Option<String>,
    pub trigger: Option<TriggerId>,
    pub job: Option<JobId>,
    pub queue: Option<String>,
    pub kind: Option<String>,
    pub error_code: Option<String>,
    pub since: Option<Time>,
    pub until: Option<Time>,
}

/// A count that stops at `COUNTED`: beyond it, the exact number does not matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeadLetterCount {
    pub count: usize,
    pub capped: bool,
}

impl Store {
    /// Lists the newest letters that match, older than `before`.
    pub async fn list_dead_letters(
        &self,
        tenant: TenantId,
        filter: DeadLetterFilter,
        before: Option<DeadLetterId>,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(ListDeadLetters { tenant, filter, before, limit }).await
    }

    pub async fn count_dead_letters(
        &self,
        tenant: TenantId,
        filter: DeadLetterFilter,
    ) -> Result<DeadLetterCount, StoreError> {
        self.read(CountDeadLetters { tenant, filter }).await
    }
}

struct ListDeadLetters {
    tenant: TenantId,
    filter: DeadLetterFilter,
    before: Option<DeadLetterId>,
    limit: usize,
}

// Ids contain the creation time, so the time filters are ranges of the primary key.
const OPEN: Sql = Sql::new(
    &["select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
           created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
       from dead_letters
       where tenant = $1 and id < $2 and id >= $3 and resolved_at is null and ($4 is null or source = $4)
           and ($5 is null or trigger_id = $5) and ($6 is null or job = $6) and ($7 is null or queue = $7)
           and ($8 is null or kind = $8) and ($9 is null or error_code = $9)
       order by id desc limit $10"],
    "select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
         created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
     from dead_letters
     where tenant = $1 and id < $2 and id >= $3 and resolved_at is null and ($4::text is null or source = $4::text)
         and ($5::uuid is null or trigger_id = $5::uuid) and ($6::uuid is null or job = $6::uuid)
         and ($7::text is null or queue = $7::text) and ($8::text is null or kind = $8::text)
         and ($9::text is null or error_code = $9::text)
     order by id desc limit $10",
);
const ALL: Sql = Sql::new(
    &["select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
           created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
       from dead_letters
       where tenant = $1 and id < $2 and id >= $3 and ($11 is null or resolved_at is not null)
           and ($4 is null or source = $4) and ($5 is null or trigger_id = $5) and ($6 is null or job = $6)
           and ($7 is null or queue = $7) and ($8 is null or kind = $8) and ($9 is null or error_code = $9)
       order by id desc limit $10"],
    "select id, event_id, source, op, trigger_id, script_id, job, queue, kind, payload, depth, attempts, last_error,
         created_at, resolved_at, resolution, resolved_by, note, replayed_as, work
     from dead_letters
     where tenant = $1 and id < $2 and id >= $3 and ($11::bigint is null or resolved_at is not null)
         and ($4::text is null or source = $4::text)
         and ($5::uuid is null or trigger_id = $5::uuid) and ($6::uuid is null or job = $6::uuid)
         and ($7::text is null or queue = $7::text) and ($8::text is null or kind = $8::text)
         and ($9::text is null or error_code = $9::text)
     order by id desc limit $10",
);

const OPEN_IDS: Sql = Sql::new(
    &["select id from dead_letters
       where tenant = $1 and id < $2 and id >= $3 and resolved_at is null and ($4 is null or source = $4)
           and ($5 is null or trigger_id = $5) and ($6 is null or job = $6) and ($7 is null or queue = $7)
           and ($8 is null or kind = $8) and ($9 is null or error_code = $9)
       order by id desc limit $10"],
    "select id from dead_letters
     where tenant = $1 and id < $2 and id >= $3 and resolved_at is null and ($4::text is null or source = $4::text)
         and ($5::uuid is null or trigger_id = $5::uuid) and ($6::uuid is null or job = $6::uuid)
         and ($7::text is null or queue = $7::text) and ($8::text is null or kind = $8::text)
         and ($9::text is null or error_code = $9::text)
     order by id desc limit $10",
);
const ALL_IDS: Sql = Sql::new(
    &["select id from dead_letters
       where tenant = $1 and id < $2 and id >= $3 and ($11 is null or resolved_at is not null)
           and ($4 is null or source = $4) and ($5 is null or trigger_id = $5) and ($6 is null or job = $6)
           and ($7 is null or queue = $7) and ($8 is null or kind = $8) and ($9 is null or error_code = $9)
       order by id desc limit $10"],
    "select id from dead_letters
     where tenant = $1 and id < $2 and id >= $3 and ($11::bigint is null or resolved_at is not null)
         and ($4::text is null or source = $4::text)
         and ($5::uuid is null or trigger_id = $5::uuid) and ($6::uuid is null or job = $6::uuid)
         and ($7::text is null or queue = $7::text) and ($8::text is null or kind = $8::text)
         and ($9::text is null or error_code = $9::text)
     order by id desc limit $10",
);

impl Operation for ListDeadLetters {
    type Output = Vec<DeadLetter>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<DeadLetter>, StoreError> {
        let rows = find(tx, self.tenant, &self.filter, self.before, self.limit).await?;
        let mut letters = rows.iter().map(read).collect::<Result<Vec<_>, _>>()?;
        handlers::load(tx, &mut letters).await?;
        Ok(letters)
    }
}

/// Selects whole letters.
async fn find(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    filter: &DeadLetterFilter,
    before: Option<DeadLetterId>,
    limit: usize,
) -> Result<Vec<Row>, StoreError> {
    select(tx, [&OPEN, &ALL], tenant, filter, before, limit).await
}

/// Selects only the ids, newest first.
pub(crate) async fn ids(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    filter: &DeadLetterFilter,
    before: Option<DeadLetterId>,
    limit: usize,
) -> Result<Vec<DeadLetterId>, StoreError> {
    let rows = select(tx, [&OPEN_IDS, &ALL_IDS], tenant, filter, before, limit).await?;
    rows.iter().map(|row| row.uuid("id").map(DeadLetterId::new)).collect()
}

async fn select(
    tx: &mut Tx<'_>,
    [open, all]: [&Sql; 2],
    tenant: TenantId,
    filter: &DeadLetterFilter,
    before: Option<DeadLetterId>,
    limit: usize,
) -> Result<Vec<Row>, StoreError> {
    let newest = filter.until.map_or(Uuid::max(), first_of);
    let newest = before.map_or(newest, |before| before.uuid().min(newest));
    let params = [
        Param::Int(tenant.0),
        Param::Uuid(newest),
        Param::Uuid(filter.since.map_or(Uuid::nil(), first_of)),
        Param::text(filter.source.as_deref()),
        Param::uuid(filter.trigger.map(TriggerId::uuid)),
        Param::uuid(filter.job.map(JobId::uuid)),
        Param::text(filter.queue.as_deref()),
        Param::text(filter.kind.as_deref()),
        Param::text(filter.error_code.as_deref()),
        Param::Int(limit as i64),
        filter.resolved.map_or(Param::Null, |_| Param::Int(1)),
    ];
    match filter.resolved {
        Some(false) => tx.query(open, &params[..10]).await,
        _ => tx.query(all, &params).await,
    }
}

/// Returns the smallest possible id of a time.
fn first_of(time: Time) -> Uuid {
    uuid::Builder::from_unix_timestamp_millis(time.millis().max(0) as u64, &[0; 10]).into_uuid()
}

struct CountDeadLetters {
    tenant: TenantId,
    filter: DeadLetterFilter,
}

impl Operation for CountDeadLetters {
    type Output = DeadLetterCount;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeadLetterCount, StoreError> {
        let count = ids(tx, self.tenant, &self.filter, None, MAX_COUNTED_ROWS + 1).await?.len();
        Ok(DeadLetterCount { count: count.min(MAX_COUNTED_ROWS), capped: count > MAX_COUNTED_ROWS })
    }
}
