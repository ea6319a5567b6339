//! Steps: recorded results, kills, retries, keys and drift.

use std::sync::Arc;
use std::time::Duration;

use client::{HandlerError, Job as _, StepRetry, WorkerBuilder, Workflow};
use domain::JobState;
use embedded::{Backend, JobBuilder};
use serde_json::{Value, json};
use testkit::eventually::{before_timeout, eventually};
use testkit::on_both;
use tokio::sync::Notify;

use crate::harness::{Executions, Harness};

type Builder = WorkerBuilder<Backend>;

/// Three steps, of which the second one waits for `gate`.
fn three_steps(executions: &Executions, gate: &Arc<Notify>) -> impl FnOnce(Builder) -> Builder + use<> {
    let (executions, gate) = (executions.clone(), gate.clone());
    move |builder| {
        builder.workflow("three", move |workflow: Workflow| {
            let (executions, gate) = (executions.clone(), gate.clone());
            async move {
                let first: usize = workflow.step("first", || async { Ok(executions.add("first")) }).await?;
                let second = workflow.step("second", || async {
                    executions.add("second");
                    gate.notified().await;
                    Ok(first + 10)
                });
                let second: usize = second.await?;
                let third: usize = workflow.step("third", || async { Ok(executions.add("third") + second) }).await?;
                Ok(third)
            }
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_workflow_repeats_only_the_step_that_was_not_finished() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, gate) = (Executions::default(), Arc::new(Notify::new()));
        let running = harness.work(three_steps(&executions, &gate));
        let job = harness.push("three", json!(null)).await;
        eventually("the second step runs", async || (executions.of("second") == 1).then_some(())).await;
        running.kill(&harness).await;
        let running = harness.work(three_steps(&executions, &gate));
        eventually("the second step runs again", async || (executions.of("second") == 2).then_some(())).await;
        gate.notify_one();
        assert_eq!(harness.result(job).await, json!(12));
        assert_eq!(executions.all(), json!({"first": 1, "second": 2, "third": 1}));
        assert_eq!(harness.keys(job).await, ["first", "second", "third"]);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_above_the_inline_limit_is_an_artifact_that_the_next_attempt_and_undo_read() {
    const BYTES: usize = 3 << 20;
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, undone) = (Executions::default(), Executions::default());
        let (steps, undos) = (executions.clone(), undone.clone());
        let running = harness.work(move |builder| {
            builder.workflow("large", move |workflow: Workflow| {
                let (steps, undos) = (steps.clone(), undos.clone());
                async move {
                    let large = workflow.step("large", || async {
                        steps.add("large");
                        Ok("x".repeat(BYTES))
                    });
                    let undos = undos.clone();
                    let large = large.undo(move |large: String| {
                        undos.add(format!("{}", large.len()));
                        async { Ok(()) }
                    });
                    let length = large.await?.len();
                    if workflow.job().attempt() == 1 {
                        return Err(HandlerError::retryable("boom", ""));
                    }
                    Err::<(), _>(HandlerError::permanent("end", format!("{length}")))
                }
            })
        });
        let retry = domain::RetryPolicy::new(Some(0), None, None, None).expect("a policy");
        let job = harness.enqueue(JobBuilder::new("q", "large").expect("names").retry(retry)).await;
        let error = harness.ended(job).await.error.expect("it fails");
        assert_eq!((error.code.as_str(), error.message.as_str()), ("end", "3145728"));
        assert_eq!((executions.all(), undone.all()), (json!({"large": 1}), json!({"3145728": 1})));
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_expired_lease_hands_the_journal_to_the_next_worker() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, gate) = (Executions::default(), Arc::new(Notify::new()));
        let running = harness.work(|builder| three_steps(&executions, &gate)(builder).lease_s(1));
        let job = harness.push("three", json!(null)).await;
        eventually("the second step runs", async || (executions.of("second") >= 1).then_some(())).await;
        running.abandon().await;
        let running = harness.work(three_steps(&executions, &gate));
        eventually("the second step runs again", async || (executions.of("second") >= 2).then_some(())).await;
        gate.notify_waiters();
        gate.notify_one();
        assert_eq!(harness.result(job).await, json!(12));
        assert_eq!((executions.of("first"), executions.of("third")), (1, 1));
        assert!(harness.job(job).await.attempt >= 2, "an expired attempt counts");
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_handler_that_lost_its_claim_records_nothing() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (executions, gate) = (Executions::default(), Arc::new(Notify::new()));
        let running =
            harness.work(|builder| three_steps(&executions, &gate)(builder.stop_grace(Duration::from_secs(600))));
        let job = harness.push("three", json!(null)).await;
        eventually("the second step runs", async || (executions.of("second") == 1).then_some(())).await;
        // The server gives the job to the next session of the same worker.
        harness.remove_workers().await;
        eventually("the second step runs again", async || (executions.of("second") == 2).then_some(())).await;
        // Both handlers continue; only the one with the claim gets to the third step.
        gate.notify_waiters();
        gate.notify_one();
        assert_eq!(harness.result(job).await, json!(12));
        assert_eq!(executions.of("third"), 1);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_step_is_an_attempt_and_runs_again_with_the_job() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("fails", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    let first: usize = workflow.step("first", || async { Ok(count.add("first")) }).await?;
                    let flaky = workflow.step("flaky", || async {
                        match count.add("flaky") {
                            number @ 1..3 => Err(HandlerError::retryable("not_yet", format!("attempt {number}"))),
                            number => Ok(number),
                        }
                    });
                    let flaky: usize = flaky.await?;
                    // In one attempt of the job.
                    let stubborn = workflow.step("stubborn", || async {
                        match count.add("stubborn") {
                            1..3 => Err(HandlerError::retryable("not_yet", "")),
                            number => Ok(number),
                        }
                    });
                    let retry = StepRetry::attempts(3).initial(Duration::from_millis(1));
                    let stubborn: usize = stubborn.retry(retry).await?;
                    let hopeless = workflow.step("hopeless", || async {
                        count.add("hopeless");
                        Err::<(), _>(HandlerError::retryable("no", "It never works."))
                    });
                    let error = hopeless.retry(StepRetry::attempts(2).initial(Duration::ZERO)).await;
                    Ok((first, flaky, stubborn, error.is_err()))
                }
            })
        });
        let retry = domain::RetryPolicy::new(Some(0), None, None, None).expect("a policy");
        let job = harness.enqueue(JobBuilder::new("q", "fails").expect("names").retry(retry)).await;
        assert_eq!(harness.result(job).await, json!([1, 3, 3, true]));
        assert_eq!(executions.all(), json!({"first": 1, "flaky": 3, "stubborn": 3, "hopeless": 2}));
        assert_eq!(harness.job(job).await.attempt, 3);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn repeated_names_are_numbered_and_scopes_prefix_them() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let running = harness.work(|builder| {
            builder.workflow("keys", |workflow: Workflow| async move {
                for page in 0..3 {
                    workflow.step("page", || async move { Ok(page) }).await?;
                }
                for _ in 0..2 {
                    let part = workflow.scope("part");
                    part.step("a#2", || async { Ok(()) }).await?;
                    part.scope("deep").step("b", || async { Ok(()) }).await?;
                }
                workflow.publish("topic", &1).await?;
                workflow.sleep(Duration::ZERO).await
            })
        });
        let job = harness.push("keys", json!(null)).await;
        harness.result(job).await;
        let expected =
            ["page", "page#2", "page#3", "part/a.2", "part/deep/b", "part#2/a.2", "part#2/deep/b", "publish", "sleep"];
        assert_eq!(harness.keys(job).await, expected);
        running.stop().await;
    })
    .await;
}

/// A journal of more entries than a claim has, written by parallel branches.
#[tokio::test(flavor = "multi_thread")]
async fn a_long_journal_is_read_in_pages() {
    const STEPS: usize = 2_300;
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("long", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    let steps = (0..STEPS).map(|number| {
                        let count = count.clone();
                        workflow.step("part", move || {
                            count.add("part");
                            async move { Ok(number) }
                        })
                    });
                    let parts: Vec<usize> =
                        futures_util::future::try_join_all(steps.map(IntoFuture::into_future)).await?;
                    workflow.wait_for_event::<()>("go").await?;
                    Ok(parts.into_iter().sum::<usize>())
                }
            })
        });
        let job = harness.push("long", json!(null)).await;
        harness.in_state(job, JobState::Waiting).await;
        harness.send(job, "go", json!(null)).await;
        assert_eq!(harness.result(job).await, json!(STEPS * (STEPS - 1) / 2));
        assert_eq!(executions.of("part"), STEPS);
        running.stop().await;
    })
    .await;
}

fn with_input(number: i64) -> impl FnOnce(Builder) -> Builder {
    move |builder| {
        builder.workflow("drifts", move |workflow: Workflow| async move {
            let step = workflow.step("only", || async move { Ok(number) });
            let recorded: i64 = step.input(&number).await?;
            workflow.wait_for_event::<()>("go").await?;
            Ok(recorded)
        })
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_changed_step_is_drift() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let first = harness.work(with_input(1));
        let (lenient, strict) = (harness.push("drifts", json!(null)).await, harness.push("drifts", json!(null)).await);
        for job in [lenient, strict] {
            harness.in_state(job, JobState::Waiting).await;
        }
        first.stop().await;

        let changed = harness.work(with_input(2));
        harness.send(lenient, "go", json!(null)).await;
        assert_eq!(harness.result(lenient).await, json!(1), "the recorded result counts");
        let (head, _) =
            harness.engine.store().read_journal(domain::TenantId::DEFAULT, lenient, 0, 1).await.expect("read");
        assert_eq!(head.drift.as_deref(), Some("only"));
        changed.stop().await;

        let checked = harness.work(|builder| with_input(2)(builder.strict_workflows()));
        harness.send(strict, "go", json!(null)).await;
        let failed = harness.ended(strict).await;
        assert_eq!(failed.error.expect("an error").code, "workflow_drift");
        assert_eq!(failed.attempt, 1, "another attempt would fail again");
        checked.stop().await;
    })
    .await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Countdown {
    from: u32,
}

impl client::Job for Countdown {
    const QUEUE: &str = "countdowns";
    const KIND: &str = "countdown";
    type Output = String;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_workflow_continues_in_a_new_job_with_an_empty_journal() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow_job(move |Countdown { from }, workflow: Workflow| {
                let count = count.clone();
                async move {
                    workflow.step("tick", || async { Ok(count.add(format!("tick {from}"))) }).await?;
                    if from > 0 {
                        return workflow.continue_as(&Countdown { from: from - 1 });
                    }
                    count.add("lift-off");
                    Ok("lift-off".to_owned())
                }
            })
        });
        assert_eq!(Countdown { from: 2 }.request().expect("JSON").queue, "countdowns");
        let first = harness.engine.push(&Countdown { from: 2 }).await.expect("accepted").id;
        eventually("the last job runs", async || (executions.of("lift-off") == 1).then_some(())).await;
        let expected: Value = json!({"tick 2": 1, "tick 1": 1, "tick 0": 1, "lift-off": 1});
        assert_eq!(executions.all(), expected);
        assert_eq!(harness.ended(first).await.state, JobState::Succeeded);
        let statistics = before_timeout("the worker stops", running.stop()).await;
        assert_eq!((statistics.done, statistics.failed), (3, 0));
    })
    .await;
}
