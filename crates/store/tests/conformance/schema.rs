//! X8, X9: both schemas say the same, and migrations go up, down and up again.

use std::collections::{BTreeMap, BTreeSet};

use store::jobs::settle::Status;
use store::migrate::{MIGRATIONS, Migration, Script};
use store::signals::read::SignalRead;
use store::{Store, StoreError};
use testkit::{Database, job, on_both, on_postgres};

use crate::support::*;

async fn both(sqlite: &str, postgres: &str) -> (Vec<String>, Vec<String>) {
    let (one, other) = (Database::sqlite().await, Database::postgres().await);
    (texts(&one.store, sqlite, postgres).await, texts(&other.store, sqlite, postgres).await)
}

fn set(lines: Vec<String>) -> BTreeSet<String> {
    lines.into_iter().collect()
}

/// Table, position, name, type, not null.
fn columns(lines: Vec<String>) -> BTreeMap<(String, String), Vec<String>> {
    let split = |line: String| line.split('|').map(str::to_owned).collect::<Vec<_>>();
    lines.into_iter().map(split).map(|words| ((words[0].clone(), words[2].clone()), words)).collect()
}

#[tokio::test]
async fn x8_both_schemas_have_the_same_tables_and_columns() {
    let (sqlite, postgres) = both(
        "select m.name || '|' || p.cid || '|' || p.name || '|' || p.type || '|' || (p.\"notnull\" or p.pk > 0)
         from sqlite_master m join pragma_table_info(m.name) p
         where m.type = 'table' and m.name not like 'sqlite_%'",
        "select c.table_name || '|' || (c.ordinal_position - 1) || '|' || c.column_name || '|' || c.data_type || '|' ||
             (c.is_nullable = 'NO')::integer
         from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
         where c.table_schema = 'windlass' and t.table_type = 'BASE TABLE'",
    )
    .await;
    let (sqlite, postgres) = (columns(sqlite), columns(postgres));
    assert!(sqlite.len() > 150, "only {} columns were found", sqlite.len());
    assert_eq!(sqlite.keys().collect::<Vec<_>>(), postgres.keys().collect::<Vec<_>>());
    for (key, one) in sqlite {
        let other = &postgres[&key];
        assert_eq!((&one[1], &one[4]), (&other[1], &other[4]), "place and nullability of {key:?}");
        let is_time = ["at", "until", "since"].iter().any(|end| key.1 == *end || key.1.ends_with(&format!("_{end}")));
        let allowed: &[&str] = match one[3].to_lowercase().as_str() {
            "integer" if is_time => &["timestamp with time zone"],
            "integer" => &["bigint", "integer", "boolean"],
            "text" => &["text", "json"],
            "real" => &["double precision"],
            "blob" => &["uuid", "bytea"],
            other => panic!("{key:?} is {other}"),
        };
        assert!(allowed.contains(&other[3].as_str()), "{key:?} is {} and {}", one[3], other[3]);
    }
}

#[tokio::test]
async fn x8_both_schemas_have_the_same_keys() {
    let (sqlite, postgres) = both(
        "select m.name || ' ' || (select group_concat(name) from (select name from pragma_table_info(m.name) where pk > 0 order by pk))
         from sqlite_master m where m.type = 'table' and m.name not like 'sqlite_%'
         union all
         select m.name || ' unique ' || (select group_concat(name) from (select name from pragma_index_info(i.name) order by seqno))
         from sqlite_master m join pragma_index_list(m.name) i where m.type = 'table' and i.origin = 'u'",
        "select r.relname || case c.contype when 'u' then ' unique ' else ' ' end || (
             select string_agg(a.attname, ',' order by k.place) from unnest(c.conkey) with ordinality k(number, place)
             join pg_attribute a on a.attrelid = c.conrelid and a.attnum = k.number)
         from pg_constraint c join pg_class r on r.oid = c.conrelid
         where c.connamespace = 'windlass'::regnamespace and c.contype in ('p', 'u')",
    )
    .await;
    assert!(sqlite.len() > 20);
    assert_eq!(set(sqlite), set(postgres));
}

/// `((due_at IS NULL) AND (state <> 'x'::text))` and `due_at is null and state <> 'x'` say the same.
fn condition(line: String) -> String {
    line.to_lowercase().replace(['(', ')'], "").replace("::text", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

#[tokio::test]
async fn x8_both_schemas_have_the_same_indexes() {
    let (sqlite, postgres) = both(
        "select m.tbl_name || ' ' || m.name || ' ' ||
             (select group_concat(name) from (select name from pragma_index_info(m.name) order by seqno)) || ' where ' ||
             case when instr(m.sql, ' where ') > 0 then substr(m.sql, instr(m.sql, ' where ') + 7) else 'all' end
         from sqlite_master m where m.type = 'index' and m.sql is not null",
        "select t.relname || ' ' || c.relname || ' ' || (
             select string_agg(a.attname, ',' order by k.place) from unnest(i.indkey) with ordinality k(number, place)
             join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.number) || ' where ' ||
             coalesce(pg_get_expr(i.indpred, i.indrelid), 'all')
         from pg_index i join pg_class c on c.oid = i.indexrelid join pg_class t on t.oid = i.indrelid
         where c.relnamespace = 'windlass'::regnamespace
             and not exists (select 1 from pg_constraint o where o.conindid = i.indexrelid)",
    )
    .await;
    assert!(sqlite.len() > 15);
    // The one that differs: on PostgreSQL a claim must not touch it, on SQLite a claim takes the job out of it.
    let sqlite: Vec<String> = sqlite.into_iter().map(condition).collect();
    let claimed_too = |line: String| match line.starts_with("jobs jobs_ready ") {
        true => line.replace(" and worker is null", ""),
        false => line,
    };
    assert!(sqlite.iter().any(|line| line.starts_with("jobs jobs_ready ") && line.ends_with("and worker is null")));
    let sqlite = sqlite.into_iter().map(claimed_too).collect();
    assert_eq!(set(sqlite), set(postgres.into_iter().map(condition).collect()));
}

/// Retention deletes from these without end.
#[tokio::test]
async fn x13_what_retention_deletes_from_is_vacuumed_before_it_is_much() {
    on_postgres(async |db| {
        let text = "select relname::text from pg_class where relnamespace = 'windlass'::regnamespace
             and 'autovacuum_vacuum_scale_factor=0.01' = any (reloptions)";
        let soon = ["delivery_attempts", "deliveries", "ended", "history", "job_tags", "timeline", "ttfs_events"];
        assert_eq!(set(texts(&db.store, "", text).await), BTreeSet::from(soon.map(str::to_owned)));
    })
    .await;
}

/// The summaries of the time to first signal are for people with psql: only PostgreSQL has them.
#[tokio::test]
async fn x8_both_schemas_have_the_same_views() {
    let (sqlite, postgres) = both(
        "select m.name || ' ' || p.cid || ' ' || p.name from sqlite_master m join pragma_table_info(m.name) p
         where m.type = 'view'",
        "select c.table_name || ' ' || (c.ordinal_position - 1) || ' ' || c.column_name
         from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
         where c.table_schema = 'windlass' and t.table_type = 'VIEW' and c.table_name not like 'ttfs_%'",
    )
    .await;
    assert!(sqlite.len() > 60);
    assert_eq!(set(sqlite), set(postgres));
}

/// Tables, views, indexes, sequences and functions.
async fn things(store: &Store) -> BTreeSet<String> {
    let sqlite = "select type || ' ' || name from sqlite_master where name not like 'sqlite_%'";
    let postgres = "select relkind::text || ' ' || relname from pg_class where relnamespace = 'windlass'::regnamespace
         union all select 'function ' || proname from pg_proc where pronamespace = 'windlass'::regnamespace";
    set(texts(store, sqlite, postgres).await)
}

#[tokio::test]
async fn x9_migrations_go_down_to_nothing_and_up_again() {
    on_both(async |db| {
        let before = things(&db.store).await;
        push(&db.store, job("q")).await;
        let applied = db.store.migration_status().await.expect("reads");
        assert!(applied.iter().all(|migration| migration.applied_at.is_some()));
        let undone = db.store.migrate_down(0).await.expect("goes down");
        assert_eq!(undone, applied.iter().rev().map(|migration| migration.version).collect::<Vec<_>>());
        let left: Vec<_> = things(&db.store).await.into_iter().filter(|t| !t.contains("schema_migrations")).collect();
        assert_eq!(left, Vec::<String>::new());
        assert_eq!(number(&db.store, "select count(*) from schema_migrations").await, 0);
        db.store.migrate_up().await.expect("goes up");
        assert_eq!(things(&db.store).await, before);
        // On a node of its own: one that was open before still remembers lanes that are gone.
        push(&db.another_node().await, job("q")).await;
    })
    .await;
}

#[tokio::test]
async fn x9_a_database_is_served_until_its_nodes_have_been_silent_for_a_while() {
    on_postgres(async |db| {
        let served = async || db.store.is_served().await.expect("looks");
        db.pass_ms(1).await;
        assert!(served().await);
        db.clock.advance_ms(3_600_000);
        assert!(!served().await);
        db.pass_ms(1).await;
        db.store.migrate_down(0).await.expect("goes down");
        assert!(!served().await, "there is nothing to serve");
        db.store.migrate_up().await.expect("goes up");
        assert!(!served().await, "nobody has beaten");
    })
    .await;
}

/// The migration that makes the table of jobs anew on SQLite.
const ROW_IDS: i64 = 24;

#[tokio::test]
async fn x9_jobs_that_wait_and_run_outlast_a_step_down_and_up() {
    on_both(async |db| {
        push_all(&db.store, vec![job("q"), job("q")]).await;
        let worker = patient(&db.store).await;
        let held = claim_one(&db.store, worker).await;
        let last = db.store.migration_status().await.expect("reads").len() as i64;
        assert_eq!(db.store.migrate_down(ROW_IDS - 1).await.expect("goes down").last(), Some(&ROW_IDS));
        let up: Vec<i64> = (ROW_IDS..=last).collect();
        assert_eq!(db.store.migrate_up().await.expect("goes up"), up);
        assert_eq!(finish(&db.store, worker, &held).await, Status::Applied);
        let next = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &next).await, Status::Applied);
    })
    .await;
}

#[tokio::test]
async fn x9_jobs_are_read_beside_a_newer_program_that_shows_more_of_them() {
    on_both(async |db| {
        let id = push(&db.store, job("q")).await;
        let reads = async || {
            let signal = db.store.signal_source(T, id).await.expect("reads");
            state(&db.store, id).await == "queued" && matches!(signal, SignalRead::Found(_))
        };
        assert!(reads().await);
        let sqlite = "select 'drop view live_jobs; ' || sql from sqlite_master where name = 'live_jobs'";
        let postgres = "select 'create or replace view live_jobs as ' || pg_get_viewdef('live_jobs'::regclass)";
        let shown = texts(&db.store, sqlite, postgres).await.remove(0);
        let more = shown.replacen("j.lane\n", "j.lane, 7 as later\n", 1);
        assert_ne!(more, shown);
        run_sql(&db.store, &more).await.expect("replaces the view");
        assert!(reads().await);
    })
    .await;
}

#[tokio::test]
async fn x9_up_again_applies_nothing() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        assert_eq!(db.store.migrate_up().await.expect("goes up"), [] as [i64; 0]);
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
    })
    .await;
}

fn told(result: Result<Vec<i64>, StoreError>) -> String {
    match result {
        Err(StoreError::Unusable(reason)) => reason,
        other => panic!("it was not refused: {other:?}"),
    }
}

#[tokio::test]
async fn x9_a_newer_schema_is_refused_with_what_to_do() {
    on_both(async |db| {
        let newer = "insert into schema_migrations (version, name, checksum, applied_at)
                     select 999, 'later', 'x', applied_at from schema_migrations limit 1";
        run_sql(&db.store, newer).await.expect("records");
        for result in [db.store.migrate_up().await, db.store.migrate_down(0).await] {
            let reason = told(result);
            assert!(reason.contains("version 999") && reason.contains("run a newer windlass"), "{reason}");
        }
        assert!(things(&db.store).await.len() > 30, "nothing was touched");
    })
    .await;
}

#[tokio::test]
async fn x9_a_migration_that_was_changed_after_it_ran_is_refused() {
    on_both(async |db| {
        run_sql(&db.store, "update schema_migrations set checksum = 'x' where version = 1").await.expect("records");
        let reason = told(db.store.migrate_up().await);
        assert!(reason.contains("migration 1") && reason.contains("changed"), "{reason}");
    })
    .await;
}

#[tokio::test]
async fn x9_nodes_that_start_at_once_migrate_once() {
    on_postgres(async |db| {
        let anew = "drop schema windlass cascade; create schema windlass authorization windlass_serving";
        psql(&db.admin).await.client.batch_execute(anew).await.expect("drops");
        let mut nodes = tokio::task::JoinSet::new();
        for _ in 0..4 {
            let node = db.another_node().await;
            nodes.spawn(async move { node.migrate_up().await.expect("goes up").len() });
        }
        let mut applied = nodes.join_all().await;
        applied.sort_unstable();
        assert_eq!((applied[..3].to_vec(), applied[3] > 0), (vec![0, 0, 0], true));
        push(&db.another_node().await, job("q")).await;
    })
    .await;
}

/// A newer program's step that changes the busiest table.
fn one_more() -> &'static [Migration] {
    let script = Script { up: "alter table jobs add column later text", down: "" };
    let newest = MIGRATIONS.last().expect("there are some").version;
    let later = Migration { version: newest + 1, name: "later", sqlite: script, postgres: script };
    MIGRATIONS.iter().copied().chain([later]).collect::<Vec<_>>().leak()
}

#[tokio::test]
async fn x9_a_migration_that_must_wait_for_a_reader_makes_nobody_wait_behind_it() {
    on_postgres(async |db| {
        let (reader, other) = (psql(&db.admin).await, psql(&db.admin).await);
        reader.client.batch_execute("begin; select count(*) from windlass.jobs").await.expect("it reads");
        let node = db.another_node().await;
        let mut migrating = tokio::task::JoinSet::new();
        migrating.spawn(async move { node.migrate_up_through(one_more()).await });
        let waits = "select 1 from pg_locks where relation = 'windlass.jobs'::regclass and not granted";
        while other.client.query_opt(waits, &[]).await.expect("locks are told").is_none() {}
        let read = "set lock_timeout to '2min'; select count(*) from windlass.jobs";
        other.client.batch_execute(read).await.expect("it is let by");
        reader.client.batch_execute("commit").await.expect("it ends");
        let done = migrating.join_next().await.expect("it was started").expect("it ends");
        assert_eq!(done.expect("the table is free").len(), 1);
    })
    .await;
}
