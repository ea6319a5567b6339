//! Lists single TTFS events, newest first: those of a job, with an error code, or since a time. Aggregates are in `summary`.

use domain::{JobId, TenantId, Time};
use uuid::Uuid;

use super::record::TtfsEvent;
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

#[derive(Clone, Debug, Default)]
pub struct TtfsFilter {
    pub job: Option<JobId>,
    pub error_code: Option<String>,
    /// Events at this time or later.
    pub since: Option<Time>,
}

/// The time and the id of the last event of a page.
pub type TtfsCursor = (Time, Uuid);

impl Store {
    /// Returns events that match, with their ids and times, older than `before`.
    pub async fn list_ttfs(
        &self,
        tenant: TenantId,
        filter: TtfsFilter,
        before: Option<TtfsCursor>,
        limit: usize,
    ) -> Result<Vec<TtfsEvent>, StoreError> {
        self.read(ListTtfs { tenant, filter, before, limit }).await
    }
}

struct ListTtfs {
    tenant: TenantId,
    filter: TtfsFilter,
    before: Option<TtfsCursor>,
    limit: usize,
}

/// One statement for each index.
const NEWEST: Sql =
    Sql::both(&["select id, at, job, surface, event_type, ttfs_ms, cache_hit, signal_source, kind, phase, run,
         network_state, device, release, correlation_id, trace_id, span_id, error_code, error_message, metadata
     from ttfs_events where tenant = $1 and at >= $2 and (at, id) < ($3, $4) order by at desc, id desc limit $5"]);
const OF_JOB: Sql = Sql::new(
    &["select id, at, job, surface, event_type, ttfs_ms, cache_hit, signal_source, kind, phase, run,
           network_state, device, release, correlation_id, trace_id, span_id, error_code, error_message, metadata
       from ttfs_events where tenant = $1 and at >= $2 and (at, id) < ($3, $4) and job = $6
           and ($7 is null or error_code = $7) order by at desc, id desc limit $5"],
    "select id, at, job, surface, event_type, ttfs_ms, cache_hit, signal_source, kind, phase, run,
         network_state, device, release, correlation_id, trace_id, span_id, error_code, error_message, metadata
     from ttfs_events where tenant = $1 and at >= $2 and (at, id) < ($3, $4) and job = $6
         and ($7::text is null or error_code = $7::text) order by at desc, id desc limit $5",
);
const WITH_ERROR: Sql =
    Sql::both(&["select id, at, job, surface, event_type, ttfs_ms, cache_hit, signal_source, kind, phase,
         run, network_state, device, release, correlation_id, trace_id, span_id, error_code, error_message, metadata
     from ttfs_events where tenant = $1 and at >= $2 and (at, id) < ($3, $4) and error_code = $6
     order by at desc, id desc limit $5"]);

impl Operation for ListTtfs {
    type Output = Vec<TtfsEvent>;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<TtfsEvent>, StoreError> {
        let TtfsFilter { job, error_code, since } = &self.filter;
        let (before_at, before_id) = self.before.unwrap_or((Time::from_micros(i64::MAX), Uuid::max()));
        let mut params = vec![
            Param::Int(self.tenant.0),
            Param::Time(since.unwrap_or(Time::from_micros(i64::MIN))),
            Param::Time(before_at),
            Param::Uuid(before_id),
            Param::Int(self.limit as i64),
        ];
        let statement = match (job, error_code) {
            (Some(job), code) => {
                params.extend([Param::from(*job), Param::text(code.as_deref())]);
                &OF_JOB
            }
            (None, Some(code)) => {
                params.push(Param::Text(code));
                &WITH_ERROR
            }
            (None, None) => &NEWEST,
        };
        tx.query(statement, &params).await?.iter().map(read).collect()
    }
}

fn read(row: &Row) -> Result<TtfsEvent, StoreError> {
    Ok(TtfsEvent {
        id: Some(row.uuid("id")?),
        at: Some(row.time("at")?),
        job: row.opt_uuid("job")?,
        surface: row.text("surface")?,
        event_type: row.text("event_type")?,
        ttfs_ms: row.int("ttfs_ms")?,
        cache_hit: row.bool("cache_hit")?,
        signal_source: row.opt_text("signal_source")?,
        kind: row.opt_text("kind")?,
        phase: row.opt_text("phase")?,
        run: row.opt_text("run")?,
        network_state: row.opt_text("network_state")?,
        device: row.opt_text("device")?,
        release: row.opt_text("release")?,
        correlation_id: row.opt_text("correlation_id")?,
        trace_id: row.opt_text("trace_id")?,
        span_id: row.opt_text("span_id")?,
        error_code: row.opt_text("error_code")?,
        error_message: row.opt_text("error_message")?,
        metadata: row.opt_text("metadata")?,
    })
}
