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
async fn a_file_with_two_names_is_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, link) = (folder.path().join("w.db"), folder.path().join("link.db"));
    let exclusive = || StoreOptions { exclusive: true, ..StoreOptions::default() };
    let first = Store::open(&DatabaseUrl::Sqlite(path.clone()), exclusive()).await.expect("opens");
    std::os::unix::fs::symlink(&path, &link).expect("links");
    match Store::open(&DatabaseUrl::Sqlite(link.clone()), exclusive()).await.err() {
        Some(StoreError::Unusable(reason)) => assert!(reason.contains("in use by another server"), "{reason}"),
        other => panic!("not rejected: {other:?}"),
    }
    std::fs::remove_file(&link).expect("removes");
    std::fs::hard_link(&path, &link).expect("links");
    match Store::open(&DatabaseUrl::Sqlite(link), exclusive()).await.err() {
        Some(StoreError::Unusable(reason)) => assert!(reason.contains("hard links"), "{reason}"),
        other => panic!("not rejected: {other:?}"),
    }
    drop(first);
}

#[tokio::test]
async fn nothing_is_acknowledged_after_the_file_was_deleted_or_replaced() {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, aside) = (folder.path().join("w.db"), folder.path().join("aside.db"));
    let store = Store::open(&DatabaseUrl::Sqlite(path.clone()), StoreOptions::default()).await.expect("opens");
    store.migrate_up().await.expect("migrates");
    let push = async || store.enqueue(domain::TenantId::DEFAULT, vec![testkit::job("q")], None).await;
    push().await.expect("enqueues");
    let refused = async |word: &str| match push().await {
        Err(StoreError::Unavailable { reason, .. }) => assert!(reason.contains(word), "{reason}"),
        other => panic!("not rejected: {other:?}"),
    };
    std::fs::rename(&path, &aside).expect("renames");
    refused("was deleted or renamed").await;
    std::fs::copy(&aside, &path).expect("copies");
    refused("was replaced").await;
    std::fs::rename(&aside, &path).expect("renames");
    push().await.expect("the file is back");
}

#[tokio::test]
async fn a_database_that_cannot_be_opened_is_an_error() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = DatabaseUrl::Sqlite(folder.path().join("no/such/folder/w.db"));
    assert!(matches!(Store::open(&url, StoreOptions::default()).await, Err(StoreError::Unusable(_))));
    let url = DatabaseUrl::Postgres("postgres://someone@127.0.0.1:1/none".into());
    assert!(matches!(Store::open(&url, StoreOptions::default()).await, Err(StoreError::Unavailable { .. })));
}
