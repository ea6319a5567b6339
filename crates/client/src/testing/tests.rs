//! Tests of the test server, and of workflows on it.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use super::*;
use crate::{HandlerError, JobContext, Workflow};

const DAY: std::time::Duration = std::time::Duration::from_secs(24 * 3_600);

#[tokio::test]
async fn days_of_sleep_pass_at_once_and_in_order() {
    let server = TestServer::new();
    let job = server.push("q", "k", &()).unwrap();
    let began = (Instant::now(), server.now());
    let worker = server.worker().queue("q").workflow("k", |workflow: Workflow| async move {
        let short = workflow.scope("short");
        let long = workflow.scope("long");
        let order = Mutex::new(Vec::new());
        let branch = async |scope: Workflow, days: u32| {
            scope.sleep(DAY * days).await?;
            order.lock().unwrap().push(days);
            Ok::<_, HandlerError>(())
        };
        let (a, b) = tokio::join!(branch(long, 30), branch(short, 3));
        a.and(b)?;
        Ok(order.into_inner().unwrap())
    });
    server.run(worker).await.unwrap();
    assert_eq!(server.result::<Vec<u32>>(job).unwrap(), [3, 30]);
    assert_eq!(server.now().duration_since(began.1).as_secs(), 30 * 24 * 3_600);
    assert!(began.0.elapsed() < DAY);
}

#[tokio::test]
async fn a_large_result_of_a_step_is_read_again() {
    let server = TestServer::new();
    let job = server.push("q", "k", &()).unwrap();
    let executed = std::sync::Arc::new(AtomicUsize::new(0));
    let steps = executed.clone();
    let worker = server.worker().queue("q").workflow("k", move |workflow: Workflow| {
        let steps = steps.clone();
        async move {
            let large: String = workflow
                .step("large", || async {
                    steps.fetch_add(1, Ordering::SeqCst);
                    Ok("x".repeat(2 << 20))
                })
                .await?;
            workflow.sleep(DAY).await?;
            Ok(large.len())
        }
    });
    server.run(worker).await.unwrap();
    assert_eq!(server.result::<usize>(job).unwrap(), 2 << 20);
    assert_eq!(executed.load(Ordering::SeqCst), 1);
}

#[tokio::test]
async fn a_workflow_waits_for_what_the_test_sends() {
    async fn order(workflow: Workflow) -> Result<u64, HandlerError> {
        let total: u64 = workflow.wait_for_event("paid").await?;
        if !workflow.approval("ship", "Ship?").await?.approved {
            return Err(HandlerError::permanent("rejected", ""));
        }
        workflow.publish("shipped", &total).await?;
        Ok(total)
    }
    let server = TestServer::new();
    let job = server.push("q", "order", &()).unwrap();
    let worker = || server.worker().queue("q").workflow("order", order);
    server.run(worker()).await.unwrap();
    assert_eq!(server.job(job).unwrap().state, TestJobState::Waiting);
    server.send_event(job, "paid", &99).unwrap();
    server.run(worker()).await.unwrap();
    server.approve(job, "ship").unwrap();
    server.run(worker()).await.unwrap();
    assert_eq!(server.result::<u64>(job).unwrap(), 99);
    assert_eq!(server.published(), [("shipped".to_owned(), serde_json::json!(99))]);
    assert_eq!(server.job(job).unwrap().keys, ["paid", "ship", "publish"]);
}

#[tokio::test]
async fn a_plain_job_is_retried_and_its_delay_takes_no_time() {
    let server = TestServer::new();
    let job = server.push("q", "k", &()).unwrap();
    let attempts = std::sync::Arc::new(AtomicUsize::new(0));
    let worker = server.worker().queue("q").handle("k", move |_: JobContext| {
        let attempt = attempts.fetch_add(1, Ordering::SeqCst) + 1;
        async move {
            match attempt {
                1 | 2 => Err(HandlerError::retryable("busy", "").with_backoff(DAY)),
                attempt => Ok(attempt),
            }
        }
    });
    server.run(worker).await.unwrap();
    assert_eq!(server.result::<usize>(job).unwrap(), 3);
}

#[tokio::test]
async fn a_job_without_a_handler_stays_queued() {
    let server = TestServer::new();
    let job = server.push("other", "k", &()).unwrap();
    server.run(server.worker().queue("q").handle("k", |_: JobContext| async { Ok(()) })).await.unwrap();
    assert_eq!(server.job(job).unwrap().state, TestJobState::Queued);
    assert!(matches!(server.result::<()>(job), Err(TestServerError::NoResult { .. })));
}

#[tokio::test]
async fn workflows_of_one_worker_share_journal_requests() {
    const JOBS: usize = 64;
    const STEPS: usize = 20;
    let server = TestServer::new();
    let jobs: Vec<_> = (0..JOBS).map(|_| server.push("q", "k", &()).unwrap()).collect();
    let worker = server.worker().queue("q").concurrency(JOBS).workflow("k", |workflow: Workflow| async move {
        for number in 0..STEPS {
            workflow.step("step", || async move { Ok(number) }).await?;
        }
        Ok(())
    });
    server.run(worker).await.unwrap();
    assert!(jobs.iter().all(|job| server.job(*job).unwrap().keys.len() == STEPS));
    let writes = server.writes();
    assert_eq!(writes.iter().sum::<usize>(), JOBS * STEPS);
    assert!(writes.len() <= 2 * STEPS, "{} requests: {writes:?}", writes.len());
}

#[tokio::test]
async fn a_refused_operation_fails_its_own_workflow_only() {
    let server = TestServer::new();
    server.refuse_key("step-5");
    let jobs: Vec<_> = (0..16).map(|number| server.push("q", "k", &number).unwrap()).collect();
    let worker = server.worker().queue("q").workflow("k", |workflow: Workflow| async move {
        let number: usize = workflow.payload()?;
        workflow.step(&format!("step-{number}"), || async move { Ok(number) }).await
    });
    server.run(worker).await.unwrap();
    for (number, job) in jobs.into_iter().enumerate() {
        if number == 5 {
            assert_eq!(server.job(job).unwrap().error.unwrap().code, "invalid_field");
        } else {
            assert_eq!(server.result::<usize>(job).unwrap(), number);
        }
    }
}

/// Both branches are ready when the workflow is resumed: the one that was resolved first wins.
#[tokio::test]
async fn the_first_of_several_events_wins_on_every_run() {
    async fn race(workflow: Workflow) -> Result<String, HandlerError> {
        let winner = tokio::select! {
            a = workflow.wait_for_event::<()>("a").into_future() => a.map(|()| "a"),
            b = workflow.wait_for_event::<()>("b").into_future() => b.map(|()| "b"),
            c = workflow.wait_for_event::<()>("c").into_future() => c.map(|()| "c"),
        }?;
        // Runs the handler once more.
        workflow.sleep(DAY).await?;
        Ok(winner.to_owned())
    }
    for _ in 0..20 {
        let server = TestServer::new();
        let job = server.push("q", "race", &()).unwrap();
        server.run(server.worker().queue("q").workflow("race", race)).await.unwrap();
        for event in ["b", "c", "a"] {
            server.send_event(job, event, &()).unwrap();
        }
        server.run(server.worker().queue("q").workflow("race", race)).await.unwrap();
        assert_eq!(server.result::<String>(job).unwrap(), "b");
    }
}

#[tokio::test]
async fn a_canceled_workflow_undoes_its_finished_steps_and_begins_nothing() {
    async fn book(workflow: Workflow) -> Result<(), HandlerError> {
        for name in ["hotel", "flight"] {
            let booking = workflow.step(name, || async move { Ok(name.to_owned()) });
            booking.undo(|_: String| async { Ok(()) }).await?;
        }
        workflow.wait_for_event::<()>("paid").await?;
        workflow.step("ticket", || async { Ok(()) }).await
    }
    let server = TestServer::new();
    let job = server.push("q", "book", &()).unwrap();
    let worker = || server.worker().queue("q").workflow("book", book);
    server.run(worker()).await.unwrap();
    server.cancel_with_undo(job).unwrap();
    server.run(worker()).await.unwrap();
    let canceled = server.job(job).unwrap();
    assert_eq!(canceled.state, TestJobState::Canceled);
    assert_eq!(canceled.keys, ["hotel", "flight", "paid", "$cancel", "undo/flight", "undo/hotel"]);
}

#[tokio::test]
async fn a_canceled_workflow_undoes_the_steps_of_all_branches() {
    async fn book(workflow: Workflow) -> Result<(), HandlerError> {
        let branch = async |name: &'static str| {
            let scope = workflow.scope(name);
            if name == "waits" {
                scope.wait_for_event::<()>("go").await?;
            }
            let booking = scope.step("book", || async move { Ok(name.to_owned()) });
            booking.undo(|_: String| async { Ok(()) }).await?;
            scope.wait_for_event::<()>("paid").await
        };
        tokio::try_join!(branch("waits"), branch("first"), branch("second")).map(drop)
    }
    let server = TestServer::new();
    let job = server.push("q", "book", &()).unwrap();
    let worker = || server.worker().queue("q").workflow("book", book);
    server.run(worker()).await.unwrap();
    server.cancel_with_undo(job).unwrap();
    server.run(worker()).await.unwrap();
    let mut undone = server.job(job).unwrap().keys.split_off(6);
    undone.sort();
    assert_eq!(undone, ["undo/first/book", "undo/second/book"]);
}
