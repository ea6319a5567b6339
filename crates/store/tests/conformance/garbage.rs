//! Q9: blobs that no row names are deleted by whichever node comes to them, and only where they are.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use domain::limits::MAINTENANCE_ROWS;
use object_store::memory::InMemory;
use store::artifacts::Blobs;
use store::{Store, StoreError};
use testkit::{on_both, on_postgres, on_sqlite};

use crate::support::*;

/// Puts blobs on record as garbage of long ago, the first one first.
async fn discard(store: &Store, locations: impl IntoIterator<Item = String>) {
    let row = |(second, location): (usize, String)| match store.is_postgres() {
        true => format!("('{location}', to_timestamp({second} + 1))"),
        false => format!("('{location}', ({second} + 1) * 1000000)"),
    };
    let rows: Vec<String> = locations.into_iter().enumerate().map(row).collect();
    run_sql(store, &format!("insert into blob_garbage (location, since) values {}", rows.join(", ")))
        .await
        .expect("records");
}

async fn on_record(store: &Store) -> usize {
    store.garbage_on_record().await.expect("counts")
}

fn blob(folder: &Path, location: &str) {
    let path = folder.join(location);
    fs::create_dir_all(path.parent().expect("a folder")).expect("makes");
    fs::write(path, "content").expect("writes");
}

#[tokio::test]
async fn q9_what_cannot_be_deleted_stands_in_no_others_way() {
    on_both(async |db| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::folder(folder.path()).expect("a folder");
        // Where a folder should be is a file.
        fs::write(folder.path().join("broken"), "").expect("writes");
        blob(folder.path(), "2/fine");
        let broken = (0..MAINTENANCE_ROWS).map(|number| format!("broken/{number}"));
        discard(&db.store, broken.chain(["2/fine".to_owned()])).await;
        let collect = async |store: &Store| store.collect_garbage(&blobs).await.expect("collects");
        assert_eq!(collect(&db.store).await, 0);
        assert_eq!((collect(&db.store).await, folder.path().join("2/fine").exists()), (1, false));
        assert_eq!(on_record(&db.store).await, MAINTENANCE_ROWS);
        fs::remove_file(folder.path().join("broken")).expect("removes");
        let another = db.another_node().await;
        assert_eq!((collect(&db.store).await, collect(&another).await), (0, 0), "they were tried just now");
        db.pass_ms(3_700_000).await;
        assert_eq!((collect(&another).await, on_record(&db.store).await), (MAINTENANCE_ROWS, 0));
    })
    .await;
}

#[tokio::test]
async fn q9_a_node_with_a_folder_of_its_own_is_told_so_and_forgets_no_garbage() {
    on_postgres(async |db| {
        let folders = [(); 2].map(|()| tempfile::tempdir().expect("a temporary folder"));
        let [ours, theirs] = folders.each_ref().map(|folder| Blobs::folder(folder.path()).expect("a folder"));
        discard(&db.store, ["2/fine".to_owned()]).await;
        blob(folders[0].path(), "2/fine");
        db.store.check_home(&ours).await.expect("the first is the one");
        db.another_node().await.check_home(&ours).await.expect("for every node");
        let Err(StoreError::Unusable(why)) = db.store.collect_garbage(&theirs).await else { panic!("it is another") };
        assert!(why.contains("shared folder") && why.contains("s3://"), "{why}");
        assert_eq!(db.store.look_at_home(folders[1].path()).await.expect("looks"), Some(why.clone()));
        assert_eq!(db.store.look_at_home(folders[0].path()).await.expect("looks"), None);
        assert_eq!(on_record(&db.store).await, 1);
        assert_eq!((db.store.collect_garbage(&ours).await.expect("collects"), on_record(&db.store).await), (1, 0));
        let (_, file) = why.rsplit_once(' ').expect("it names a file");
        fs::write(file, "").expect("writes");
        db.store.check_home(&theirs).await.expect("somebody says that it is the one");
    })
    .await;
    on_sqlite(async |db| {
        for _ in 0..2 {
            let folder = tempfile::tempdir().expect("a temporary folder");
            let blobs = Blobs::folder(folder.path()).expect("a folder");
            db.store.check_home(&blobs).await.expect("there is no other node");
        }
    })
    .await;
}

#[tokio::test]
async fn q9_a_node_that_changes_to_a_bucket_forgets_no_garbage_of_the_folder() {
    let bucket = || Blobs::over(Arc::new(InMemory::new()), "s3://shelf/prefix/");
    on_postgres(async |db| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::folder(folder.path()).expect("a folder");
        db.store.check_home(&blobs).await.expect("the first is the one");
        discard(&db.store, ["2/fine".to_owned()]).await;
        let Err(StoreError::Unusable(why)) = db.store.collect_garbage(&bucket()).await else { panic!("it is another") };
        assert!(why.contains("not the bucket") && why.contains(" s3://shelf/prefix/windlass-artifacts-"), "{why}");
        assert_eq!(on_record(&db.store).await, 1);
    })
    .await;
    on_postgres(async |db| {
        let ours = bucket();
        db.store.check_home(&ours).await.expect("the first is the one");
        db.another_node().await.check_home(&ours).await.expect("for every node");
        assert!(matches!(db.store.check_home(&bucket()).await, Err(StoreError::Unusable(_))));
    })
    .await;
}

#[test]
fn q9_a_place_that_is_neither_a_bucket_nor_a_folder_is_refused() {
    for place in ["gs://bucket/prefix", "file:///var/lib", "S3://bucket"] {
        let Err(StoreError::Unusable(why)) = Blobs::open(place) else { panic!("{place} was taken") };
        assert!(why.contains("s3://BUCKET/PREFIX"), "{why}");
    }
}
