//! Checks the data invariants of a database, which may be in use. Called by `windlass verify` and by tests.
//!
//! Each check is one statement that finds rows which violate an invariant. On a database in use every statement sees
//! one consistent snapshot.

use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// A violated invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The invariant.
    pub promise: &'static str,
    /// Number of rows that violate it, at most a thousand.
    pub rows: usize,
    /// The first of them.
    pub examples: Vec<String>,
}

/// The result of all checks.
#[derive(Clone, Debug, Default)]
pub struct VerifyReport {
    /// Number of invariants checked.
    pub checks: usize,
    pub findings: Vec<Finding>,
}

impl Store {
    /// Runs all checks.
    pub async fn verify(&self) -> Result<VerifyReport, StoreError> {
        let mut report = VerifyReport::default();
        for check in CHECKS {
            report.checks += 1;
            let rows = self.read(RunCheck { sql: check.sql }).await?;
            if !rows.is_empty() {
                let examples = rows.iter().take(5).cloned().collect();
                report.findings.push(Finding { promise: check.promise, rows: rows.len(), examples });
            }
        }
        report.checks += 1;
        let faults = self.check_counters().await?;
        if !faults.is_empty() {
            let example = |fault: &crate::queue::fold_counters::CounterMismatch| {
                format!("queue {}: stored {:?}, counted {:?}", fault.queue, fault.stored, fault.counted)
            };
            let examples = faults.iter().take(5).map(example).collect();
            report.findings.push(Finding {
                promise: "the stored counters equal the counted jobs",
                rows: faults.len(),
                examples,
            });
        }
        Ok(report)
    }
}

struct InvariantCheck {
    promise: &'static str,
    sql: Sql,
}

struct RunCheck {
    sql: Sql,
}

impl Operation for RunCheck {
    type Output = Vec<String>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<String>, StoreError> {
        let rows = tx.query(&self.sql, &[Param::Int(1_000)]).await?;
        rows.iter().map(|row| Ok(row.opt_text("example")?.unwrap_or_default())).collect()
    }
}

const LIVE_AND_ENDED: Sql = Sql::new(
    &["select hex(j.id) as example from jobs j join ended e on e.id = j.id limit $1"],
    "select j.id::text as example from jobs j join ended e on e.id = j.id limit $1",
);
const STATE_AND_COLUMNS: Sql = Sql::new(
    &["select hex(id) || ' is ' || state as example from jobs where not (
           (state = 'scheduled' and due_at is not null and worker is null and parked is null)
           or (state = 'queued' and due_at is null and worker is null)
           or (state = 'waiting' and due_at is not null and worker is null and claim is null and parked is null)
           or (state in ('loading', 'working') and due_at is null and parked is null and worker is not null
               and claim is not null and started_at is not null)) limit $1"],
    "select id::text || ' is ' || state as example from jobs where not (
         (state = 'scheduled' and due_at is not null and worker is null and parked is null)
         or (state = 'queued' and due_at is null and worker is null)
         or (state = 'waiting' and due_at is not null and worker is null and claim is null and parked is null)
         or (state in ('loading', 'working') and due_at is null and parked is null and worker is not null
             and claim is not null and started_at is not null)) limit $1",
);
const ATTEMPTS_IN_BOUNDS: Sql = Sql::new(
    &["select hex(id) as example from (select id, attempt, max_attempts, epoch from jobs
           union all select id, attempt, max_attempts, epoch from ended)
       where attempt < 0 or attempt > max_attempts or epoch < attempt limit $1"],
    "select id::text as example from (select id, attempt, max_attempts, epoch from jobs
         union all select id, attempt, max_attempts, epoch from ended) every
     where attempt < 0 or attempt > max_attempts or epoch < attempt limit $1",
);
// An attempt counts if it failed or expired; the current or last one counts if it started. The last history event of a
// job that waits must fit its state: a scheduled job has failed or was snoozed. A scheduled job becomes queued when its
// time comes, so a queued job may follow any event.
const HISTORY_FOLDS: Sql = Sql::new(
    &["select hex(id) || ' has attempt ' || attempt || ', history says ' || logged as example from (
           select x.id, x.attempt, case when x.started_at is null then 0 else 1 end
               + (select count(*) from history h where h.job = x.id and h.event in ('failed', 'expired')
                   and (h.epoch < x.epoch or x.started_at is null)) as logged
           from (select id, attempt, epoch, started_at from jobs where attempt > 0 or epoch > 0
                 union all select id, attempt, epoch, started_at from ended where epoch > 1) x)
       where attempt <> logged
       union all
       select hex(id) || ' is ' || state || ', history says ' || coalesce(logged, 'nothing') from (
           select j.id, j.state, (select h.event from history h where h.job = j.id order by h.epoch desc limit 1) as logged
           from jobs j where j.epoch > 0 and j.worker is null)
       where logged is null or logged not in ('failed', 'expired', 'released', 'snoozed', 'suspended')
           or (state = 'scheduled' and logged not in ('failed', 'snoozed')) limit $1"],
    "select id::text || ' has attempt ' || attempt || ', history says ' || logged as example from (
         select x.id, x.attempt, case when x.started_at is null then 0 else 1 end
             + (select count(*) from history h where h.job = x.id and h.event in ('failed', 'expired')
                   and (h.epoch < x.epoch or x.started_at is null)) as logged
         from (select id, attempt, epoch, started_at from jobs where attempt > 0 or epoch > 0
               union all select id, attempt, epoch, started_at from ended where epoch > 1) x) attempts
     where attempt <> logged
     union all
     select id::text || ' is ' || state || ', history says ' || coalesce(logged, 'nothing') from (
         select j.id, j.state, (select h.event from history h where h.job = j.id order by h.epoch desc limit 1) as logged
         from jobs j where j.epoch > 0 and j.worker is null) states
     where logged is null or logged not in ('failed', 'expired', 'released', 'snoozed', 'suspended')
         or (state = 'scheduled' and logged not in ('failed', 'snoozed')) limit $1",
);
// Times are not compared, because a clock that was set back violates no invariant.
const ENDED_IS_FINAL: Sql = Sql::new(
    &["select hex(id) as example from ended where state not in ('succeeded', 'failed', 'canceled')
           or (state = 'succeeded' and (started_at is null or worker is null)) limit $1"],
    "select id::text as example from ended where state not in ('succeeded', 'failed', 'canceled')
         or (state = 'succeeded' and (started_at is null or worker is null)) limit $1",
);
const CLAIMS_COUNT: Sql = Sql::new(
    &["select hex(c.claim) || ' has ' || c.remaining as example from claims c
       where c.remaining <> (select count(*) from json_each(c.jobs) n join jobs j
           on j.id = unhex(replace(n.value, '-', '')) and j.claim = c.claim) limit $1"],
    "select c.claim::text || ' has ' || c.remaining as example from claims c
     where c.remaining <> (select count(*) from json_array_elements_text(c.jobs) n join jobs j
         on j.id = n.value::uuid and j.claim = c.claim) limit $1",
);
// The jobs of a dead worker are found through its claims. A job that no claim names would never be released.
const CLAIMED_HAVE_CLAIMS: Sql = Sql::new(
    &["select hex(j.id) as example from jobs j left join claims c on c.claim = j.claim
       where j.worker is not null and (c.claim is null or c.worker <> j.worker or not exists (
           select 1 from json_each(c.jobs) n where unhex(replace(n.value, '-', '')) = j.id)) limit $1"],
    "select j.id::text as example from jobs j left join claims c on c.claim = j.claim
     where j.worker is not null and (c.claim is null or c.worker <> j.worker or not exists (
         select 1 from json_array_elements_text(c.jobs) n where n.value::uuid = j.id)) limit $1",
);
const HOLDS_HAVE_HOLDERS: Sql = Sql::new(
    &["select h.scope || ' by ' || hex(h.job) as example from holds h
       left join jobs j on j.id = h.job and j.epoch = h.epoch and j.held <> 0
       left join revocations r on r.job = h.job and r.epoch = h.epoch where j.id is null and r.job is null limit $1"],
    "select h.scope || ' by ' || h.job::text as example from holds h
     left join jobs j on j.id = h.job and j.epoch = h.epoch and j.held
     left join revocations r on r.job = h.job and r.epoch = h.epoch where j.id is null and r.job is null limit $1",
);
const PARKED_FOR_A_REASON: Sql = Sql::new(
    &["select hex(j.id) || ' waits for ' || j.parked as example from jobs j where j.parked is not null
       and not exists (select 1 from holds h where h.tenant = j.tenant and h.scope = j.parked)
       and not exists (select 1 from backoffs b where b.tenant = j.tenant and b.subject = j.subject
           and j.parked = 'backoff ' || b.process || ' ' || b.subject and b.waiting) limit $1"],
    "select j.id::text || ' waits for ' || j.parked as example from jobs j where j.parked is not null
     and not exists (select 1 from holds h where h.tenant = j.tenant and h.scope = j.parked)
     and not exists (select 1 from backoffs b where b.tenant = j.tenant and b.subject = j.subject
         and j.parked = 'backoff ' || b.process || ' ' || b.subject and b.waiting) limit $1",
);
const RUNS_COUNT: Sql = Sql::both(&["select r.run || ' has ' || r.live as example from runs r
     where r.live <> (select count(*) from jobs j where j.tenant = r.tenant and j.run = r.run) limit $1"]);
const JOBS_HAVE_RUNS: Sql = Sql::both(&["select j.run as example from jobs j
     where j.run is not null and not exists (select 1 from runs r where r.tenant = j.tenant and r.run = j.run) limit $1"]);
const RUNS_END: Sql = Sql::both(&["select run || ' is ' || state as example from runs
     where (state = 'running') <> (finished_at is null) or (state = 'running' and live = 0)
         or (state <> 'running' and is_open and live > 0) limit $1"]);
const NEEDS_COUNT: Sql = Sql::both(&["select n.run || ' ' || n.name || ' has ' || n.unmet as example from run_nodes n
     where n.outcome is null and n.unmet <> (select count(*) from run_needs e join run_nodes x on x.job = e.need
         where e.node = n.job and x.outcome is null) limit $1"]);
const NODES_WAIT_FOR_NEEDS: Sql = Sql::both(&["select n.run || ' ' || n.name as example from run_nodes n
     join jobs j on j.id = n.job where j.epoch = 0 and (j.state = 'waiting') <> (n.unmet > 0) limit $1"]);
const NODES_END: Sql = Sql::both(&["select n.run || ' ' || n.name as example from run_nodes n
     join ended e on e.id = n.job where n.outcome is null or (n.outcome <> e.state and n.outcome <> 'skipped')
     union all
     select n.run || ' ' || n.name from run_nodes n join jobs j on j.id = n.job where n.outcome is not null limit $1"]);
const KEYS_HAVE_JOBS: Sql = Sql::new(
    &["select u.queue || ' ' || u.key as example from unique_keys u left join jobs j on j.id = u.job
       where u.until is null and j.id is null limit $1"],
    "select u.queue || ' ' || u.key as example from unique_keys u left join jobs j on j.id = u.job
     where u.until is null and j.id is null limit $1",
);
const ARTIFACTS_HAVE_JOBS: Sql = Sql::new(
    &["select a.name || ' of ' || hex(a.job) as example from artifacts a left join jobs j on j.id = a.job
       left join ended e on e.id = a.job where j.id is null and e.id is null limit $1"],
    "select a.name || ' of ' || a.job::text as example from artifacts a left join jobs j on j.id = a.job
     left join ended e on e.id = a.job where j.id is null and e.id is null limit $1",
);
const LANES_AND_TENANTS: Sql = Sql::new(
    &["select hex(j.id) as example
       from (select id, lane, tenant from jobs union all select id, lane, tenant from ended) j
       left join lanes l on l.lane = j.lane where l.lane is null or l.tenant <> j.tenant limit $1"],
    "select j.id::text as example
     from (select id, lane, tenant from jobs union all select id, lane, tenant from ended) j
     left join lanes l on l.lane = j.lane where l.lane is null or l.tenant <> j.tenant limit $1",
);
const DELIVERIES_STAND: Sql = Sql::new(
    &["select hex(d.id) || ' is ' || d.state as example from deliveries d left join endpoints e on e.id = d.endpoint
       where e.id is null or e.tenant <> d.tenant or (d.state = 'pending') <> (d.due_at is not null)
           or (d.state = 'pending') <> (d.ended_at is null) or (d.leased_at is not null and d.due_at is null)
           or d.tries_left < 0 limit $1"],
    "select d.id::text || ' is ' || d.state as example from deliveries d left join endpoints e on e.id = d.endpoint
     where e.id is null or e.tenant <> d.tenant or (d.state = 'pending') <> (d.due_at is not null)
         or (d.state = 'pending') <> (d.ended_at is null) or (d.leased_at is not null and d.due_at is null)
         or d.tries_left < 0 limit $1",
);

const LETTERS_ARE_RESOLVED_WHOLE: Sql = Sql::new(
    &["select hex(id) as example from dead_letters where (resolved_at is null) <> (resolution is null)
           or (resolved_at is null) <> (resolved_by is null)
           or (replayed_as is not null and coalesce(resolution, '') <> 'replayed')
           or (resolution = 'replayed' and replayed_as is null) limit $1"],
    "select id::text as example from dead_letters where (resolved_at is null) <> (resolution is null)
         or (resolved_at is null) <> (resolved_by is null)
         or (replayed_as is not null and coalesce(resolution, '') <> 'replayed')
         or (resolution = 'replayed' and replayed_as is null) limit $1",
);
// A deadline may end a job between two attempts, or before the first.
const LETTERS_TELL_EVERY_ATTEMPT: Sql = Sql::new(
    &["select hex(d.id) as example from dead_letters d left join ended e on e.id = d.job and d.queue is not null
       where d.attempt_count <> json_array_length(d.attempts) or d.attempt_count < 1
           or e.state <> 'failed' or d.attempt_count < e.attempt
           or d.attempt_count > e.attempt + case when e.error_code = 'deadline' then 1 else 0 end limit $1"],
    "select d.id::text as example from dead_letters d left join ended e on e.id = d.job and d.queue is not null
     where d.attempt_count <> json_array_length(d.attempts) or d.attempt_count < 1
         or e.state <> 'failed' or d.attempt_count < e.attempt
         or d.attempt_count > e.attempt + case when e.error_code = 'deadline' then 1 else 0 end limit $1",
);
const STANDINGS_HAVE_SUBJECTS: Sql = Sql::both(&["select s.process || ' of ' || s.subject as example from standings s
     left join subjects o on o.tenant = s.tenant and o.id = s.subject where o.id is null limit $1"]);
const ACTIVE_IS_UNFINISHED: Sql = Sql::both(&["select s.process || ' of ' || s.subject as example from standings s
     left join jobs j on j.id = s.job and j.tenant = s.tenant and j.subject = s.subject and j.process = s.process
     where s.job is not null and j.id is null limit $1"]);
// A job that the server has canceled counts until its worker has stopped.
const ONE_CLAIM_PER_SUBJECT: Sql = Sql::both(&["select scope as example from holds where scope like 'subject %'
     group by tenant, scope having count(*) > 1 limit $1"]);

// The origin of a triggered job names the trigger and the event. Replays and retries have other origins.
const ONE_JOB_PER_TRIGGER_AND_EVENT: Sql = Sql::both(&["select triggered_by as example from (
         select triggered_by from jobs where triggered_by like 'trigger:%'
         union all select triggered_by from ended where triggered_by like 'trigger:%') made
     group by triggered_by having count(*) > 1 limit $1"]);
const LETTERS_OF_RUNS_ARE_CLOSED: Sql = Sql::new(
    &["select hex(d.id) as example
       from dead_letters d join outbox o on o.trigger_id = d.trigger_id and o.event_id = d.event_id
       limit $1"],
    "select d.id::text as example
     from dead_letters d join outbox o on o.trigger_id = d.trigger_id and o.event_id = d.event_id
     limit $1",
);
// The origin of a line's job names the batch. Manual retries have another origin.
const LINES_HAVE_ONE_JOB: Sql = Sql::both(&["select b.id as example from openai_batches b
     where b.ended_at is null and b.made <>
         (select count(*) from jobs j where j.tenant = b.tenant and j.run = b.id and j.triggered_by like 'batch:%')
         + (select count(*) from ended e where e.tenant = b.tenant and e.run = b.id and e.triggered_by like 'batch:%')
     limit $1"]);
const BATCHES_END_WHOLE: Sql = Sql::both(&["select b.id as example from openai_batches b
     where b.made > b.total or b.completed + b.failed > b.total
         or (b.ended_at is not null) <> (b.status in ('failed', 'completed', 'expired', 'cancelled'))
         or (b.ended_at is not null and b.completed + b.failed <> b.total)
         or (b.status = 'completed' and b.made <> b.total) limit $1"]);

const JOURNALS_HAVE_JOBS: Sql = Sql::new(
    &["select hex(h.job) as example from journals h left join jobs j on j.id = h.job left join ended e on e.id = h.job
       where coalesce(j.tenant, e.tenant, -1) <> h.tenant or (j.id is not null and j.has_journal = 0)
       union all
       select hex(j.id) from jobs j left join journals h on h.job = j.id where j.has_journal <> 0 and h.job is null
       limit $1"],
    "select h.job::text as example from journals h left join jobs j on j.id = h.job left join ended e on e.id = h.job
     where coalesce(j.tenant, e.tenant, -1) <> h.tenant or (j.id is not null and not j.has_journal)
     union all
     select j.id::text from jobs j left join journals h on h.job = j.id where j.has_journal and h.job is null
     limit $1",
);
// Positions and resolutions are numbered from 1 without gaps, so an entry that is lost or recorded twice is found.
const JOURNALS_ARE_WHOLE: Sql = Sql::new(
    &["select hex(coalesce(h.job, n.job)) as example from journals h full join (
           select job, count(*) as entries, count(seq) as resolved, sum(bytes) as bytes, max(position) as last,
               coalesce(max(seq), 0) as last_seq, count(distinct seq) as seqs
           from journal_entries group by job) n on n.job = h.job
       where h.job is null or n.job is null or h.entries <> n.entries or h.resolved <> n.resolved
           or h.bytes <> n.bytes or n.last <> n.entries or n.last_seq <> n.resolved or n.seqs <> n.resolved limit $1"],
    "select coalesce(h.job, n.job)::text as example from journals h full join (
         select job, count(*) as entries, count(seq) as resolved, sum(bytes) as bytes, max(position) as last,
             coalesce(max(seq), 0) as last_seq, count(distinct seq) as seqs
         from journal_entries group by job) n on n.job = h.job
     where h.job is null or n.job is null or h.entries <> n.entries or h.resolved <> n.resolved
         or h.bytes <> n.bytes or n.last <> n.entries or n.last_seq <> n.resolved or n.seqs <> n.resolved limit $1",
);
// A worker that lost its claim cannot record, so later entries have the same epoch or a later one.
const JOURNALS_ARE_FENCED: Sql = Sql::new(
    &["select hex(job) || ' ' || key as example from (
           select e.job, e.key, e.epoch, lag(e.epoch) over (partition by e.job order by e.position) as before,
               coalesce(j.epoch, o.epoch) as epoch_of_job
           from journal_entries e left join jobs j on j.id = e.job left join ended o on o.id = e.job)
       where epoch < before or epoch > epoch_of_job limit $1"],
    "select job::text || ' ' || key as example from (
         select e.job, e.key, e.epoch, lag(e.epoch) over (partition by e.job order by e.position) as before,
             coalesce(j.epoch, o.epoch) as epoch_of_job
         from journal_entries e left join jobs j on j.id = e.job left join ended o on o.id = e.job) entries
     where epoch < before or epoch > epoch_of_job limit $1",
);
const ENTRIES_ARE_RESOLVED_WHOLE: Sql = Sql::new(
    &["select hex(job) || ' ' || key as example from journal_entries
       where (seq is null) <> (resolved_at is null) or (seq is null) <> (result is null and error is null)
           or (result is not null and error is not null) limit $1"],
    "select job::text || ' ' || key as example from journal_entries
     where (seq is null) <> (resolved_at is null) or (seq is null) <> (result is null and error is null)
         or (result is not null and error is not null) limit $1",
);

// A lost wake-up leaves a job waiting although enough of its entries are resolved.
const SUSPENDED_WAIT: Sql = Sql::new(
    &["select hex(h.job) as example from journals h left join jobs j on j.id = h.job and j.state = 'waiting'
       where h.wake_keys is not null and (select count(*) from journal_entries e, json_each(h.wake_keys) k
               where e.job = h.job and e.key = k.value and e.seq is not null) >= h.wake_count
           and j.id is not null limit $1"],
    "select h.job::text as example from journals h join jobs j on j.id = h.job and j.state = 'waiting'
     where h.wake_keys is not null and (select count(*) from journal_entries e
             join json_array_elements_text(h.wake_keys) k on e.key = k
             where e.job = h.job and e.seq is not null) >= h.wake_count limit $1",
);
const CHILDREN_ARE_COUNTED: Sql = Sql::new(
    &["select hex(e.job) || ' ' || e.key as example from journal_entries e
       where (e.pending is not null and e.pending <> (select count(*) from journal_children c
               where c.job = e.job and c.position = e.position and c.state is null))
           or (e.pending is not null and e.seq is not null) limit $1"],
    "select e.job::text || ' ' || e.key as example from journal_entries e
     where (e.pending is not null and e.pending <> (select count(*) from journal_children c
             where c.job = e.job and c.position = e.position and c.state is null))
         or (e.pending is not null and e.seq is not null) limit $1",
);
const CHILDREN_END_ONCE: Sql = Sql::new(
    &["select hex(c.child) as example from journal_children c left join jobs j on j.id = c.child
       where (c.state is null) <> (j.id is not null) limit $1"],
    "select c.child::text as example from journal_children c left join jobs j on j.id = c.child
     where (c.state is null) <> (j.id is not null) limit $1",
);

const CHECKS: &[InvariantCheck] = &[
    InvariantCheck { promise: "a job is live or ended, never both", sql: LIVE_AND_ENDED },
    InvariantCheck { promise: "a live job's columns agree with its state", sql: STATE_AND_COLUMNS },
    InvariantCheck { promise: "attempts stay within their bounds", sql: ATTEMPTS_IN_BOUNDS },
    InvariantCheck { promise: "a job's state equals the fold of its history", sql: HISTORY_FOLDS },
    InvariantCheck { promise: "an ended job is final and complete", sql: ENDED_IS_FINAL },
    InvariantCheck { promise: "a claim's count of remaining jobs is correct", sql: CLAIMS_COUNT },
    InvariantCheck { promise: "a claimed job belongs to a claim of its worker", sql: CLAIMED_HAVE_CLAIMS },
    InvariantCheck { promise: "every hold has a holder", sql: HOLDS_HAVE_HOLDERS },
    InvariantCheck { promise: "a run counts its live jobs", sql: RUNS_COUNT },
    InvariantCheck { promise: "the run of a job exists", sql: JOBS_HAVE_RUNS },
    InvariantCheck { promise: "a run ends with its last job", sql: RUNS_END },
    InvariantCheck { promise: "a node counts the needs that have not ended", sql: NEEDS_COUNT },
    InvariantCheck { promise: "a node waits exactly while it has needs", sql: NODES_WAIT_FOR_NEEDS },
    InvariantCheck { promise: "a node ends with its job", sql: NODES_END },
    InvariantCheck { promise: "a parked job waits for an existing hold or backoff", sql: PARKED_FOR_A_REASON },
    InvariantCheck { promise: "one live claim per subject and process", sql: ONE_CLAIM_PER_SUBJECT },
    InvariantCheck { promise: "an eligibility row belongs to a subject", sql: STANDINGS_HAVE_SUBJECTS },
    InvariantCheck { promise: "an active subject has an unfinished job", sql: ACTIVE_IS_UNFINISHED },
    InvariantCheck { promise: "a unique key belongs to a live job", sql: KEYS_HAVE_JOBS },
    InvariantCheck { promise: "an artifact belongs to a job", sql: ARTIFACTS_HAVE_JOBS },
    InvariantCheck { promise: "a job and its lane have the same tenant", sql: LANES_AND_TENANTS },
    InvariantCheck { promise: "a resolved dead letter records how, by whom and when", sql: LETTERS_ARE_RESOLVED_WHOLE },
    InvariantCheck { promise: "a dead letter lists every attempt of its job", sql: LETTERS_TELL_EVERY_ATTEMPT },
    InvariantCheck {
        promise: "a delivery has consistent state columns and an endpoint of its tenant",
        sql: DELIVERIES_STAND,
    },
    InvariantCheck { promise: "an event makes at most one job per trigger", sql: ONE_JOB_PER_TRIGGER_AND_EVENT },
    InvariantCheck { promise: "a run with a dead letter has no outbox row", sql: LETTERS_OF_RUNS_ARE_CLOSED },
    InvariantCheck { promise: "each started line of an open batch has exactly one job", sql: LINES_HAVE_ONE_JOB },
    InvariantCheck { promise: "an ended batch accounts for every line", sql: BATCHES_END_WHOLE },
    InvariantCheck { promise: "a journal belongs to a job, and the job knows it", sql: JOURNALS_HAVE_JOBS },
    InvariantCheck { promise: "a journal has each of its entries once", sql: JOURNALS_ARE_WHOLE },
    InvariantCheck { promise: "a journal has no entry with a stale epoch", sql: JOURNALS_ARE_FENCED },
    InvariantCheck { promise: "a resolved entry has a result or an error", sql: ENTRIES_ARE_RESOLVED_WHOLE },
    InvariantCheck { promise: "a suspended job waits for something that has not happened", sql: SUSPENDED_WAIT },
    InvariantCheck { promise: "an entry counts its children that have not ended", sql: CHILDREN_ARE_COUNTED },
    InvariantCheck { promise: "the end of a child is recorded with it", sql: CHILDREN_END_ONCE },
];
