//! Schemas: SQLite and PostgreSQL are equivalent, and migrations run up, down and up again.

use std::collections::{BTreeMap, BTreeSet};

use store::db::migrate::{MIGRATIONS, Migration, MigrationScript};
use store::queue::settle::SettleStatus;
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
    lines.into_iter().map(split).map(|columns| ((columns[0].clone(), columns[2].clone()), columns)).collect()
}

/// Requirement X8.
#[tokio::test]
async fn both_schemas_have_the_same_tables_and_columns() {
    let (sqlite, postgres) = both(
        "select m.name || '|' || p.cid || '|' || p.name || '|' || p.type || '|' || (p.\"notnull\" or p.pk > 0)
         from sqlite_master m join pragma_table_xinfo(m.name) p
         where m.type = 'table' and m.name not like 'sqlite_%'",
        "select c.table_name || '|' || (c.ordinal_position - 1) || '|' || c.column_name || '|' || c.data_type || '|' ||
             (c.is_nullable = 'NO')::integer
         from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
         where c.table_schema = 'windlass' and t.table_type = 'BASE TABLE'",
    )
    .await;
    let (sqlite, postgres) = (columns(sqlite), columns(postgres));
    assert!(sqlite.len() > 150, "found only {} columns", sqlite.len());
    assert_eq!(sqlite.keys().collect::<Vec<_>>(), postgres.keys().collect::<Vec<_>>());
    for (key, one) in sqlite {
        let other = &postgres[&key];
        assert_eq!((&one[1], &one[4]), (&other[1], &other[4]), "position and nullability of {key:?}");
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

/// Requirement X8.
#[tokio::test]
async fn both_schemas_have_the_same_keys() {
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

/// Normalizes a condition: `((due_at IS NULL) AND (state <> 'x'::text))` becomes `due_at is null and state <> 'x'`.
fn condition(line: String) -> String {
    line.to_lowercase().replace(['(', ')'], "").replace("::text", "").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Requirement X8.
#[tokio::test]
async fn both_schemas_have_the_same_indexes() {
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
    // The one difference: on PostgreSQL a claim must not touch this index, on SQLite a claim removes the job from it.
    let sqlite: Vec<String> = sqlite.into_iter().map(condition).collect();
    let without_worker_condition = |line: String| match line.starts_with("jobs jobs_ready ") {
        true => line.replace(" and worker is null", ""),
        false => line,
    };
    assert!(sqlite.iter().any(|line| line.starts_with("jobs jobs_ready ") && line.ends_with("and worker is null")));
    let sqlite = sqlite.into_iter().map(without_worker_condition).collect();
    assert_eq!(set(sqlite), set(postgres.into_iter().map(condition).collect()));
}

/// Tables from which retention deletes continuously.
/// Requirement X13.
#[tokio::test]
async fn tables_with_retention_are_vacuumed_early() {
    on_postgres(async |db| {
        let text = "select relname::text from pg_class where relnamespace = 'windlass'::regnamespace
             and 'autovacuum_vacuum_scale_factor=0.01' = any (reloptions)";
        let soon = ["delivery_attempts", "deliveries", "ended", "history", "job_tags", "timeline", "ttfs_events"];
        assert_eq!(set(texts(&db.store, "", text).await), BTreeSet::from(soon.map(str::to_owned)));
    })
    .await;
}

/// The summary views of time to first signal are for psql, so only PostgreSQL has them.
/// Requirement X8.
#[tokio::test]
async fn both_schemas_have_the_same_views() {
    let (sqlite, postgres) = both(
        "select m.name || ' ' || p.cid || ' ' || p.name from sqlite_master m join pragma_table_info(m.name) p
         where m.type = 'view'",
        "select c.table_name || ' ' || (c.ordinal_position - 1) || ' ' || c.column_name
         from information_schema.columns c join information_schema.tables t using (table_schema, table_name)
         where c.table_schema = 'windlass' and t.table_type = 'VIEW' and c.table_name not like 'ttfs_%'
             and c.table_name <> 'first_signal_snapshots'",
    )
    .await;
    assert!(sqlite.len() > 60);
    assert_eq!(set(sqlite), set(postgres));
}

/// Lists tables, views, indexes, sequences and functions.
async fn schema_objects(store: &Store) -> BTreeSet<String> {
    let sqlite = "select type || ' ' || name from sqlite_master where name not like 'sqlite_%'";
    let postgres = "select relkind::text || ' ' || relname from pg_class where relnamespace = 'windlass'::regnamespace
         union all select 'function ' || proname from pg_proc where pronamespace = 'windlass'::regnamespace";
    set(texts(store, sqlite, postgres).await)
}

/// Requirement X9.
#[tokio::test]
async fn migrations_revert_completely_and_apply_again() {
    on_both(async |db| {
        let before = schema_objects(&db.store).await;
        push(&db.store, job("q")).await;
        let applied = db.store.migration_status().await.expect("reads");
        assert!(applied.iter().all(|migration| migration.applied_at.is_some()));
        let undone = db.store.migrate_down(0).await.expect("goes down");
        assert_eq!(undone, applied.iter().rev().map(|migration| migration.version).collect::<Vec<_>>());
        let remaining: Vec<_> =
            schema_objects(&db.store).await.into_iter().filter(|t| !t.contains("schema_migrations")).collect();
        assert_eq!(remaining, Vec::<String>::new());
        assert_eq!(number(&db.store, "select count(*) from schema_migrations").await, 0);
        db.store.migrate_up().await.expect("goes up");
        assert_eq!(schema_objects(&db.store).await, before);
        // Uses a new node: an older one still caches lanes that no longer exist.
        push(&db.another_node().await, job("q")).await;
    })
    .await;
}

/// Requirement X9.
#[tokio::test]
async fn a_database_counts_as_served_while_a_node_sends_heartbeats() {
    on_postgres(async |db| {
        let served = async || db.store.is_served().await.expect("looks");
        db.pass_ms(1).await;
        assert!(served().await);
        db.clock.advance_ms(3_600_000);
        assert!(!served().await);
        db.pass_ms(1).await;
        db.store.migrate_down(0).await.expect("goes down");
        assert!(!served().await, "there is no schema");
        db.store.migrate_up().await.expect("goes up");
        assert!(!served().await, "no heartbeat yet");
    })
    .await;
}

/// Requirement X9.
#[tokio::test]
async fn queued_and_running_jobs_survive_a_migration_down_and_up() {
    on_both(async |db| {
        push_all(&db.store, vec![job("q"), job("q")]).await;
        let worker = register_with_long_lease(&db.store).await;
        let held = claim_one(&db.store, worker).await;
        let versions = db.store.migration_status().await.expect("reads");
        let [.., before, last] = versions.as_slice() else { panic!("too few migrations") };
        let (before, last) = (before.version, last.version);
        assert_eq!(db.store.migrate_down(before).await.expect("goes down"), [last]);
        assert_eq!(db.store.migrate_up().await.expect("goes up"), [last]);
        assert_eq!(finish(&db.store, worker, &held).await, SettleStatus::Applied);
        let next = claim_one(&db.store, worker).await;
        assert_eq!(finish(&db.store, worker, &next).await, SettleStatus::Applied);
    })
    .await;
}

/// Requirement X9.
#[tokio::test]
async fn jobs_are_readable_while_a_newer_version_adds_a_view_column() {
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

/// Requirement X9.
#[tokio::test]
async fn a_second_migrate_up_applies_nothing() {
    on_both(async |db| {
        push(&db.store, job("q")).await;
        assert_eq!(db.store.migrate_up().await.expect("goes up"), [] as [i64; 0]);
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
    })
    .await;
}

fn reason_of(result: Result<Vec<i64>, StoreError>) -> String {
    match result {
        Err(StoreError::Unusable(reason)) => reason,
        other => panic!("not rejected: {other:?}"),
    }
}

/// Requirement X9.
#[tokio::test]
async fn a_newer_schema_is_refused_with_a_hint() {
    on_both(async |db| {
        let newer = "insert into schema_migrations (version, name, checksum, applied_at)
                     select 999, 'later', 'x', applied_at from schema_migrations limit 1";
        run_sql(&db.store, newer).await.expect("records");
        for result in [db.store.migrate_up().await, db.store.migrate_down(0).await] {
            let reason = reason_of(result);
            assert!(reason.contains("version 999") && reason.contains("run a newer windlass"), "{reason}");
        }
        assert!(schema_objects(&db.store).await.len() > 30, "the schema is unchanged");
    })
    .await;
}

/// Requirement X9.
#[tokio::test]
async fn a_migration_changed_after_it_ran_is_refused() {
    on_both(async |db| {
        run_sql(&db.store, "update schema_migrations set checksum = 'x' where version = 1").await.expect("records");
        let reason = reason_of(db.store.migrate_up().await);
        assert!(reason.contains("migration 1") && reason.contains("changed"), "{reason}");
    })
    .await;
}

/// Requirement X9.
#[tokio::test]
async fn nodes_that_start_concurrently_migrate_once() {
    on_postgres(async |db| {
        let recreate = "drop schema windlass cascade; create schema windlass authorization windlass_serving";
        psql(&db.admin).await.client.batch_execute(recreate).await.expect("drops");
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

/// A migration of a newer version that changes the busiest table.
fn one_more() -> &'static [Migration] {
    let script = MigrationScript { up: "alter table jobs add column later text", down: "" };
    let newest = MIGRATIONS.last().expect("there are some").version;
    let later = Migration { version: newest + 1, name: "later", sqlite: script, postgres: script };
    MIGRATIONS.iter().copied().chain([later]).collect::<Vec<_>>().leak()
}

/// Requirement X9.
#[tokio::test]
async fn a_migration_that_waits_for_a_reader_does_not_block_other_readers() {
    on_postgres(async |db| {
        let (reader, other) = (psql(&db.admin).await, psql(&db.admin).await);
        reader.client.batch_execute("begin; select count(*) from windlass.jobs").await.expect("it reads");
        let node = db.another_node().await;
        let mut migrating = tokio::task::JoinSet::new();
        migrating.spawn(async move { node.migrate_up_through(one_more()).await });
        let waits = "select 1 from pg_locks where relation = 'windlass.jobs'::regclass and not granted";
        while other.client.query_opt(waits, &[]).await.expect("reads the locks").is_none() {}
        let read = "set lock_timeout to '2min'; select count(*) from windlass.jobs";
        other.client.batch_execute(read).await.expect("is not blocked");
        reader.client.batch_execute("commit").await.expect("ends");
        let done = migrating.join_next().await.expect("the migration runs").expect("does not panic");
        assert_eq!(done.expect("migrates once the table is free").len(), 1);
    })
    .await;
}
