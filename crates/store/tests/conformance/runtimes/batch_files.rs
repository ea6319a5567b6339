//! Files of OpenAI batches: an input file outlives its own retention while a batch still reads it.

use std::convert::Infallible;

use bytes::Bytes;
use futures_util::{TryStreamExt, stream};
use store::queue::artifacts::Blobs;
use store::runtimes::openai::BatchStatus;
use store::runtimes::openai::batches::NewBatch;
use store::runtimes::openai::files::NewFile;
use testkit::on_both;

use crate::support::*;

/// Requirement R8.
#[tokio::test]
async fn an_expired_input_file_remains_until_its_batch_has_read_it() {
    on_both(async |db| {
        let store = &db.store;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let blobs = Blobs::folder(folder.path()).expect("a folder");
        let operations_of = Bytes::from_static(b"one\ntwo\n");
        let body = stream::iter([Ok::<_, Infallible>(operations_of.clone())]);
        let content = store.receive_file(&blobs, T, body).await.expect("reads").expect("fits");
        let new = NewFile {
            filename: "in.jsonl".into(),
            purpose: "batch".into(),
            principal: "ann".into(),
            retention_s: Some(3_600),
        };
        let file = store.put_file(T, new, content).await.expect("keeps");
        let new = NewBatch {
            endpoint: "/v1/embeddings".into(),
            input_file: file.id.clone(),
            completion_window: "24h".into(),
            window_s: 86_400,
            metadata: None,
            files_kept_s: None,
            principal: "ann".into(),
        };
        let batch = store.create_batch(T, new).await.expect("makes");
        store.validated_batch(&batch, Ok(2)).await.expect("begins");
        db.pass_ms(2 * 3_600_000).await;
        assert_eq!(store.prune_files_and_batches().await.expect("prunes"), 0, "two lines have no job yet");
        assert!(store.file(T, &file.id).await.expect("reads").is_none(), "other callers see the file as deleted");
        let input = store.batch_input(&blobs, &batch).await.expect("reads").expect("is there");
        let read: Vec<Bytes> = input.try_collect().await.expect("reads");
        assert_eq!(read, std::slice::from_ref(&operations_of));

        store.cancel_batch(T, &batch.id).await.expect("cancels");
        let batch = store.batch(T, &batch.id).await.expect("reads").expect("is there");
        let ended = store.end_batch(&blobs, &batch, BatchStatus::Cancelled, None, None).await.expect("ends");
        assert!(ended);
        assert_eq!(store.prune_files_and_batches().await.expect("prunes"), 1, "no batch needs it any more");
        assert!(store.batch_input(&blobs, &batch).await.expect("reads").is_none());
        assert_counters_match(store).await;
    })
    .await;
}
