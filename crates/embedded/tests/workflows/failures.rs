//! Compensation: undo steps of a workflow that fails.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use client::{HandlerError, StepRetry, WorkerBuilder, Workflow};
use domain::{JobState, RetryPolicy};
use embedded::{Backend, JobBuilder};
use serde_json::json;
use testkit::eventually::eventually;
use testkit::on_both;
use tokio::sync::Notify;

use crate::harness::{Executions, Harness};

type Undone = Arc<Mutex<Vec<String>>>;

/// Three steps with undo, after which the workflow fails with the error that its payload selects. The undo of `two` waits
/// for `gate` if there is one.
fn saga(
    executions: &Executions,
    undone: &Undone,
    gate: Option<Arc<Notify>>,
) -> impl FnOnce(WorkerBuilder<Backend>) -> WorkerBuilder<Backend> + use<> {
    let (executions, undone) = (executions.clone(), undone.clone());
    move |builder| {
        builder.workflow("saga", move |workflow: Workflow| {
            let (executions, undone, gate) = (executions.clone(), undone.clone(), gate.clone());
            async move {
                for name in ["one", "two", "three"] {
                    let (count, undone, gate) = (executions.clone(), undone.clone(), gate.clone());
                    let step = workflow.step(name, || async { Ok(format!("{name} {}", executions.add(name))) });
                    let undo = move |recorded: String| {
                        let (count, undone, gate) = (count.clone(), undone.clone(), gate.clone());
                        async move {
                            count.add(format!("undo {name}"));
                            if let Some(gate) = gate.filter(|_| name == "two") {
                                gate.notified().await;
                            }
                            undone.lock().expect("lock poisoned").push(recorded);
                            Ok(())
                        }
                    };
                    step.undo(undo).await?;
                }
                match workflow.payload::<String>()?.as_str() {
                    "permanent" => Err(HandlerError::permanent("sold_out", "There are no more.")),
                    _ => Err::<(), _>(HandlerError::retryable("busy", "Try later.")),
                }
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn undo_steps_run_in_reverse_order_when_the_workflow_fails() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, undone) = (Executions::default(), Undone::default());
        let running = harness.work(saga(&executions, &undone, None));
        let job = harness.push("saga", json!("permanent")).await;
        let failed = harness.ended(job).await;
        assert_eq!((failed.state, failed.error.expect("an error").code.as_str()), (JobState::Failed, "sold_out"));
        assert_eq!(*undone.lock().expect("lock poisoned"), ["three 1", "two 1", "one 1"]);
        let keys = harness.keys(job).await;
        assert_eq!(keys, ["one", "two", "three", "undo/three", "undo/two", "undo/one"]);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_last_attempt_undoes_the_steps() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, undone) = (Executions::default(), Undone::default());
        let running = harness.work(saga(&executions, &undone, None));
        let retry = RetryPolicy::new(Some(0), None, None, None).expect("a policy");
        let job = JobBuilder::new("q", "saga").expect("names").payload("retryable").expect("JSON").retry(retry);
        let failed = harness.ended(harness.enqueue(job.max_attempts(3)).await).await;
        assert_eq!((failed.state, failed.attempt), (JobState::Failed, 3));
        let expected = json!({"one": 1, "two": 1, "three": 1, "undo three": 1, "undo two": 1, "undo one": 1});
        assert_eq!(executions.all(), expected);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kill_during_the_undo_repeats_only_the_undo_step_that_was_not_finished() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, undone, gate) = (Executions::default(), Undone::default(), Arc::new(Notify::new()));
        let running = harness.work(saga(&executions, &undone, Some(gate.clone())));
        let job = harness.push("saga", json!("permanent")).await;
        eventually("the second undo step runs", async || (executions.of("undo two") == 1).then_some(())).await;
        running.kill(&harness).await;
        let running = harness.work(saga(&executions, &undone, Some(gate.clone())));
        eventually("the second undo step runs again", async || (executions.of("undo two") == 2).then_some(())).await;
        gate.notify_one();
        assert_eq!(harness.ended(job).await.state, JobState::Failed);
        let expected = json!({"one": 1, "two": 1, "three": 1, "undo three": 1, "undo two": 2, "undo one": 1});
        assert_eq!(executions.all(), expected);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_undo_step_that_fails_is_named_in_the_error_and_does_not_stop_the_others() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("saga", move |workflow: Workflow| {
                let (first, second) = (count.clone(), count.clone());
                async move {
                    let one = workflow.step("one", || async { Ok(()) });
                    one.undo(move |()| {
                        first.add("undo one");
                        async { Ok(()) }
                    })
                    .await?;
                    let two = workflow.step("two", || async { Ok(()) });
                    two.retry(StepRetry::attempts(2).initial(Duration::ZERO))
                        .undo(move |()| {
                            second.add("undo two");
                            async { Err(HandlerError::retryable("bank_closed", "Come back.")) }
                        })
                        .await?;
                    Err::<(), _>(HandlerError::permanent("sold_out", "There are no more."))
                }
            })
        });
        let job = harness.push("saga", json!(null)).await;
        let error = harness.ended(job).await.error.expect("an error");
        assert_eq!(error.code, "sold_out");
        assert_eq!(error.message, "There are no more.; undo/two failed: bank_closed: Come back.");
        assert_eq!(executions.all(), json!({"undo one": 1, "undo two": 2}));
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_workflow_undoes_its_finished_steps_and_begins_no_other() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, undone) = (Executions::default(), Undone::default());
        let (count, record) = (executions.clone(), undone.clone());
        let running = harness.work(move |builder: WorkerBuilder<Backend>| {
            builder.workflow("trip", move |workflow: Workflow| {
                let (count, record) = (count.clone(), record.clone());
                async move {
                    let undo = move |recorded: String| {
                        let record = record.clone();
                        async move {
                            record.lock().expect("lock poisoned").push(recorded);
                            Ok(())
                        }
                    };
                    let book = workflow.step("book", || async { Ok(format!("book {}", count.add("book"))) });
                    book.undo(undo).await?;
                    workflow.sleep(Duration::from_secs(3_600)).await?;
                    workflow.step("pay", || async { Ok(count.add("pay")) }).await
                }
            })
        });
        let job = harness.push("trip", json!(null)).await;
        harness.in_state(job, JobState::Waiting).await;
        let canceled = harness.engine.store().cancel_with_undo(domain::TenantId::DEFAULT, job, "operator".into()).await;
        canceled.expect("cancels");
        assert_eq!(harness.ended(job).await.state, JobState::Canceled);
        assert_eq!(*undone.lock().expect("lock poisoned"), ["book 1"]);
        assert_eq!(harness.keys(job).await, ["book", "sleep", "$cancel", "undo/book"]);
        running.stop().await;
    })
    .await;
}
