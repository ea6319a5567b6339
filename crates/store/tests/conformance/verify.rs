//! X14: every check finds the one row that breaks its promise, and no other check takes that row for its own.

use std::collections::BTreeSet;

use domain::JobId;
use store::deliveries::{NewDelivery, insert};
use store::jobs::enqueue::NewJob;
use store::jobs::settle::End;
use store::tx::{Operation, Tx};
use store::{Store, StoreError};
use testkit::{Database, job, on_both};

use crate::subjects::on;
use crate::support::*;

/// A promise, what breaks it, and what mends it again. Words in capitals stand for the jobs of a sound database.
struct Case {
    promise: &'static str,
    breaks: &'static str,
    mends: &'static str,
}

const fn case(promise: &'static str, breaks: &'static str, mends: &'static str) -> Case {
    Case { promise, breaks, mends }
}

const CASES: &[Case] = &[
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
        "the state is the fold of the history (X1)",
        "insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
         select id, 0, 'failed', tenant, lane, updated_at, created_at, 0 from jobs where id = WORKING",
        "delete from history where job = WORKING",
    ),
    case(
        "the state is the fold of the history (X1)",
        "update history set event = 'released' where job = SNOOZED",
        "update history set event = 'snoozed' where job = SNOOZED",
    ),
    case(
        "an ended job is final and complete",
        "update ended set worker = null where id = SUCCEEDED",
        "update ended set worker = id where id = SUCCEEDED",
    ),
    case(
        "a claim knows how many jobs it has left",
        "update claims set remaining = 2 where claim = (select claim from jobs where id = WORKING)",
        "update claims set remaining = 1 where claim = (select claim from jobs where id = WORKING)",
    ),
    case(
        "a claimed job belongs to a claim of its worker (X3)",
        "update claims set worker = claim where claim = (select claim from jobs where id = WORKING)",
        "update claims set worker = (select worker from jobs where id = WORKING)",
    ),
    case(
        // The claim is its worker's, and hands out another job.
        "a claimed job belongs to a claim of its worker (X3)",
        "update claims set remaining = 0 where claim = (select claim from jobs where id = WORKING);
         update jobs set claim = (select claim from claims where remaining = 1) where id = WORKING",
        "update jobs set claim = (select claim from claims where remaining = 0) where id = WORKING;
         update claims set remaining = 1",
    ),
    case(
        "every hold has a holder (X4)",
        "insert into holds (tenant, scope, job, epoch) values (2, 'key q nobody', QUEUED, 77)",
        "delete from holds where epoch = 77",
    ),
    case(
        "a parked job waits for something that is held, or a backoff",
        "update jobs set parked = 'key q nobody' where id = QUEUED",
        "update jobs set parked = null where id = QUEUED",
    ),
    case(
        "one live claim per subject and process (W2)",
        "update holds set scope = 'subject wipe m-1' where job = OTHER",
        "update holds set scope = 'subject wipe m-2' where job = OTHER",
    ),
    case(
        "a standing belongs to a subject",
        "insert into standings (tenant, subject, process) values (2, 'nobody', 'wipe')",
        "delete from standings",
    ),
    case(
        "an active subject has its unfinished job (W7)",
        "insert into subjects (tenant, id, facts, created_at, updated_at)
         select tenant, 'm-9', '{}', created_at, created_at from jobs where id = QUEUED;
         insert into standings (tenant, subject, process, job) values (2, 'm-9', 'wipe', SUCCEEDED)",
        "delete from standings; delete from subjects",
    ),
    case(
        "a unique key belongs to a live job (Q3)",
        "insert into unique_keys (tenant, queue, key, job) values (2, 'q', 'stale', SUCCEEDED)",
        "delete from unique_keys",
    ),
    case(
        "an artifact belongs to a job (Q14)",
        "insert into artifacts (job, name, tenant, size, content_type, sha256, created_at)
         select STRANGER, 'log', tenant, 0, 'text/plain', NO_BYTES, created_at from jobs where id = QUEUED",
        "delete from artifacts",
    ),
    case(
        "a job and its lane have one tenant (X6)",
        "update jobs set tenant = 1 where id = QUEUED",
        "update jobs set tenant = 2 where id = QUEUED",
    ),
    case(
        "a dead letter is resolved whole: how, by whom and when (T7)",
        "update dead_letters set resolution = 'ignored'",
        "update dead_letters set resolution = null",
    ),
    case(
        "a dead letter is resolved whole: how, by whom and when (T7)",
        "update dead_letters set replayed_as = id",
        "update dead_letters set replayed_as = null",
    ),
    case(
        "a dead letter tells every attempt of its job (T6)",
        "update dead_letters set attempt_count = 2",
        "update dead_letters set attempt_count = 1",
    ),
    case(
        "a delivery waits, is under way or has ended, at an endpoint of its tenant (Q10)",
        "update deliveries set tries_left = -1",
        "update deliveries set tries_left = 1",
    ),
    case(
        "an event makes at most one job per trigger (T4)",
        "update jobs set triggered_by = 'trigger:t:e' where id in (QUEUED, SNOOZED)",
        "update jobs set triggered_by = null",
    ),
    case(
        "what became a dead letter is not started any more (T6)",
        "update dead_letters set trigger_id = id;
         insert into outbox (id, tenant, trigger_id, event_id, source, op, depth, event, data, created_at, due_at, attempts)
         select id, tenant, id, event_id, source, op, depth, '{}', '{}', created_at, created_at, '[]' from dead_letters",
        "delete from outbox; update dead_letters set trigger_id = null",
    ),
    case(
        "each line of a batch under way has one job (R8)",
        "insert into openai_batches (id, tenant, endpoint, input_file, completion_window, status, errors, total, made,
             principal, created_at, expires_at)
         select 'batch-1', tenant, '/v1/embeddings', 'file-1', '24h', 'in_progress', '[]', 1, 1, principal, created_at,
             created_at
         from jobs where id = QUEUED",
        "delete from openai_batches",
    ),
    case(
        "a batch that has ended tells of every line (R8)",
        "insert into openai_batches (id, tenant, endpoint, input_file, completion_window, status, errors, total, made,
             principal, created_at, expires_at)
         select 'batch-1', tenant, '/v1/embeddings', 'file-1', '24h', 'completed', '[]', 0, 0, principal, created_at,
             created_at
         from jobs where id = QUEUED",
        "delete from openai_batches",
    ),
    case(
        "kept counters are right",
        "insert into counter_deltas (tenant, queue, scheduled, queued, running, succeeded, failed, canceled, swaps_made,
             swaps_avoided)
         values (2, 'q', 77, 0, 0, 0, 0, 0, 0, 0)",
        "delete from counter_deltas where scheduled = 77",
    ),
];

/// A request that is owed.
struct Owe;

impl Operation for Owe {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        insert(tx, vec![NewDelivery::post(T, "https://hooks.example/".into(), "{}".into())]).await.map(drop)
    }
}

/// A sound database with something of everything, and what the words of the cases stand for in it.
async fn words(db: &Database) -> Vec<(&'static str, String)> {
    let store = &db.store;
    let worker = patient(store).await;
    let mut ids: Vec<(&'static str, JobId)> = Vec::new();
    let mut ended = async |word, new: NewJob, end: End| {
        let id = push(store, new).await;
        let claimed = claim_one(store, worker).await;
        settle(store, worker, id, claimed.epoch, end).await;
        ids.push((word, id));
    };
    ended("SUCCEEDED", job("q"), End::Finish(None)).await;
    ended("FAILED", NewJob { max_attempts: 1, ..job("q") }, End::Fail(boom())).await;
    ended("SNOOZED", job("q"), End::Snooze { delay_ms: 3_600_000 }).await;
    for (word, subject) in [("WORKING", "m-1"), ("OTHER", "m-2")] {
        ids.push((word, push(store, on(subject, "wipe")).await));
        claim_one(store, worker).await;
    }
    ids.push(("QUEUED", push(store, job("q")).await));
    ids.push(("STRANGER", JobId::new(store::clock::new_uuid(db.clock.now()))));
    store.write(Owe).await.expect("owes a request");
    let is_postgres = store.is_postgres();
    let literal = |id: JobId| match is_postgres {
        true => format!("'{id}'::uuid"),
        false => format!("x'{}'", id.uuid().simple()),
    };
    let no_bytes = if is_postgres { "''::bytea" } else { "x''" };
    let ids = ids.into_iter().map(|(word, id)| (word, literal(id)));
    ids.chain([("NO_BYTES", no_bytes.to_owned())]).collect()
}

async fn found(store: &Store) -> Vec<&'static str> {
    let findings = store.verify().await.expect("verifies").findings;
    findings.into_iter().map(|finding| finding.promise).collect()
}

#[tokio::test]
async fn x14_each_check_finds_the_row_that_breaks_its_promise_and_no_other_check_does() {
    on_both(async |db| {
        let words = words(&db).await;
        let run = async |text: &str| {
            let text = words.iter().fold(text.to_owned(), |text, (word, means)| text.replace(*word, means));
            run_sql(&db.store, &text).await.unwrap_or_else(|error| panic!("{text}: {error:?}"));
        };
        assert_eq!(found(&db.store).await, Vec::<&str>::new(), "it is sound");
        for Case { promise, breaks, mends } in CASES {
            run(breaks).await;
            assert_eq!(found(&db.store).await, [*promise], "{breaks}");
            run(mends).await;
            assert_eq!(found(&db.store).await, Vec::<&str>::new(), "{mends}");
        }
        let promises: BTreeSet<&str> = CASES.iter().map(|case| case.promise).collect();
        assert_eq!(promises.len(), db.store.verify().await.expect("verifies").checks, "each check has a case");
    })
    .await;
}
