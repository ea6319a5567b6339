//! Trace contexts: workers, retries, children and webhooks get the context of the job.

use domain::TraceContext;
use serde_json::json;
use store::queue::enqueue::{Extras, NewJob};
use store::workflows::journal::write::{NewJournalOperation, OperationInput};
use testkit::{job, label, on_both};

use crate::support::*;
use crate::triggers::declarations::assert_verified;
use crate::workflows::journal::record;

const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
const OTHER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn traced(queue: &str, trace: &str) -> NewJob {
    let extras = Extras { traceparent: TraceContext::parse(trace), ..Extras::default() };
    NewJob { extras: Some(Box::new(extras)), ..job(queue) }
}

fn text(context: &Option<TraceContext>) -> Option<&str> {
    context.as_ref().map(TraceContext::as_str)
}

#[tokio::test]
async fn a_claim_returns_the_trace_context_of_its_job() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        push_all(&db.store, vec![job("q"), traced("q", TRACE), job("q")]).await;
        // Plain jobs of the lane are claimed on the fast path before and after.
        for expected in [None, Some(TRACE), None] {
            let claimed = claim_one(&db.store, worker).await;
            assert_eq!((text(&claimed.traceparent), claimed.inputs.is_some()), (expected, false));
            assert_eq!(text(&get(&db.store, claimed.id).await.traceparent), expected);
            finish(&db.store, worker, &claimed).await;
            assert_eq!(text(&get(&db.store, claimed.id).await.traceparent), expected);
        }
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn children_have_the_trace_context_of_their_parent_unless_they_have_their_own() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        push(&db.store, traced("q", TRACE)).await;
        let claimed = claim_one(&db.store, worker).await;
        let jobs = vec![job("children"), traced("children", OTHER)];
        let input = OperationInput::Child { jobs, lanes: Vec::new() };
        record(&db.store, worker, &claimed, vec![NewJournalOperation { key: label("parts"), hash: None, input }]).await;
        let helper = db.store.register_worker(T, new_worker(&["children"])).await.expect("registers");
        let mut parts = claim(&db.store, helper, 2).await;
        parts.sort_by_key(|part| part.id);
        let traces: Vec<_> = parts.iter().map(|part| text(&part.traceparent)).collect();
        assert_eq!(traces, [Some(TRACE), Some(OTHER)]);
    })
    .await;
}

#[tokio::test]
async fn webhooks_pass_the_trace_context_on() {
    on_both(async |db| {
        let webhook = Some(json!({"url": "http://127.0.0.1:9/hook"}).to_string());
        let mut new = traced("q", TRACE);
        new.extras.as_mut().expect("has extras").webhook = webhook;
        push(&db.store, new).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &claimed).await;
        let headers = "select cast(headers as text) from deliveries";
        let found = texts(&db.store, headers, headers).await;
        assert_eq!(found, vec![format!(r#"[["traceparent","{TRACE}"]]"#); 2], "the start and the end");
    })
    .await;
}
