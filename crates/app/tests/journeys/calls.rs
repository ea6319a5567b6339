//! Synchronous calls through the real program: across nodes, and with a node that is killed (Q5).

use serde_json::json;

use crate::support::{PATIENCE, Serve, Server, Work, free_port, job, on_both, until, value, windlass};

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
async fn q5_the_exit_code_of_a_call_tells_a_failed_job_from_one_that_takes_its_time_and_from_nobody_there() {
    on_both(async |place| {
        let server = Server::start(&place).await;
        let _fails = Work::start(&place, &server, "fails", &[], "echo 'no good' >&2; exit 65");
        let _slow = Work::start(&place, &server, "slow", &[], "wait_for never");
        let client = server.client();
        until("both workers are there", async || {
            (client.workers(None).await.expect("they are listed").items.len() == 2).then_some(())
        })
        .await;
        let call = async |queue: &str, timeout_s: &str| {
            let args = ["job", "call", "--url", &server.url, "--queue", queue, "--kind", "k", "--timeout-s", timeout_s];
            windlass(&args).await
        };
        let failed = call("fails", "120").await;
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.contains(" failed with exit_65: no good"), "{failed:?}");
        let id = failed.stderr.split_once("job ").and_then(|(_, rest)| rest.split(' ').next()).expect("it is named");
        let id = id.parse().expect("an id");
        assert_eq!(client.job(id).await.expect("the job is there").state, "failed");
        let late = call("slow", "1").await;
        assert_eq!(late.code, Some(6), "{late:?}");
        let nobody = call("nobody-works-here", "1").await;
        assert_eq!(nobody.code, Some(5), "{nobody:?}");
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
