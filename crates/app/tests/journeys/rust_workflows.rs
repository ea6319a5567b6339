//! Workflows of the Rust SDK over HTTP, with a server that is killed.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use client::wire::{JobRequest, RawValue, TokenRequest};
use client::{Client, Worker, Workflow};
use serde_json::json;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::support::{Serve, ended, eventually, free_port, in_state, on_both, value};

const STEPS: usize = 40;

type Counts = Arc<Mutex<BTreeMap<String, usize>>>;

async fn steps(workflow: Workflow, counts: Counts) -> Result<usize, client::HandlerError> {
    let mut sum = 0;
    for number in 0..STEPS {
        let key = format!("{} {number}", workflow.job().id());
        let step = workflow.step("step", || async {
            *counts.lock().expect("lock poisoned").entry(key.clone()).or_default() += 1;
            Ok(number)
        });
        sum += step.await?;
    }
    Ok(sum)
}

/// A worker that runs until it is dropped, like a killed process.
fn work(url: &str, counts: &Counts) -> JoinSet<()> {
    let (client, counts) = (Client::new(url).expect("a client"), counts.clone());
    let worker = Worker::builder(client).queue("q").concurrency(8).lease_s(2).name("workflows");
    let worker = worker.workflow("steps", move |workflow| steps(workflow, counts.clone()));
    let worker = worker.workflow("waits", |workflow: Workflow| async move {
        let word: String = workflow.wait_for_event("word").await?;
        Ok(word)
    });
    let worker = worker.build().expect("the worker is complete");
    let mut run = JoinSet::new();
    run.spawn(async move { drop(worker.run(CancellationToken::new()).await) });
    run
}

fn request(kind: &str) -> JobRequest {
    JobRequest { queue: "q".into(), kind: kind.into(), max_attempts: Some(20), ..JobRequest::default() }
}

/// Requirement W3.
#[tokio::test(flavor = "multi_thread")]
async fn killed_servers_and_workers_cost_each_workflow_at_most_one_step_per_kill() {
    const KILLS: usize = 3;
    on_both(async |fixture| {
        let port = free_port();
        let mut server = Serve::on(&fixture).port(port).start().await;
        let (client, counts) = (server.client(), Counts::default());
        let mut running = work(&server.url, &counts);
        let jobs = client.enqueue_batch((0..6).map(|_| request("steps")).collect()).await.expect("they are accepted");
        let waits = client.enqueue(&request("waits")).await.expect("it is accepted").id;
        let executed = || counts.lock().expect("lock poisoned").values().sum::<usize>();
        for kill in 1..=KILLS {
            let until = kill * STEPS;
            eventually("steps are executed", async || (executed() >= until).then_some(())).await;
            if kill % 2 == 0 {
                running = work(&server.url, &counts);
            } else {
                server.program.kill().await;
                server = Serve::on(&fixture).port(port).start().await;
            }
        }
        for job in &jobs {
            let job = ended(&client, *job).await;
            assert_eq!(value(job.result.as_deref()), json!(STEPS * (STEPS - 1) / 2), "{:?}", job.error);
        }
        let all = executed();
        let excess = all - jobs.len() * STEPS;
        assert!(excess <= KILLS * jobs.len(), "{excess} steps were executed again");

        in_state(&client, waits, &["waiting"]).await;
        client.send_event(waits, "word", &"hello", None).await.expect("the event is accepted");
        let word: Option<Box<RawValue>> = ended(&client, waits).await.result;
        assert_eq!(value(word.as_deref()), json!("hello"));
        running.shutdown().await;
        drop(server);
        fixture.verify().await;
    })
    .await;
}

/// The worker's token has no right besides that to work.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_reads_the_large_results_that_its_claims_refer_to() {
    on_both(async |fixture| {
        let server = Serve::on(&fixture).start().await;
        let open = server.client();
        let mut tokens = Vec::new();
        for role in ["admin", "worker"] {
            let request = TokenRequest { name: role.into(), role: role.into(), ..TokenRequest::default() };
            let creator = match tokens.first() {
                Some(token) => Client::builder(&server.url).token(token).build().expect("a client"),
                None => open.clone(),
            };
            tokens.push(creator.create_token(&request).await.expect("the token is created").token);
        }
        let client = |token: &String| Client::builder(&server.url).token(token).build().expect("a client");
        let worker = Worker::builder(client(&tokens[1])).queue("q").concurrency(4);
        let worker = worker.workflow("large", |workflow: Workflow| async move {
            let step = workflow.step("step", || async { Ok("x".repeat(2 << 20)) }).await?;
            let child: String = workflow.spawn_request(request("child")).await?;
            workflow.sleep(std::time::Duration::from_millis(1)).await?;
            Ok(step.len() + child.len())
        });
        let worker = worker.handle("child", async |_: client::JobContext| Ok("x".repeat(200_000)));
        let worker = worker.build().expect("the worker is complete");
        let mut run = JoinSet::new();
        run.spawn(async move { drop(worker.run(CancellationToken::new()).await) });
        let admin = client(&tokens[0]);
        let job = admin.enqueue(&request("large")).await.expect("it is accepted").id;
        let job = ended(&admin, job).await;
        assert_eq!(value(job.result.as_deref()), json!((2 << 20) + 200_000), "{:?}", job.error);
        run.shutdown().await;
    })
    .await;
}
