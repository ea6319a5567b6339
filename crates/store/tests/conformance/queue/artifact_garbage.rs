//! Artifact garbage: any node deletes blobs that no row names, but only in the right blob location.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use domain::limits::MAINTENANCE_ROWS;
use object_store::memory::InMemory;
use store::queue::artifacts::Blobs;
use store::{Store, StoreError};
use testkit::{on_both, on_postgres, on_sqlite};

use crate::support::*;

/// Inserts old garbage rows, in order of age.
async fn insert_garbage(store: &Store, locations: impl IntoIterator<Item = String>) {
    let row = |(second, location): (usize, String)| match store.is_postgres() {
        true => format!("('{location}', to_timestamp({second} + 1))"),
        false => format!("('{location}', ({second} + 1) * 1000000)"),
    };
    let rows: Vec<String> = locations.into_iter().enumerate().map(row).collect();
    run_sql(store, &format!("insert into blob_garbage (location, since) values {}", rows.join(", ")))
        .await
        .expect("records");
}

async fn count_rows(store: &Store) -> usize {
    store.count_garbage().await.expect("counts")
}

fn create_blob(folder: &Path, location: &str) {
    let path = folder.join(location);
    fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
    fs::write(path, "content").expect("writes");
}

/// Requirement Q9.
#[tokio::test]
async fn a_blob_that_cannot_be_deleted_does_not_block_garbage_collection() {
    on_both(async |db| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::folder(folder.path()).expect("a folder");
        // A file in place of a folder makes deletes fail.
        fs::write(folder.path().join("broken"), "").expect("writes");
        create_blob(folder.path(), "2/fine");
        let broken = (0..MAINTENANCE_ROWS).map(|number| format!("broken/{number}"));
        insert_garbage(&db.store, broken.chain(["2/fine".to_owned()])).await;
        let collect = async |store: &Store| store.collect_garbage(&blobs).await.expect("collects");
        assert_eq!(collect(&db.store).await, 0);
        assert_eq!((collect(&db.store).await, folder.path().join("2/fine").exists()), (1, false));
        assert_eq!(count_rows(&db.store).await, MAINTENANCE_ROWS);
        fs::remove_file(folder.path().join("broken")).expect("removes");
        let another = db.another_node().await;
        assert_eq!((collect(&db.store).await, collect(&another).await), (0, 0), "failed rows are not retried at once");
        db.pass_ms(3_700_000).await;
        assert_eq!((collect(&another).await, count_rows(&db.store).await), (MAINTENANCE_ROWS, 0));
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_node_with_a_separate_folder_collects_no_garbage() {
    on_postgres(async |db| {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let [ours, theirs] = folders.each_ref().map(|folder| Blobs::folder(folder.path()).expect("a folder"));
        insert_garbage(&db.store, ["2/fine".to_owned()]).await;
        create_blob(folders[0].path(), "2/fine");
        db.store.check_blob_location(&ours).await.expect("the first location is adopted");
        db.another_node().await.check_blob_location(&ours).await.expect("for every node");
        let Err(StoreError::Unusable(why)) = db.store.collect_garbage(&theirs).await else {
            panic!("another location was accepted")
        };
        assert!(why.contains("shared folder") && why.contains("s3://"), "{why}");
        assert_eq!(db.store.inspect_blob_location(folders[1].path()).await.expect("looks"), Some(why.clone()));
        assert_eq!(db.store.inspect_blob_location(folders[0].path()).await.expect("looks"), None);
        assert_eq!(count_rows(&db.store).await, 1);
        assert_eq!((db.store.collect_garbage(&ours).await.expect("collects"), count_rows(&db.store).await), (1, 0));
        let (_, file) = why.rsplit_once(' ').expect("the message ends with the file");
        fs::write(file, "").expect("writes");
        db.store.check_blob_location(&theirs).await.expect("the file marks the location");
    })
    .await;
    on_sqlite(async |db| {
        for _ in 0..2 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let blobs = Blobs::folder(folder.path()).expect("a folder");
            db.store.check_blob_location(&blobs).await.expect("SQLite has a single node");
        }
    })
    .await;
}

/// Requirement Q9.
#[tokio::test]
async fn a_node_that_switches_to_a_bucket_keeps_the_garbage_of_the_folder() {
    let bucket = || Blobs::over(Arc::new(InMemory::new()), "s3://shelf/prefix/");
    on_postgres(async |db| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::folder(folder.path()).expect("a folder");
        db.store.check_blob_location(&blobs).await.expect("the first location is adopted");
        insert_garbage(&db.store, ["2/fine".to_owned()]).await;
        let Err(StoreError::Unusable(why)) = db.store.collect_garbage(&bucket()).await else {
            panic!("another location was accepted")
        };
        assert!(why.contains("not the bucket") && why.contains(" s3://shelf/prefix/windlass-artifacts-"), "{why}");
        assert_eq!(count_rows(&db.store).await, 1);
    })
    .await;
    on_postgres(async |db| {
        let ours = bucket();
        db.store.check_blob_location(&ours).await.expect("the first location is adopted");
        db.another_node().await.check_blob_location(&ours).await.expect("for every node");
        assert!(matches!(db.store.check_blob_location(&bucket()).await, Err(StoreError::Unusable(_))));
    })
    .await;
}

/// Requirement Q9.
#[test]
fn an_artifact_location_must_be_a_bucket_or_a_folder() {
    for location in ["gs://bucket/prefix", "file:///var/lib", "S3://bucket"] {
        let Err(StoreError::Unusable(why)) = Blobs::open(location) else { panic!("{location} was accepted") };
        assert!(why.contains("s3://BUCKET/PREFIX"), "{why}");
    }
}
