use super::*;

const INSERT: &[&str] = &["insert or fail into t (a, twice, b, same) values ($1, $1, $2, $3)"];

#[test]
fn a_multi_row_insert_keeps_the_values_of_each_row() {
    let mut connection = Connection::open_in_memory().expect("memory is there");
    connection.execute_batch("create table t (a integer, twice integer, b text, same integer)").expect("it is made");
    let count = (2 * ROWS_PER_INSERT[0] + 2 * ROWS_PER_INSERT[1] + 3) as i64;
    let names: Vec<String> = (0..count).map(|number| format!("row {number}")).collect();
    let columns = [Column::ints(0..count), Column::texts(names.iter().map(String::as_str))];
    let mut tx = SqliteTx { connection: &mut connection, rollback_scope: RollbackScope::Transaction };
    let changed = tx.execute_each(INSERT, &columns, &[Param::Int(7)]).expect("they go in");
    assert_eq!(changed, count as u64);
    let kept = "select count(*), count(distinct a) from t where twice = a and b = 'row ' || a and same = 7";
    let kept: (i64, i64) = connection.query_row(kept, [], |row| Ok((row.get(0)?, row.get(1)?))).expect("they are read");
    assert_eq!(kept, (count, count));
}

const MOVE: &[&str] = &[
    "select id, n, rowid from t where id in (select value from rarray($1)) and n < $2",
    "insert or fail into gone (id, n) select id, $3 from t where rowid in (select value from rarray($4))",
    "delete from t where rowid in (select value from rarray($4))",
];

#[test]
fn exactly_the_selected_rows_change_in_ranges_and_with_gaps() {
    let mut connection = Connection::open_in_memory().expect("memory is there");
    array::load_module(&connection).expect("it loads");
    connection
        .execute_batch("create table t (id blob primary key, n integer); create table gone (id blob, n integer)")
        .expect("they are made");
    let id = |number: i64| Uuid::from_u128(number as u128);
    for number in 0..100 {
        let insert = "insert into t (id, n) values (?1, ?2)";
        connection.execute(insert, rusqlite::params![id(number).as_bytes(), number]).expect("it goes in");
    }
    // A range, two ranges, some with a gap, and single rows. Above 90 none exists.
    let two = (1..9).chain(10..18).collect::<Vec<_>>();
    for wanted in [(20..30).rev().collect(), two, vec![30, 31, 32, 34, 35], (40..100).step_by(3).collect()] {
        let ids: Vec<Uuid> = wanted.iter().map(|number| id(*number)).collect();
        let params = [Param::Int(90), Param::Int(wanted[0])];
        let found = SqliteTx { connection: &mut connection, rollback_scope: RollbackScope::Transaction }
            .change_and_return(MOVE, Some(&ids), &params, None)
            .expect("it runs");
        let mut expected: Vec<i64> = wanted.iter().copied().filter(|number| *number < 90).collect();
        expected.sort_unstable();
        let mut database_now: Vec<i64> = found.iter().map(|row| row.int("n").expect("a number")).collect();
        database_now.sort_unstable();
        assert_eq!(database_now, expected);
        let gone = "select count(*) from gone where n = ?1 and not exists (select 1 from t where t.id = gone.id)";
        let gone: i64 = connection.query_row(gone, [wanted[0]], |row| row.get(0)).expect("it is counted");
        assert_eq!(gone, expected.len() as i64);
    }
    let left: i64 = connection.query_row("select count(*) from t", [], |row| row.get(0)).expect("it is counted");
    assert_eq!(left, 100 - 10 - 16 - 5 - 17);
}

#[test]
fn a_database_file_keeps_its_page_size() {
    let folder = tempfile::tempdir().expect("there is room");
    let older = folder.path().join("older.db");
    let made = Connection::open(&older).expect("it opens");
    made.execute_batch("pragma page_size = 4096; pragma journal_mode = wal; create table t (n integer)")
        .expect("it is made");
    drop(made);
    for (path, bytes) in [(older, 4_096), (folder.path().join("new.db"), PAGE_BYTES)] {
        let connection = connect(&path, WRITER_CACHE_KB).expect("it opens");
        connection
            .execute_batch("create table if not exists t (n integer); insert into t values (1)")
            .expect("it is written");
        let database_now: u32 =
            connection.query_row("pragma page_size", [], |row| row.get(0)).expect("the pragma returns a row");
        assert_eq!(database_now, bytes);
    }
}

const MOVE_KNOWN: &[&str] = &[
    "insert or fail into gone (id, text) select id, text from t where rowid in (select value from rarray($1))",
    "delete from t where rowid in (select value from rarray($1))",
];

#[test]
fn pages_freed_by_moved_rows_are_reused() {
    let folder = tempfile::tempdir().expect("there is room");
    let mut connection = connect(&folder.path().join("move.db"), WRITER_CACHE_KB).expect("it opens");
    let rows = 10 * PART_ROWS as i64;
    connection
        .execute_batch(&format!(
            "create table t (id integer, text text); create table gone (id integer primary key, text text);
             with recursive n(n) as (select 1 union all select n + 1 from n where n < {rows} + 7)
             insert into t select n, printf('%0300d', n) from n;
             pragma wal_checkpoint(truncate); begin immediate"
        ))
        .expect("it is made");
    let before: i64 =
        connection.query_row("pragma page_count", [], |row| row.get(0)).expect("the pragma returns a row");
    let mut tx = SqliteTx { connection: &mut connection, rollback_scope: RollbackScope::Transaction };
    assert!(tx.change_by_row_id(MOVE_KNOWN, (1..=rows).collect(), &[]).expect("it runs"));
    connection.execute_batch("commit").expect("it holds");
    let count = |text: &str| connection.query_row(text, [], |row| row.get::<_, i64>(0)).expect("it is counted");
    assert_eq!((count("select count(*) from t"), count("select count(*) from gone where id = text + 0")), (7, rows));
    let log = std::fs::metadata(folder.path().join("move.db-wal")).expect("there is a log").len();
    let written = log as i64 / i64::from(PAGE_BYTES);
    assert!(written < before * 3 / 2, "{written} pages are written for {before} that were moved");
}
