//! Synchronous calls through the real binary: across nodes, and with a node that is killed.

use serde_json::json;

use crate::support::{Serve, Server, TIMEOUT, Work, eventually, free_port, job, on_both, value, windlass};

/// Requirement Q5.
#[tokio::test(flavor = "multi_thread")]
async fn a_call_on_one_node_is_answered_by_a_worker_on_another() {
    on_both(async |fixture| {
        let here = Server::start(&fixture).await;
        let there = if fixture.is_postgres() { Some(Server::start(&fixture).await) } else { None };
        let _work = Work::start(&fixture, there.as_ref().unwrap_or(&here), "sum", &[], "jq -c '{sum: (.a + .b)}'");
        for n in 0..5 {
            let mut request = job("sum", json!({"a": n, "b": 2}));
            request.timeout_s = Some(TIMEOUT.as_secs() as i64);
            let response = here.client().call(&request).await.expect("the call succeeds");
            assert_eq!(value(response.result.as_deref()), json!({"sum": n + 2}));
        }
    })
    .await;
}

/// Requirement Q5.
#[tokio::test(flavor = "multi_thread")]
async fn the_exit_code_of_a_call_distinguishes_failure_timeout_and_no_worker() {
    on_both(async |fixture| {
        let server = Server::start(&fixture).await;
        let _fails = Work::start(&fixture, &server, "fails", &[], "echo 'no good' >&2; exit 65");
        let _slow = Work::start(&fixture, &server, "slow", &[], "wait_for never");
        let client = server.client();
        eventually("both workers are registered", async || {
            (client.workers(None).await.expect("workers are listed").items.len() == 2).then_some(())
        })
        .await;
        let call = async |queue: &str, timeout_s: &str| {
            let args = ["job", "call", "--url", &server.url, "--queue", queue, "--kind", "k", "--timeout-s", timeout_s];
            windlass(&args).await
        };
        let failed = call("fails", "120").await;
        assert_eq!(failed.code, Some(1), "{failed:?}");
        assert!(failed.stderr.contains(" failed with exit_65: no good"), "{failed:?}");
        let id = failed.stderr.split_once("job ").and_then(|(_, rest)| rest.split(' ').next());
        let id = id.expect("stderr contains the job id");
        let id = id.parse().expect("an id");
        assert_eq!(client.job(id).await.expect("the job exists").state, "failed");
        let late = call("slow", "1").await;
        assert_eq!(late.code, Some(6), "{late:?}");
        let no_worker = call("no-worker-here", "1").await;
        assert_eq!(no_worker.code, Some(5), "{no_worker:?}");
    })
    .await;
}

/// Requirement Q5.
#[tokio::test(flavor = "multi_thread")]
async fn the_result_of_a_call_survives_a_kill_of_its_node() {
    on_both(async |fixture| {
        let port = free_port();
        let mut here = Serve::on(&fixture).port(port).start().await;
        let there = if fixture.is_postgres() { Some(Server::start(&fixture).await) } else { None };
        let worker = there.as_ref().unwrap_or(&here);
        let _work = Work::start(&fixture, worker, "slow", &[], "mark started; wait_for go; echo '{\"late\": true}'");
        let caller = here.client();
        eventually("the worker is registered", async || {
            caller.workers(None).await.expect("workers are listed").items.pop()
        })
        .await;
        let mut request = job("slow", json!(null));
        request.timeout_s = Some(60);
        let mut call = Box::pin(caller.call(&request));
        tokio::select! {
            response = &mut call => panic!("the handler still waits: {response:?}"),
            () = eventually("the handler runs", async || fixture.path("started").exists().then_some(())) => {}
        }
        here.program.kill().await;
        assert!(call.await.is_err(), "the node of the caller was killed");
        // The call's row expires after its timeout. The test does not wait for that.
        let calls = if fixture.is_postgres() { "windlass.calls" } else { "calls" };
        fixture.sql(&format!("update {calls} set until = called_at")).await;
        let there = match there {
            Some(there) => there,
            None => Serve::on(&fixture).port(port).start().await,
        };
        std::fs::write(fixture.path("go"), "").expect("writes the file");
        let client = there.client();
        let abandoned = eventually("the result is listed as abandoned", async || {
            client.abandoned(None).await.expect("abandoned calls are listed").items.pop()
        })
        .await;
        assert_eq!((abandoned.queue.as_str(), abandoned.kind.as_str()), ("slow", "journey"));
    })
    .await;
}
