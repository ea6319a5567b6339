//! Query plans of hot statements on both databases: each must use its intended index and never scan a whole table.

use store::{DatabaseUrl, Store};
use testkit::{Database, job};

use crate::db::statements::statement;
use crate::support::*;

/// A hot statement, arguments for it on PostgreSQL, and the index that each database must use.
struct Hot {
    name: &'static str,
    arguments: &'static str,
    index: &'static str,
    sqlite_index: &'static str,
}

const ID: &str = "array['01890a5d-ac96-774b-bcce-b302099a8057'::uuid]";

/// SQLite's name of the primary key index of jobs.
const JOBS_PKEY: &str = "sqlite_autoindex_jobs_1";

fn hot() -> Vec<Hot> {
    let hot = |name, arguments: &str, index, sqlite_index| Hot {
        name,
        arguments: arguments.replace("IDS", ID).leak(),
        index,
        sqlite_index,
    };
    let end = "IDS, array[2::bigint], array[1::bigint], array[null::uuid], array[1::bigint], array['succeeded'],
        array[null::json], array[null::json], array[null::text], array[null::text], now()";
    vec![
        hot("queue/claim/lane_heads.rs::HEADS", "array['q'], array[now()], IDS, 2", "jobs_ready", "jobs_ready"),
        hot(
            "queue/claim/fill.rs::TAKE",
            "1, 10, null, null, now(), null, now(), null, null, 'working', 1000000",
            "jobs_ready",
            "jobs_ready",
        ),
        hot(
            "queue/claim/fast_path/single_statement.rs::CLAIM",
            "array['q'], array[now()], IDS, array['k'], 2, 0, null, 0, 'q', null, 1, now(), null, 10, null, null, null, 100000",
            "jobs_ready",
            "SCAN",
        ),
        hot("queue/claim/guarded.rs::PEEK", "array[1::bigint], array[now()], IDS, 10", "jobs_ready", "jobs_ready"),
        hot(
            "queue/claim/guarded.rs::TAKE_CHOSEN",
            "IDS, array[null::bigint], array[0::bigint], array[null::json], array['working'], null, null, now()",
            "jobs_pkey",
            JOBS_PKEY,
        ),
        hot("queue/transition/ended_row.rs::END", end, "jobs_pkey", JOBS_PKEY),
        hot("queue/transition/ended_row.rs::FINISH", "IDS, 2, 1, null, now()", "jobs_pkey", JOBS_PKEY),
        hot("queue/transition/live_job.rs::LOAD", "IDS", "jobs_pkey", JOBS_PKEY),
        hot(
            "queue/transition/mod.rs::SEND_BACK",
            "IDS, array['queued'], array[now()], array[null::timestamptz], array[1::bigint], array[1::bigint],
             array[null::bigint], array[null::json], now()",
            "jobs_pkey",
            JOBS_PKEY,
        ),
        hot("queue/prune.rs::LANES", "", "ended_lane", "ended_lane"),
        hot("queue/enqueue/keys.rs::UNIQUE_JOB", "2, 'q', 'k', now()", "lanes_pkey", "PRIMARY KEY"),
        hot("queue/holds.rs::UNPARK", "2, 'key q c', 1", "jobs_parked", "jobs_parked"),
        hot(
            "queue/ready_queue_poller.rs::READY",
            "array[2::bigint], array['q'], array[now()], IDS",
            "jobs_ready",
            "jobs_ready",
        ),
        hot("queue/ready_queue_poller.rs::ENDED", "IDS", "jobs_pkey", JOBS_PKEY),
        hot("queue/promote.rs::PROMOTE", "now(), 1000", "jobs_due", "jobs_due"),
        hot("queue/promote.rs::NEXT", "", "jobs_due", "jobs_due"),
        hot(
            "queue/workers/attempt_timeouts.rs::TIMED_OUT",
            "now(), 1000, now(), now()",
            "jobs_deadline",
            "jobs_deadline",
        ),
        hot("queue/get.rs::LIVE", "'01890a5d-ac96-774b-bcce-b302099a8057', 2", "jobs_pkey", JOBS_PKEY),
        hot("queue/get.rs::ENDED", "'01890a5d-ac96-774b-bcce-b302099a8057', 2", "ended_pkey", "PRIMARY KEY"),
        hot("queue/transition/ended_row.rs::ENDED", "IDS", "ended_pkey", "PRIMARY KEY"),
        hot("signals/queue_snapshot.rs::OLDEST", "array[1::bigint], 10", "jobs_ready", "jobs_ready"),
        hot("signals/queue_snapshot.rs::RUNNING", "IDS", "jobs_pkey", JOBS_PKEY),
        hot("queue/history.rs::ROWS", "'01890a5d-ac96-774b-bcce-b302099a8057', 2", "history_pkey", "PRIMARY KEY"),
        hot(
            "triggers/deliveries/claim.rs::PEEK",
            "array[1::bigint], array[4::bigint], now()",
            "deliveries_due",
            "deliveries_due",
        ),
        hot(
            "triggers/deliveries/claim.rs::TAKE",
            "IDS, now(), 20000",
            "deliveries_id_key",
            "sqlite_autoindex_deliveries_1",
        ),
        hot(
            "queue/prune.rs::OLD",
            "1, '01890a5d-ac96-774b-bcce-b302099a8057', now(), 1000, null",
            "ended_lane",
            "ended_lane",
        ),
        hot(
            "queue/prune/history.rs::OLD_HISTORY",
            "now(), 1000, now(), '01890a5d-ac96-774b-bcce-b302099a8057'",
            "history_at",
            "history_at",
        ),
        hot("queue/prune/history.rs::KEPT", "IDS", "jobs_pkey", JOBS_PKEY),
        hot("queue/artifacts/garbage.rs::OLD", "now(), 1000", "blob_garbage_tried_at", "blob_garbage_tried_at"),
        hot("fleet/subjects/put.rs::RECENT", "2, 's', now(), 20", "timeline_subject", "timeline_subject"),
    ]
}

/// Returns the generic plan of a prepared statement, which does not depend on the arguments.
async fn postgres_plan(psql: &Psql, hot: &Hot) -> String {
    let text = statement(hot.name).postgres;
    let execute = if hot.arguments.is_empty() { "x".to_owned() } else { format!("x({})", hot.arguments) };
    psql.client.batch_execute(&format!("prepare x as {text}")).await.unwrap_or_else(|e| panic!("{}: {e:?}", hot.name));
    let rows = psql.client.simple_query(&format!("explain execute {execute}")).await;
    let rows = rows.unwrap_or_else(|error| panic!("{}: {error:?}", hot.name));
    psql.client.batch_execute("deallocate x").await.expect("deallocates");
    let line = |message: &tokio_postgres::SimpleQueryMessage| match message {
        tokio_postgres::SimpleQueryMessage::Row(row) => row.get(0).map(str::to_owned),
        _ => None,
    };
    rows.iter().filter_map(line).collect::<Vec<_>>().join("\n")
}

async fn check_postgres(psql: &Psql, when: &str) {
    for hot in hot() {
        let plan = postgres_plan(psql, &hot).await;
        for table in ["jobs", "ended", "history"] {
            let scan = format!("Seq Scan on {table}");
            assert!(!plan.lines().any(|line| line.contains(&scan)), "{} {when}:\n{plan}", hot.name);
        }
        let by_index = [format!("using {} on", hot.index), format!("on {}", hot.index)];
        assert!(by_index.iter().any(|by| plan.contains(by)), "{} {when}, without {}:\n{plan}", hot.name, hot.index);
        // A sort would read a whole lane to return its first job.
        let first_only = ["HEADS", "AT_ONCE", "TAKE", "PEEK", "PROMOTE", "NEXT", "TIMED_OUT"];
        let sorts = plan.contains("Sort") && first_only.iter().any(|name| hot.name.ends_with(name));
        assert!(!sorts, "{} {when}:\n{plan}", hot.name);
    }
}

/// Inserts 20,000 live jobs in 20 lanes, and as many ended jobs with their history.
async fn fill(store: &Store) {
    for queue in 0..20 {
        push(store, job(&format!("q{queue}"))).await;
    }
    run_sql(store, "delete from jobs").await.expect("empties");
    let text = "
        insert into jobs (id, tenant, lane, state, run_at, due_at, parked, deadline_at, worker, started_at, max_attempts,
            created_at, updated_at, principal, payload)
        select ID, 2, 1 + n % 20, 'queued', AT, case when n % 10 = 1 then AT end,
            case when n % 10 = 2 then 'key q c' end, case when n % 10 = 3 then AT end,
            case when n % 10 = 3 then ID end, case when n % 10 = 3 then AT end, 3, AT, AT, 'test', '{}' from NUMBERS;
        insert into ended (id, tenant, lane, state, run_at, epoch, attempt, max_attempts, finished_at, depth, version,
            created_at, principal, payload)
        select ID, 2, 1 + n % 20, 'succeeded', AT, 1, 1, 3, AT, 0, 2, AT, 'test', '{}' from NUMBERS;
        insert into history (job, epoch, event, tenant, lane, at, enqueued_at, attempt)
        select ID, 1, 'failed', 2, 1 + n % 20, AT, AT, 1 from NUMBERS;";
    let (id, at, numbers) = if store.is_postgres() {
        ("gen_random_uuid()", "(now() + n * interval '1 second')", "generate_series(1, 20000) n")
    } else {
        let numbers =
            "(with recursive c(n) as (select 1 union all select n + 1 from c where n < 20000) select n from c)";
        ("randomblob(16)", "(1700000000000000 + n * 1000000)", numbers)
    };
    run_sql(store, &text.replace("ID", id).replace("AT", at).replace("NUMBERS", numbers)).await.expect("fills");
}

/// Opens a session with the settings of the store's transactions.
async fn session(url: &DatabaseUrl) -> Psql {
    let psql = psql(url).await;
    let session = "set plan_cache_mode to force_generic_plan";
    psql.client.batch_execute(session).await.expect("sets");
    for setting in store::db::tx::BEGIN.split(';').filter_map(|part| part.trim().strip_prefix("set local ")) {
        psql.client.batch_execute(&format!("set {setting}")).await.expect("sets");
    }
    psql
}

#[tokio::test]
async fn postgres_uses_the_intended_indexes_on_a_filled_database() {
    let db = Database::postgres().await;
    fill(&db.store).await;
    run_sql(&db.store, "analyze").await.expect("analyzes");
    check_postgres(&session(&db.url).await, "on a filled database").await;
}

/// A plan made while the tables were empty stays cached until they are analyzed, so it must also suit full tables.
#[tokio::test]
async fn postgres_uses_the_intended_indexes_from_the_first_job_on() {
    let db = Database::postgres().await;
    check_postgres(&session(&db.url).await, "on a new database").await;
    run_sql(&db.store, "analyze jobs").await.expect("analyzes");
    check_postgres(&session(&db.url).await, "after the last job was done").await;
}

#[tokio::test]
async fn sqlite_uses_the_intended_indexes() {
    let db = Database::sqlite().await;
    fill(&db.store).await;
    for hot in hot() {
        let texts = statement(hot.name).sqlite;
        for text in texts.iter().filter(|text| !text.starts_with("insert or fail into ended")) {
            let plan = sqlite_plan(&db, text);
            for alias in ["jobs", "j", "ended", "e", "history"] {
                let scan = format!("SCAN {alias}");
                let whole = plan.contains(&scan);
                assert!(!whole, "{}: {plan:?}", hot.name);
            }
            // Updates of the selected rows go by row id.
            let index = if text.contains("rowid in") { "INTEGER PRIMARY KEY (rowid=?)" } else { hot.sqlite_index };
            assert!(plan.iter().any(|line| line.contains(index)), "{}: {plan:?}", hot.name);
        }
    }
}

fn sqlite_plan(db: &Database, text: &str) -> Vec<String> {
    let DatabaseUrl::Sqlite(path) = &db.url else { panic!("SQLite") };
    let connection = rusqlite::Connection::open(path).expect("opens");
    rusqlite::vtab::array::load_module(&connection).expect("loads");
    let explain = format!("explain query plan {}", text.replace('$', "?"));
    let mut statement = connection.prepare(&explain).expect("explains");
    let nothing = vec![rusqlite::types::Null; statement.parameter_count()];
    let rows = statement.query_map(rusqlite::params_from_iter(nothing), |row| row.get(3)).expect("explains");
    rows.collect::<Result<Vec<String>, _>>().expect("explains")
}
