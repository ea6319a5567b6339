//! Waits: suspended workflows, events, approvals, sleeps and children.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use client::{ChildState, HandlerError, JobContext, Workflow};
use domain::JobState;
use serde_json::json;
use testkit::eventually::eventually;
use testkit::on_both;

use crate::harness::{Executions, Harness};

/// Counts the handlers that exist.
struct Alive(Arc<AtomicUsize>);

impl Alive {
    fn new(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::SeqCst);
        Self(count.clone())
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_waiting_workflow_holds_no_handler_and_no_worker() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let (alive, executions) = (Arc::new(AtomicUsize::new(0)), Executions::default());
        let handlers = |alive: &Arc<AtomicUsize>, executions: &Executions| {
            let (alive, executions) = (alive.clone(), executions.clone());
            move |workflow: Workflow| {
                let (alive, executions) = (Alive::new(&alive), executions.clone());
                async move {
                    let _alive = alive;
                    executions.add("runs");
                    workflow.step("before", || async { Ok(executions.add("before")) }).await?;
                    let paid: u64 =
                        workflow.wait_for_event("paid").matching("order", &7).await.map(|paid: Paid| paid.total)?;
                    Ok(paid)
                }
            }
        };
        let first = harness.work(|builder| builder.workflow("order", handlers(&alive, &executions)));
        let job = harness.push("order", json!(null)).await;
        harness.in_state(job, JobState::Waiting).await;
        eventually("the handler is dropped", async || (alive.load(Ordering::SeqCst) == 0).then_some(())).await;
        assert_eq!(first.stop().await.suspended, 1);
        // No worker exists while the event arrives.
        harness.send(job, "paid", json!({"order": 8, "total": 1})).await;
        harness.send(job, "paid", json!({"order": 7, "total": 99})).await;
        harness.in_state(job, JobState::Queued).await;
        let second = harness.work(|builder| builder.workflow("order", handlers(&alive, &executions)));
        assert_eq!(harness.result(job).await, json!(99));
        assert_eq!(executions.all(), json!({"runs": 2, "before": 1}));
        assert_eq!(harness.job(job).await.attempt, 1, "a wait uses up no attempt");
        second.stop().await;
    })
    .await;
}

#[derive(serde::Deserialize)]
struct Paid {
    total: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn an_event_may_arrive_before_the_wait_and_a_timeout_is_none() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let job = harness.push("events", json!(null)).await;
        harness.send(job, "early", json!("bird")).await;
        let running = harness.work(|builder| {
            builder.workflow("events", |workflow: Workflow| async move {
                let early: String = workflow.wait_for_event("early").await?;
                let late = workflow.wait_for_event::<String>("late").timeout(Duration::from_millis(20)).await?;
                let ignored = workflow.wait_for_event::<String>("early").since_now();
                let ignored = ignored.timeout(Duration::from_millis(20)).await?;
                workflow.sleep(Duration::from_millis(20)).await?;
                Ok((early, late, ignored))
            })
        });
        assert_eq!(harness.result(job).await, json!(["bird", null, null]));
        assert_eq!(harness.keys(job).await, ["early", "late", "early#2", "sleep"]);
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_approval_returns_the_answer_of_a_person() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let running = harness.work(|builder| {
            builder.workflow("ship", |workflow: Workflow| async move {
                let answer = workflow.approval("ship", "Ship the order?").detail("Order 7").await?;
                let rejected = workflow.approval("ship", "Really?").await?;
                let none = workflow.approval("later", "Later?").timeout(Duration::from_millis(20)).await?;
                Ok((answer.approved, answer.by, answer.note, rejected.approved, none.is_none()))
            })
        });
        let job = harness.push("ship", json!(null)).await;
        harness.in_state(job, JobState::Waiting).await;
        harness.engine.approve(job, "ship", Some("fine")).await.expect("it is answered");
        eventually("the second question is asked", async || {
            (harness.keys(job).await.len() == 2 && harness.job(job).await.state == JobState::Waiting).then_some(())
        })
        .await;
        harness.engine.reject(job, "ship#2", None).await.expect("it is answered");
        assert_eq!(harness.result(job).await, json!([true, "embedded", "fine", false, true]));
        running.stop().await;
    })
    .await;
}

#[derive(serde::Serialize, serde::Deserialize)]
struct Square {
    of: i64,
}

impl client::Job for Square {
    const QUEUE: &str = "q";
    const KIND: &str = "square";
    type Output = i64;
}

async fn square(Square { of }: Square, _: JobContext) -> Result<i64, HandlerError> {
    match of {
        13 => Err(HandlerError::permanent("unlucky", "13")),
        of => Ok(of * of),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_return_typed_results_in_order() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.job(square).workflow("fan", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    count.add("runs");
                    let squares: Vec<i64> = workflow.gather((100..150).map(|of| Square { of })).await?;
                    let one: i64 = workflow.spawn(&Square { of: 9 }).await?;
                    let started = workflow.spawn(&Square { of: 5 }).start().await?;
                    let outcomes = workflow.gather([Square { of: 2 }, Square { of: 13 }]).outcomes().await?;
                    let states: Vec<bool> =
                        outcomes.iter().map(|outcome| outcome.state == ChildState::Succeeded).collect();
                    let code = outcomes[1].error.as_ref().map(|error| error.code.clone());
                    let failed = workflow.spawn(&Square { of: 13 }).await.is_err();
                    let none: Vec<i64> = workflow.gather::<Square>([]).await?;
                    Ok((squares.iter().sum::<i64>(), one, started.await?, states, code, failed, none))
                }
            })
        });
        let job = harness.push("fan", json!(null)).await;
        let expected = json!([(100..150).map(|of| of * of).sum::<i64>(), 81, 25, [true, false], "unlucky", true, []]);
        assert_eq!(harness.result(job).await, expected);
        assert!(executions.of("runs") <= 6, "the workflow is resumed once per wait: {}", executions.all());
        running.stop().await;
    })
    .await;
}

/// The event is sent while a branch runs a step, and the timer of the other branch has ended.
#[tokio::test(flavor = "multi_thread")]
async fn branches_take_the_same_way_on_every_run() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("race", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    let mut winners = Vec::new();
                    for round in 0..8 {
                        let scope = workflow.scope("round");
                        let winner = tokio::select! {
                            slow = scope.sleep(Duration::from_millis(5)).into_future() => slow.map(|()| "sleep"),
                            fast = scope.sleep(Duration::from_millis(5)).into_future() => fast.map(|()| "sleep#2"),
                            step = scope.step("step", || async { Ok(()) }).into_future() => step.map(|()| "step"),
                        }?;
                        winners.push(winner.to_owned());
                        let recorded: String = scope.step("winner", || async { Ok(winner.to_owned()) }).await?;
                        if recorded != winner {
                            count.add(format!("round {round} changed from {recorded} to {winner}"));
                        }
                        workflow.sleep(Duration::from_millis(1)).await?;
                    }
                    Ok(winners)
                }
            })
        });
        let job = harness.push("race", json!(null)).await;
        harness.result(job).await;
        assert_eq!(executions.all(), json!({}));
        running.stop().await;
    })
    .await;
}

/// A branch that sleeps does not keep the steps of another one from being recorded before the suspend.
#[tokio::test(flavor = "multi_thread")]
async fn parallel_branches_suspend_when_all_of_them_wait() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("branches", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    let branches = (0..100).map(|number| {
                        let (scope, count) = (workflow.scope("branch"), count.clone());
                        async move {
                            scope.step("a", || async { Ok(count.add("a")) }).await?;
                            let data: i64 = scope.wait_for_event(&format!("go {number}")).await?;
                            scope.step("b", || async { Ok(count.add("b")) }).await?;
                            Ok::<_, HandlerError>(data)
                        }
                    });
                    let all = futures_util::future::try_join_all(branches).await?;
                    Ok(all.iter().sum::<i64>())
                }
            })
        });
        let job = harness.push("branches", json!(null)).await;
        harness.in_state(job, JobState::Waiting).await;
        assert_eq!(harness.keys(job).await.len(), 200, "every branch waits");
        for number in 0..100 {
            harness.send(job, &format!("go {number}"), json!(number)).await;
        }
        assert_eq!(harness.result(job).await, json!(4_950));
        assert_eq!(executions.all(), json!({"a": 100, "b": 100}));
        running.stop().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_canceled_workflow_stops_while_it_waits_and_while_it_runs() {
    on_both(async |database| {
        let harness = Harness::on(database).await;
        let executions = Executions::default();
        let count = executions.clone();
        let running = harness.work(|builder| {
            builder.workflow("cancel", move |workflow: Workflow| {
                let count = count.clone();
                async move {
                    if workflow.payload::<String>()? == "waits" {
                        workflow.wait_for_event::<()>("never").await?;
                    }
                    let job = workflow.job().clone();
                    let started = workflow.step("until canceled", || async {
                        count.add("started");
                        job.cancellation().cancelled().await;
                        Ok(())
                    });
                    started.await?;
                    workflow.step("after", || async { Ok(count.add("after")) }).await
                }
            })
        });
        let waits = harness.push("cancel", json!("waits")).await;
        harness.in_state(waits, JobState::Waiting).await;
        harness.engine.cancel(waits).await.expect("it is canceled");
        assert_eq!(harness.ended(waits).await.state, JobState::Canceled);
        let runs = harness.push("cancel", json!("runs")).await;
        eventually("the step runs", async || (executions.of("started") == 1).then_some(())).await;
        harness.engine.cancel(runs).await.expect("it is canceled");
        assert_eq!(harness.ended(runs).await.state, JobState::Canceled);
        running.stop().await;
        assert_eq!(executions.all(), json!({"started": 1}), "no step begins after a cancellation");
    })
    .await;
}
