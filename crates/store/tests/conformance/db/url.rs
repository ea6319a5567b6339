use store::{DatabaseUrl, Store, StoreError, StoreOptions};

fn check(text: &str, expected: Option<DatabaseUrl>) {
    assert_eq!(DatabaseUrl::parse(text).ok(), expected, "{text}");
}

#[test]
fn a_database_is_a_path_or_a_postgres_url() {
    check("sqlite:a/b.db", Some(DatabaseUrl::Sqlite("a/b.db".into())));
    check("sqlite:///a/b.db", Some(DatabaseUrl::Sqlite("/a/b.db".into())));
    check("sqlite:/a/b.db", Some(DatabaseUrl::Sqlite("/a/b.db".into())));
    check("windlass.db", Some(DatabaseUrl::Sqlite("windlass.db".into())));
    check("postgres://u@h/d", Some(DatabaseUrl::Postgres("postgres://u@h/d".into())));
    check("postgresql://u@h/d", Some(DatabaseUrl::Postgres("postgresql://u@h/d".into())));
    for refused in ["", "sqlite:", "sqlite::memory:", "mysql://h/d", "http://h"] {
        check(refused, None);
    }
}

#[tokio::test]
async fn a_second_server_on_a_file_is_refused_until_the_first_has_stopped() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = DatabaseUrl::Sqlite(folder.path().join("w.db"));
    let exclusive = || StoreOptions { exclusive: true, ..StoreOptions::default() };
    let first = Store::open(&url, exclusive()).await.expect("opens");
    match Store::open(&url, exclusive()).await.err() {
        Some(StoreError::Unusable(reason)) => assert!(reason.contains("in use by another server"), "{reason}"),
        other => panic!("not rejected: {other:?}"),
    }
    Store::open(&url, StoreOptions::default()).await.expect("`windlass token` may write beside a server");
    drop(first);
    Store::open(&url, exclusive()).await.expect("opens");
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = DatabaseUrl::Sqlite(folder.path().join("no/such/folder/w.db"));
    assert!(matches!(Store::open(&url, StoreOptions::default()).await, Err(StoreError::Unusable(_))));
    let url = DatabaseUrl::Postgres("postgres://someone@127.0.0.1:1/none".into());
    assert!(matches!(Store::open(&url, StoreOptions::default()).await, Err(StoreError::Unavailable { .. })));
}
