//! Workflows of the demo: a run with a fan-out every half minute, and one job at a time that waits for an approval.

use std::time::Duration;

use client::{HandlerError, JobContext};
use domain::{Label, Name, NeedCondition, OnFailure, TenantId, WorkerId};
use embedded::{Embedded, JobBuilder};
use store::Store;
use store::queue::claim::{Claimed, ClaimedJob};
use store::queue::enqueue::NewJob;
use store::queue::settle::{End, Outcome};
use store::queue::workers::register::NewWorker;
use store::workflows::journal::Wake;
use store::workflows::journal::write::{JournalWrite, NewJournalOperation, OperationInput, StepOutcome};
use store::workflows::runs::{NewNode, NewRun};
use tokio_util::sync::CancellationToken;

use super::{pause, run_worker};

type DemoResult<T = ()> = Result<T, Box<dyn std::error::Error + Send + Sync>>;

const TENANT: TenantId = TenantId::DEFAULT;
const PRINCIPAL: &str = "embedded";
/// Time between two runs, and between two looks at the job that asks.
const RUN_EVERY: Duration = Duration::from_secs(30);
const ASK_EVERY: Duration = Duration::from_secs(2);
/// Parts of one run.
const PARTS: usize = 5;
/// One run in this many has a part that fails.
const FAILING: u64 = 4;

/// Starts runs and works their nodes until it is stopped.
pub(super) async fn pipelines(engine: Embedded, stop: CancellationToken) {
    let worker = engine
        .worker()
        .name("demo-pipeline")
        .queue("pipeline")
        .concurrency(3)
        .prefetch(0)
        .handle("split", |_: JobContext| async { pause(1_200).await.map(|()| PARTS) })
        .handle("part", part)
        .handle("merge", |_: JobContext| async { pause(900).await.map(|()| "merged") })
        .handle("notify", |_: JobContext| async { pause(150).await.map(|()| "sent") })
        .build();
    let works = run_worker(worker, stop.clone());
    let starts = async {
        for number in 0u64.. {
            if let Err(error) = start_run(engine.store(), number).await {
                tracing::warn!(%error, "the demo cannot start a run");
            }
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(RUN_EVERY) => {}
            }
        }
    };
    tokio::join!(works, starts);
}

async fn part(job: JobContext) -> Result<u64, HandlerError> {
    let payload: serde_json::Value = job.payload()?;
    let number = payload["part"].as_u64().unwrap_or_default();
    for step in 0..4u8 {
        job.progress(f64::from(step) / 4.0);
        pause(300 + number * 120).await?;
    }
    if payload["fails"] == true {
        return Err(HandlerError::permanent("PART_CORRUPT", "the checksum of the part does not match"));
    }
    Ok(number)
}

fn node(name: &str, kind: &str, needs: &[String], payload: &serde_json::Value) -> DemoResult<NewNode> {
    let job = NewJob {
        queue: Name::new("pipeline")?,
        kind: Name::new(kind)?,
        payload: payload.to_string().into(),
        affinity: None,
        priority: 0,
        run_at: None,
        max_attempts: 2,
        principal: PRINCIPAL.into(),
        extras: None,
    };
    let needs = needs.iter().map(|need| Label::new(need)).collect::<Result<_, _>>()?;
    Ok(NewNode {
        name: Label::new(name)?,
        job,
        needs,
        earlier_needs: Vec::new(),
        condition: if kind == "notify" { NeedCondition::Always } else { NeedCondition::default() },
    })
}

/// split → parts → merge → notify.
async fn start_run(store: &Store, number: u64) -> DemoResult {
    let parts: Vec<String> = (1..=PARTS).map(|part| format!("part-{part}")).collect();
    let mut nodes = vec![node("split", "split", &[], &serde_json::json!({ "release": number }))?];
    for (index, part) in parts.iter().enumerate() {
        let fails = number % FAILING == FAILING - 1 && index == 3;
        let payload = serde_json::json!({ "part": index, "fails": fails });
        nodes.push(node(part, "part", &["split".to_owned()], &payload)?);
    }
    nodes.push(node("merge", "merge", &parts, &serde_json::Value::Null)?);
    nodes.push(node("notify", "notify", &["merge".to_owned()], &serde_json::Value::Null)?);
    let run = NewRun {
        id: Label::new(&format!("nightly-{number}"))?,
        name: Some(Label::new("nightly index")?),
        on_failure: OnFailure::Continue,
        webhook: None,
        tags: vec![Label::new("nightly")?],
        principal: PRINCIPAL.into(),
        depth: 0,
        parent: None,
    };
    store.start_run(TENANT, run, nodes).await?;
    Ok(())
}

/// Keeps one job that has done two steps and waits for an approval. It ends with the answer, and the next one asks.
pub(super) async fn approvals(engine: Embedded, stop: CancellationToken) {
    let mut worker = None;
    let mut version = 1;
    loop {
        if let Err(error) = ask(&engine, &mut worker, &mut version).await {
            tracing::warn!(%error, "the demo cannot ask for an approval");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(ASK_EVERY) => {}
        }
    }
}

async fn ask(engine: &Embedded, worker: &mut Option<WorkerId>, version: &mut u64) -> DemoResult {
    let store = engine.store();
    let queue = Name::new("releases")?;
    let counts = store.queue(TENANT, &queue).await?.map(|queue| queue.counts).unwrap_or_default();
    if counts.waiting + counts.queued + counts.running + counts.scheduled == 0 {
        let payload = serde_json::json!({ "version": *version });
        engine.enqueue(JobBuilder::new("releases", "release")?.payload(&payload)?).await?;
        *version += 1;
    }
    let id = match worker {
        Some(id) => *id,
        None => {
            let new = NewWorker {
                name: "demo-releases".into(),
                queues: vec![queue],
                kinds: None,
                affinities: None,
                lease_ms: 60_000,
            };
            *worker.insert(store.register_worker(TENANT, new).await?)
        }
    };
    match store.claim(TENANT, id, 1, None).await? {
        Claimed::Jobs { jobs, .. } => {
            for job in &jobs {
                work(store, id, job).await?;
            }
        }
        // Registers again.
        _ => *worker = None,
    }
    Ok(())
}

async fn work(store: &Store, worker: WorkerId, job: &ClaimedJob) -> DemoResult {
    let entries = job.journal.as_ref().map(|journal| journal.entries.as_slice()).unwrap_or_default();
    let answer = entries.iter().find(|entry| entry.key.as_str() == "approve").and_then(|entry| entry.result.clone());
    let end = match answer {
        Some(answer) => End::Finish(Some(answer.into())),
        None => {
            let step = |key: &str, result: serde_json::Value, duration_ms| {
                let outcome = StepOutcome::Result(result.to_string().into());
                let input = OperationInput::Step { outcome, attempt: None, duration_ms: Some(duration_ms) };
                Ok::<_, domain::NameError>(NewJournalOperation { key: Label::new(key)?, hash: None, input })
            };
            let question = OperationInput::Approval {
                title: "Deploy this release?".into(),
                detail: Some("The build and the tests succeeded.".into()),
                right: "operate".into(),
                timeout_ms: None,
            };
            let approve = NewJournalOperation { key: Label::new("approve")?, hash: None, input: question };
            let ops = vec![
                step("build", serde_json::json!({"image": "registry/api:1.4"}), 850)?,
                step("test", serde_json::json!({"passed": 214}), 430)?,
                approve,
            ];
            store
                .journal(TENANT, worker, vec![JournalWrite { job: job.id, epoch: job.epoch, strict: false, ops }])
                .await?;
            End::Suspend(Wake { keys: vec![Label::new("approve")?], count: 1 })
        }
    };
    store.settle(TENANT, worker, vec![Outcome { job: job.id, epoch: job.epoch, end }]).await?;
    Ok(())
}
