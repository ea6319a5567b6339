//! `verify`: each check finds exactly the row that breaks its promise.

use std::collections::BTreeSet;

use domain::JobId;
use store::db::tx::{Operation, Tx};
use store::queue::enqueue::NewJob;
use store::queue::settle::End;
use store::triggers::deliveries::{NewDelivery, insert};
use store::{Store, StoreError};
use testkit::{Database, job, on_both};

use crate::fleet::subjects::on;
use crate::support::*;

/// A check, the SQL that breaks it and the SQL that repairs it. Capitalized names are placeholders for jobs.
struct Case {
    promise: &'static str,
    breaks: &'static str,
    repair: &'static str,
}

const fn case(promise: &'static str, breaks: &'static str, repair: &'static str) -> Case {
    Case { promise, breaks, repair }
}

const CASES: &[Case] = &[
    case(
        "a run counts its live jobs",
        "insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal,
             depth, version, created_at)
         select tenant, 'r', 'running', 'cancel', true, 5, 0, 0, 0, 0, principal, 0, 1, created_at from jobs where id = QUEUED",
        "delete from runs",
    ),
    case(
        "the run of a job exists",
        "update jobs set run = 'nowhere' where id = QUEUED",
        "update jobs set run = null where id = QUEUED",
    ),
    case(
        "a run ends with its last job",
        "insert into runs (tenant, run, state, on_failure, is_open, live, succeeded, failed, canceled, skipped, principal,
             depth, version, created_at)
         select tenant, 'r', 'running', 'cancel', true, 0, 0, 0, 0, 0, principal, 0, 1, created_at from jobs where id = QUEUED",
        "delete from runs",
    ),
    case(
        "a node counts the needs that have not ended",
        "insert into run_nodes (tenant, run, name, job, condition, unmet, failed)
         select tenant, 'r', 'a', id, 'success', 1, 0 from jobs where id = WORKING",
        "delete from run_nodes",
    ),
    case(
        "a node waits exactly while it has needs",
        "insert into run_nodes (tenant, run, name, job, condition, unmet, failed)
         select tenant, 'r', 'a', id, 'success', 0, 0 from jobs where id = WORKING;
         insert into run_nodes (tenant, run, name, job, condition, unmet, failed)
         select tenant, 'r', 'b', id, 'success', 1, 0 from jobs where id = QUEUED;
         insert into run_needs (need, node, tenant, run)
         select a.job, b.job, a.tenant, 'r' from run_nodes a, run_nodes b where a.name = 'a' and b.name = 'b'",
        "delete from run_needs; delete from run_nodes",
    ),
    case(
        "a node ends with its job",
        "insert into run_nodes (tenant, run, name, job, condition, unmet, failed)
         select tenant, 'r', 'a', id, 'success', 0, 0 from ended where id = SUCCEEDED",
        "delete from run_nodes",
    ),
    case(
        "a job is live or ended, never both",
        "insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
             created_at, principal, payload)
         select id, tenant, lane, 'canceled', run_at, 0, 0, max_attempts, updated_at, depth, version, created_at,
             principal, payload
         from jobs where id = QUEUED",
        "delete from ended where id = QUEUED",
    ),
    case(
        "a live job's columns agree with its state",
        "update jobs set due_at = run_at where id = QUEUED",
        "update jobs set due_at = null where id = QUEUED",
    ),
    case(
        "attempts stay within their bounds",
        "update jobs set max_attempts = 0 where id = WORKING",
        "update jobs set max_attempts = 3 where id = WORKING",
    ),
    case(
        "a job's state equals the fold of its history",
        "insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
         select id, 0, 'failed', tenant, lane, updated_at, created_at, 0 from jobs where id = WORKING",
        "delete from history where job = WORKING",
    ),
    case(
        "a job's state equals the fold of its history",
        "update history set event = 'released' where job = SNOOZED",
        "update history set event = 'snoozed' where job = SNOOZED",
    ),
    case(
        "an ended job is final and complete",
        "update ended set worker = null where id = SUCCEEDED",
        "update ended set worker = id where id = SUCCEEDED",
    ),
    case(
        "a claim's count of remaining jobs is correct",
        "update claims set remaining = 2 where claim = (select claim from jobs where id = WORKING)",
        "update claims set remaining = 1 where claim = (select claim from jobs where id = WORKING)",
    ),
    case(
        "a claimed job belongs to a claim of its worker",
        "update claims set worker = claim where claim = (select claim from jobs where id = WORKING)",
        "update claims set worker = (select worker from jobs where id = WORKING)",
    ),
    case(
        // The claim belongs to the worker but contains another job.
        "a claimed job belongs to a claim of its worker",
        "update claims set remaining = 0 where claim = (select claim from jobs where id = WORKING);
         update jobs set claim = (select claim from claims where remaining = 1) where id = WORKING",
        "update jobs set claim = (select claim from claims where remaining = 0) where id = WORKING;
         update claims set remaining = 1",
    ),
    case(
        "every hold has a holder",
        "insert into holds (tenant, scope, job, epoch) values (2, 'key q absent', QUEUED, 77)",
        "delete from holds where epoch = 77",
    ),
    case(
        "a parked job waits for an existing hold or backoff",
        "update jobs set parked = 'key q absent' where id = QUEUED",
        "update jobs set parked = null where id = QUEUED",
    ),
    case(
        "one live claim per subject and process",
        "update holds set scope = 'subject wipe m-1' where job = OTHER",
        "update holds set scope = 'subject wipe m-2' where job = OTHER",
    ),
    case(
        "an eligibility row belongs to a subject",
        "insert into standings (tenant, subject, process) values (2, 'absent', 'wipe')",
        "delete from standings",
    ),
    case(
        "an active subject has an unfinished job",
        "insert into subjects (tenant, id, facts, created_at, updated_at)
         select tenant, 'm-9', '{}', created_at, created_at from jobs where id = QUEUED;
         insert into standings (tenant, subject, process, job) values (2, 'm-9', 'wipe', SUCCEEDED)",
        "delete from standings; delete from subjects",
    ),
    case(
        "a unique key belongs to a live job",
        "insert into unique_keys (tenant, queue, key, job) values (2, 'q', 'stale', SUCCEEDED)",
        "delete from unique_keys",
    ),
    case(
        "an artifact belongs to a job",
        "insert into artifacts (job, name, tenant, size, content_type, sha256, created_at)
         select STRANGER, 'log', tenant, 0, 'text/plain', NO_BYTES, created_at from jobs where id = QUEUED",
        "delete from artifacts",
    ),
    case(
        "a job and its lane have the same tenant",
        "update jobs set tenant = 1 where id = QUEUED",
        "update jobs set tenant = 2 where id = QUEUED",
    ),
    case(
        "a resolved dead letter records how, by whom and when",
        "update dead_letters set resolution = 'ignored'",
        "update dead_letters set resolution = null",
    ),
    case(
        "a resolved dead letter records how, by whom and when",
        "update dead_letters set replayed_as = id",
        "update dead_letters set replayed_as = null",
    ),
    case(
        "a dead letter lists every attempt of its job",
        "update dead_letters set attempt_count = 2",
        "update dead_letters set attempt_count = 1",
    ),
    case(
        "a delivery has consistent state columns and an endpoint of its tenant",
        "update deliveries set tries_left = -1",
        "update deliveries set tries_left = 1",
    ),
    case(
        "an event makes at most one job per trigger",
        "update jobs set triggered_by = 'trigger:t:e' where id in (QUEUED, SNOOZED)",
        "update jobs set triggered_by = null",
    ),
    case(
        "a run with a dead letter has no outbox row",
        "update dead_letters set trigger_id = id;
         insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
         select id, tenant, id, event_id, source, op, depth, '{}', '{}', created_at, created_at, '[]' from dead_letters",
        "delete from outbox; update dead_letters set trigger_id = null",
    ),
    case(
        "each started line of an open batch has exactly one job",
        "insert into openai_batches (id, tenant, endpoint, input_file, completion_window, status, errors, total, made,
             principal, created_at, expires_at)
         select 'batch-1', tenant, '/v1/embeddings', 'file-1', '24h', 'in_progress', '[]', 1, 1, principal, created_at,
             created_at
         from jobs where id = QUEUED",
        "delete from openai_batches",
    ),
    case(
        "an ended batch accounts for every line",
        "insert into openai_batches (id, tenant, endpoint, input_file, completion_window, status, errors, total, made,
             principal, created_at, expires_at)
         select 'batch-1', tenant, '/v1/embeddings', 'file-1', '24h', 'completed', '[]', 0, 0, principal, created_at,
             created_at
         from jobs where id = QUEUED",
        "delete from openai_batches",
    ),
    case(
        "a journal belongs to a job, and the job knows it",
        "insert into journals (job, tenant, entries, resolved, bytes) values (STRANGER, 2, 1, 0, 1);
         insert into journal_entries (job, position, tenant, key, op, epoch, attempt, bytes, created_at)
         select STRANGER, 1, 2, 'a', 'step', 0, 1, 1, created_at from jobs where id = QUEUED",
        "delete from journals; delete from journal_entries",
    ),
    case(
        "a journal belongs to a job, and the job knows it",
        "update jobs set has_journal = TRUE where id = QUEUED",
        "update jobs set has_journal = FALSE where id = QUEUED",
    ),
    case(
        "a journal has each of its entries once",
        "insert into journal_entries (job, position, tenant, key, op, epoch, attempt, bytes, created_at)
         select SUCCEEDED, 1, 2, 'a', 'step', 0, 1, 1, created_at from jobs where id = QUEUED",
        "delete from journal_entries",
    ),
    case(
        "a journal has no entry with a stale epoch",
        "insert into journals (job, tenant, entries, resolved, bytes) values (SUCCEEDED, 2, 2, 0, 2);
         insert into journal_entries (job, position, tenant, key, op, epoch, attempt, bytes, created_at)
         select SUCCEEDED, 1, 2, 'a', 'step', 1, 1, 1, created_at from jobs where id = QUEUED;
         insert into journal_entries (job, position, tenant, key, op, epoch, attempt, bytes, created_at)
         select SUCCEEDED, 2, 2, 'b', 'step', 0, 1, 1, created_at from jobs where id = QUEUED",
        "delete from journals; delete from journal_entries",
    ),
    case(
        "a resolved entry has a result or an error",
        "insert into journals (job, tenant, entries, resolved, bytes) values (SUCCEEDED, 2, 1, 1, 1);
         insert into journal_entries (job, position, tenant, key, op, seq, epoch, attempt, bytes, created_at, resolved_at)
         select SUCCEEDED, 1, 2, 'a', 'step', 1, 1, 1, 1, created_at, created_at from jobs where id = QUEUED",
        "delete from journals; delete from journal_entries",
    ),
    case(
        "a suspended job waits for something that has not happened",
        "insert into journals (job, tenant, entries, resolved, bytes, wake_keys, wake_count)
         values (QUEUED, 2, 1, 1, 1, '[\"a\"]', 1);
         insert into journal_entries (job, position, tenant, key, op, seq, epoch, attempt, bytes, created_at, resolved_at,
             result)
         select id, 1, 2, 'a', 'step', 1, 0, 1, 1, created_at, created_at, '1' from jobs where id = QUEUED;
         update jobs set has_journal = TRUE, state = 'waiting', due_at = run_at where id = QUEUED;
         insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
         select id, 0, 'suspended', tenant, lane, updated_at, created_at, 0 from jobs where id = QUEUED;
         insert into counter_deltas (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided, waiting)
         values (2, 'q', 0, -1, 0, 0, 0, 0, 0, 0, 1)",
        "delete from journals; delete from journal_entries; delete from history where job = QUEUED;
         update jobs set has_journal = FALSE, state = 'queued', due_at = null where id = QUEUED;
         delete from counter_deltas where waiting = 1",
    ),
    case(
        "an entry counts its children that have not ended",
        "insert into journals (job, tenant, entries, resolved, bytes) values (SUCCEEDED, 2, 1, 0, 1);
         insert into journal_entries (job, position, tenant, key, op, epoch, attempt, bytes, created_at, pending)
         select SUCCEEDED, 1, 2, 'a', 'child', 0, 1, 1, created_at, 1 from jobs where id = QUEUED",
        "delete from journals; delete from journal_entries",
    ),
    case(
        "the end of a child is recorded with it",
        "insert into journal_children (child, tenant, job, position, number) values (SUCCEEDED, 2, QUEUED, 1, 1)",
        "delete from journal_children",
    ),
    case(
        "the stored counters equal the counted jobs",
        "insert into counter_deltas (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided)
         values (2, 'q', 77, 0, 0, 0, 0, 0, 0, 0)",
        "delete from counter_deltas where scheduled = 77",
    ),
];

/// Inserts a pending delivery.
struct EnqueueDelivery;

impl Operation for EnqueueDelivery {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        insert(tx, vec![NewDelivery::post(T, "https://hooks.example/".into(), "{}".into())]).await.map(drop)
    }
}

/// Fills a database with consistent rows of every kind. Returns the values of the placeholders.
async fn replacements(db: &Database) -> Vec<(&'static str, String)> {
    let store = &db.store;
    let worker = register_with_long_lease(store).await;
    let mut ids: Vec<(&'static str, JobId)> = Vec::new();
    let mut ended = async |placeholder, new: NewJob, end: End| {
        let id = push(store, new).await;
        let claimed = claim_one(store, worker).await;
        settle(store, worker, id, claimed.epoch, end).await;
        ids.push((placeholder, id));
    };
    ended("SUCCEEDED", job("q"), End::Finish(None)).await;
    ended("FAILED", NewJob { max_attempts: 1, ..job("q") }, End::Fail(boom())).await;
    ended("SNOOZED", job("q"), End::Snooze { delay_ms: 3_600_000 }).await;
    for (placeholder, subject) in [("WORKING", "m-1"), ("OTHER", "m-2")] {
        ids.push((placeholder, push(store, on(subject, "wipe")).await));
        claim_one(store, worker).await;
    }
    ids.push(("QUEUED", push(store, job("q")).await));
    ids.push(("STRANGER", JobId::new(store::db::clock::new_uuid(db.clock.now()))));
    store.write(EnqueueDelivery).await.expect("inserts a delivery");
    let is_postgres = store.is_postgres();
    let literal = |id: JobId| match is_postgres {
        true => format!("'{id}'::uuid"),
        false => format!("x'{}'", id.uuid().simple()),
    };
    let no_bytes = if is_postgres { "''::bytea" } else { "x''" };
    let ids = ids.into_iter().map(|(placeholder, id)| (placeholder, literal(id)));
    ids.chain([("NO_BYTES", no_bytes.to_owned())]).collect()
}

async fn failed_checks(store: &Store) -> Vec<&'static str> {
    let findings = store.verify().await.expect("verifies").findings;
    findings.into_iter().map(|finding| finding.promise).collect()
}

/// Requirement X14.
#[tokio::test]
async fn each_verify_check_finds_exactly_the_row_that_breaks_it() {
    on_both(async |db| {
        let replacements = replacements(&db).await;
        let run = async |text: &str| {
            let text = replacements
                .iter()
                .fold(text.to_owned(), |text, (placeholder, means)| text.replace(*placeholder, means));
            run_sql(&db.store, &text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        };
        assert_eq!(failed_checks(&db.store).await, Vec::<&str>::new(), "the database is consistent");
        for Case { promise, breaks, repair } in CASES {
            run(breaks).await;
            assert_eq!(failed_checks(&db.store).await, [*promise], "{breaks}");
            run(repair).await;
            assert_eq!(failed_checks(&db.store).await, Vec::<&str>::new(), "{repair}");
        }
        let promises: BTreeSet<&str> = CASES.iter().map(|case| case.promise).collect();
        assert_eq!(promises.len(), db.store.verify().await.expect("verifies").checks, "each check has a case");
    })
    .await;
}
