//! Synchronous calls through the real program: across nodes, and with a node that is killed (Q5).

use serde_json::json;

use crate::support::{PATIENCE, Serve, Server, Work, free_port, job, on_both, until, value};

#[tokio::test(flavor = "multi_thread")]
async fn q5_a_call_on_one_node_is_answered_by_a_worker_on_another() {
    on_both(async |place| {
        let here = Server::start(&place).await;
        let there = if place.is_postgres() { Some(Server::start(&place).await) } else { None };
        let _work = Work::start(&place, there.as_ref().unwrap_or(&here), "sum", &[], "jq -c '{sum: (.a + .b)}'");
        for n in 0..5 {
            let mut request = job("sum", json!({"a": n, "b": 2}));
            request.timeout_s = Some(PATIENCE.as_secs() as i64);
            let answer = here.client().call(&request).await.expect("the call is answered");
            assert_eq!(value(answer.result.as_deref()), json!({"sum": n + 2}));
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn q5_the_answer_of_a_call_whose_node_was_killed_is_kept() {
    on_both(async |place| {
        let port = free_port();
        let mut here = Serve::on(&place).port(port).start().await;
        let there = if place.is_postgres() { Some(Server::start(&place).await) } else { None };
        let worker = there.as_ref().unwrap_or(&here);
        let _work = Work::start(&place, worker, "slow", &[], "mark began; wait_for go; echo '{\"late\": true}'");
        let caller = here.client();
        until("the worker is there", async || caller.workers(None).await.expect("they are listed").items.pop()).await;
        let mut request = job("slow", json!(null));
        request.timeout_s = Some(60);
        let mut call = Box::pin(caller.call(&request));
        tokio::select! {
            answer = &mut call => panic!("the handler still waits: {answer:?}"),
            () = until("the handler runs", async || place.path("began").exists().then_some(())) => {}
        }
        here.program.kill().await;
        assert!(call.await.is_err(), "nobody is left to answer");
        // What the dead node noted of its caller runs out by itself; that is not waited for here.
        let calls = if place.is_postgres() { "windlass.calls" } else { "calls" };
        place.sql(&format!("update {calls} set until = called_at")).await;
        let there = match there {
            Some(there) => there,
            None => Serve::on(&place).port(port).start().await,
        };
        std::fs::write(place.path("go"), "").expect("writes");
        let client = there.client();
        let kept = until("the answer is kept", async || {
            client.abandoned(None).await.expect("the listing is there").items.pop()
        })
        .await;
        assert_eq!((kept.queue.as_str(), kept.kind.as_str()), ("slow", "journey"));
    })
    .await;
}
