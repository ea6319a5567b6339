//! `windlass.enqueue(…)` inside a transaction of the caller.

use domain::{JobId, JobState};
use testkit::{Database, name, on_postgres};
use tokio_postgres::Client;
use uuid::Uuid;

use crate::support::*;

async fn enqueue(client: &Client, arguments: &str) -> Result<JobId, tokio_postgres::Error> {
    let row = client.query_one(&format!("select windlass.enqueue({arguments})"), &[]).await?;
    Ok(JobId::new(row.get::<_, Uuid>(0)))
}

async fn jobs(db: &Database) -> i64 {
    number(&db.store, "select count(*) from jobs").await
}

/// Requirement Q4.
#[tokio::test]
async fn the_job_exists_exactly_when_the_callers_transaction_commits() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        psql.client.batch_execute("begin").await.expect("begins");
        enqueue(&psql.client, "'q', 'k', '{\"a\": 1}'").await.expect("enqueues");
        assert_eq!(jobs(&db).await, 0, "the job is invisible before the commit");
        psql.client.batch_execute("rollback").await.expect("rolls back");
        for table in ["jobs", "lanes", "counter_deltas", "unique_keys"] {
            assert_eq!(number(&db.store, &format!("select count(*) from {table}")).await, 0, "{table}");
        }
        psql.client.batch_execute("begin").await.expect("begins");
        let id = enqueue(&psql.client, "'q', 'k', '{\"a\": 1}'").await.expect("enqueues");
        psql.client.batch_execute("commit").await.expect("commits");
        let job = get(&db.store, id).await;
        assert_eq!((job.state, job.payload.as_str(), job.max_attempts), (JobState::Queued, "{\"a\": 1}", 3));
        assert_eq!((job.principal.as_str(), job.triggered_by.as_deref()), ("postgres", Some("sql")));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn a_job_enqueued_by_sql_is_claimed_and_finished() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let arguments = "queue => 'q', kind => 'k', payload => '7', affinity => 'llama', priority => 3, subject => 'm',
            process => 'p', run => 'r', concurrency_key => 'c', max_attempts => 2, timeout_s => 60, tags => '{x,y}'";
        let id = enqueue(&psql.client, arguments).await.expect("enqueues");
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!((claimed.id, claimed.payload.as_str(), claimed.priority), (id, "7", 3));
        assert_eq!((claimed.subject.as_deref(), claimed.timeout_s, claimed.max_attempts), (Some("m"), Some(60), 2));
        let second = enqueue(&psql.client, arguments).await.expect("enqueues");
        assert!(claim(&db.store, worker, 1).await.is_empty(), "the subject is busy");
        finish(&db.store, worker, &claimed).await;
        assert_eq!(claim_one(&db.store, worker).await.id, second);
        assert_eq!(get(&db.store, id).await.tags, ["x", "y"]);
        let counts = db.store.queue(T, &name("q")).await.expect("reads").expect("exists").counts;
        assert_eq!((counts.queued, counts.running, counts.succeeded), (0, 1, 1));
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn the_sql_function_returns_uuid_version_7_with_the_current_time() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let before = db.clock.now().millis() as u64;
        for _ in 0..50 {
            let id = enqueue(&psql.client, "'q', 'k'").await.expect("enqueues").uuid();
            assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
            let (seconds, nanos) = id.get_timestamp().expect("version 7 has one").to_unix();
            let millis = seconds * 1_000 + u64::from(nanos) / 1_000_000;
            assert!((before.saturating_sub(1)..before + 60_000).contains(&millis), "{id}");
        }
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn the_sql_function_schedules_a_job_for_later() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = enqueue(&psql.client, "'q', 'k', run_at => now() + interval '1 hour'").await.expect("enqueues");
        assert_eq!(state(&db.store, id).await, "scheduled");
        db.clock.advance_ms(3_600_000 - 60_000);
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 0);
        db.clock.advance_ms(61_000);
        assert_eq!(db.store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(state(&db.store, id).await, "queued");
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn a_unique_key_is_shared_by_the_sql_function_and_the_store() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = enqueue(&psql.client, "'q', 'k', unique_key => 'u'").await.expect("enqueues");
        assert_eq!(enqueue(&psql.client, "'q', 'k', unique_key => 'u'").await.expect("enqueues"), id);
        let unique = store::queue::enqueue::Unique { key: "u".into(), for_s: None };
        let extras = store::queue::enqueue::Extras { unique: Some(unique), ..Default::default() };
        let again = push_all(
            &db.store,
            vec![store::queue::enqueue::NewJob { extras: Some(Box::new(extras)), ..testkit::job("q") }],
        )
        .await;
        assert_eq!((again[0].id, again[0].existing), (id, true));
        assert_eq!(jobs(&db).await, 1);
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        assert_ne!(
            enqueue(&psql.client, "'q', 'k', unique_key => 'u'").await.expect("enqueues"),
            id,
            "the key is free"
        );
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Arguments with a payload that nests `levels` times `open`.
fn nested(open: &str, levels: usize, close: &str) -> String {
    format!("'q', 'k', '{}1{}'", open.repeat(levels), close.repeat(levels))
}

/// Brackets in strings do not count, and neither do arrays beside each other.
/// Requirement Q4.
#[tokio::test]
async fn the_sql_function_accepts_payloads_up_to_the_nesting_limit() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let text = format!("'q', 'k', to_json('{}\\\"[{{'::text)", "[".repeat(200));
        let beside = format!("'q', 'k', '[{}[]]'", "[],{\"a\": 1},".repeat(200));
        let at_1970 = "'q', 'k', run_at => 'epoch'".to_owned();
        for arguments in [nested("[", 100, "]"), nested("{\"a\": [", 50, "]}"), text, beside, at_1970] {
            enqueue(&psql.client, &arguments).await.expect("enqueues");
        }
        assert_eq!(jobs(&db).await, 5);
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn invalid_arguments_of_the_sql_function_are_rejected() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let long = "x".repeat(257);
        let name = "n".repeat(129);
        for arguments in [
            "null, 'k'".into(),
            "'', 'k'".into(),
            "'a b', 'k'".into(),
            "'windlass.runtimes', 'k'".into(),
            "'..', 'k'".into(),
            "'q', 'k', tags => array['.']".into(),
            "'q', 'k', unique_for_s => 5".into(),
            "'q', null".into(),
            "'q', 'größe'".into(),
            format!("'{name}', 'k'"),
            "'q', 'k', max_attempts => 0".into(),
            "'q', 'k', max_attempts => 1001".into(),
            "'q', 'k', max_attempts => null".into(),
            "'q', 'k', priority => 40000".into(),
            "'q', 'k', priority => null".into(),
            "'q', 'k', timeout_s => 0".into(),
            "'q', 'k', timeout_s => 2592001".into(),
            "'q', 'k', unique_key => 'u', unique_for_s => 0".into(),
            "'q', 'k', run_at => 'infinity'".into(),
            "'q', 'k', run_at => '-infinity'".into(),
            "'q', 'k', run_at => '1969-12-31T23:59:59Z'".into(),
            "'q', 'k', run_at => now() + interval '11 years'".into(),
            nested("[", 101, "]"),
            nested("{\"a\": [", 51, "]}"),
            "'q', 'k', subject => ''".into(),
            "'q', 'k', affinity => ' padded'".into(),
            "'q', 'k', process => 'a b'".into(),
            "'q', 'k', process => 'scrub'".into(),
            "'q', 'k', subject => 'runtime/llama'".into(),
            format!("'q', 'k', subject => '{long}'"),
            format!("'q', 'k', tags => array['{long}']"),
            "'q', 'k', tags => array['']".into(),
            "'q', 'k', tags => array[null]".into(),
            "'q', 'k', tags => array(select 't' || g from generate_series(1, 33) g)".into(),
            "'q', 'k', to_json(repeat('x', 1048576))".into(),
        ] {
            let error = enqueue(&psql.client, &arguments).await.expect_err(&arguments);
            let code = error.code().map(|state| state.code().to_owned());
            assert_eq!(code.as_deref(), Some("22023"), "{}: {error:?}", &arguments[..arguments.len().min(60)]);
        }
        assert_eq!(jobs(&db).await, 0);
    })
    .await;
}

/// Requirement Q4.
#[tokio::test]
async fn a_database_role_may_only_call_the_sql_functions() {
    on_postgres(async |db| {
        let admin = psql(&db.admin).await;
        // Roles are global to the server, so this one is named after the test's database.
        let database: String =
            admin.client.query_one("select current_database()::text", &[]).await.expect("reads").get(0);
        let role = format!("app_{database}");
        admin.client.batch_execute(&format!("create role {role} login")).await.expect("creates the role");
        db.store.grant_db_role(name("default"), role.clone()).await.expect("grants the role its tenant");
        let store::DatabaseUrl::Postgres(url) = &db.admin else { panic!("PostgreSQL") };
        let app = psql_at(&url.replace("postgres@", &format!("{role}@"))).await;
        let id = enqueue(&app.client, "'q', 'k', unique_key => 'u'").await.expect("may enqueue");
        assert_eq!(get(&db.store, id).await.principal, role, "the role is recorded as principal");
        for forbidden in ["select 1 from windlass.jobs", "delete from windlass.jobs", "create table windlass.t ()"] {
            let error = app.client.batch_execute(forbidden).await.expect_err(forbidden);
            assert_eq!(error.code().map(|state| state.code()), Some("42501"), "{forbidden}");
        }
        drop(app);
        admin.client.batch_execute(&format!("drop owned by {role}; drop role {role}")).await.expect("drops the role");
        assert_counters_match(&db.store).await;
    })
    .await;
}
