//! Runs: nodes start when their needs end, and a run ends exactly once.

use std::collections::BTreeMap;

use domain::triggers::trigger::Source;
use domain::workflows::graph::GraphError;
use domain::{JobId, Label, NeedCondition, OnFailure, RunState};
use store::Store;
use store::queue::cancel::Canceled;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::{End, Outcome, SettleStatus};
use store::workflows::runs::cancel::RunCanceled;
use store::workflows::runs::inputs::Input;
use store::workflows::runs::retry::RunRetried;
use store::workflows::runs::{NewNode, NewRun, NodesAdded, Run, RunFilter, RunStarted};
use testkit::{Database, job, label, on_both, on_postgres};

use crate::support::*;
use crate::triggers::declarations::{create, new};

pub(crate) fn node(name: &str, needs: &[&str]) -> NewNode {
    let needs = needs.iter().map(|need| label(need)).collect();
    NewNode { name: label(name), job: job("q"), needs, earlier_needs: Vec::new(), condition: NeedCondition::Success }
}

fn when(condition: NeedCondition, name: &str, needs: &[&str]) -> NewNode {
    NewNode { condition, ..node(name, needs) }
}

fn new_run(id: &str, on_failure: OnFailure) -> NewRun {
    let (name, webhook, tags) = (None, None, Vec::new());
    NewRun { id: label(id), name, on_failure, webhook, tags, principal: "test".into(), depth: 0, parent: None }
}

pub(crate) type Jobs = BTreeMap<String, JobId>;

fn by_name(jobs: Vec<(Label, JobId)>) -> Jobs {
    jobs.into_iter().map(|(name, job)| (name.to_string(), job)).collect()
}

pub(crate) async fn start(store: &Store, id: &str, on_failure: OnFailure, nodes: Vec<NewNode>) -> Jobs {
    match store.start_run(T, new_run(id, on_failure), nodes).await.expect("starts") {
        RunStarted::Started(jobs) => by_name(jobs),
        other => panic!("{other:?}"),
    }
}

async fn run(store: &Store, id: &str) -> Run {
    store.run(T, label(id)).await.expect("reads").expect("the run exists").0
}

pub(crate) async fn states(store: &Store, jobs: &Jobs) -> String {
    let mut text = Vec::new();
    for (name, job) in jobs {
        text.push(format!("{name} {}", state(store, *job).await));
    }
    text.join(", ")
}

/// Claims the only runnable job and ends it.
async fn end_next(store: &Store, worker: domain::WorkerId, end: End) -> JobId {
    let claimed = claim_one(store, worker).await;
    assert_eq!(settle(store, worker, claimed.id, claimed.epoch, end).await, SettleStatus::Applied);
    claimed.id
}

fn succeed() -> End {
    End::Finish(Some("42".into()))
}

fn fail() -> End {
    End::Fail(domain::JobError { retryable: false, ..boom() })
}

/// Everything that must hold at the end of a test.
async fn assert_consistent(db: &Database) {
    assert_counters_match(&db.store).await;
    assert_eq!(db.store.verify().await.expect("verifies").findings, []);
}

#[tokio::test]
async fn a_pipeline_runs_in_order_with_the_results_as_inputs() {
    on_both(async |db| {
        let nodes = vec![node("c", &["a", "b"]), node("b", &["a"]), node("a", &[])];
        let jobs = start(&db.store, "r", OnFailure::Cancel, nodes).await;
        assert_eq!(states(&db.store, &jobs).await, "a queued, b waiting, c waiting");
        let worker = register(&db.store, &["q"]).await;
        let first = claim(&db.store, worker, 10).await;
        assert_eq!(first.iter().map(|job| job.id).collect::<Vec<_>>(), [jobs["a"]]);
        assert_eq!(first[0].inputs, None, "it needs nothing");
        finish(&db.store, worker, &first[0]).await;
        assert_eq!(states(&db.store, &jobs).await, "a succeeded, b queued, c waiting");
        let second = claim_one(&db.store, worker).await;
        assert_eq!(second.inputs, Some(vec![("a".into(), Input::Inline("42".into()))]));
        settle(&db.store, worker, second.id, second.epoch, End::Finish(None)).await;
        let third = claim_one(&db.store, worker).await;
        let inputs = vec![("a".into(), Input::Inline("42".into())), ("b".into(), Input::Inline("null".into()))];
        assert_eq!((third.id, third.inputs.clone()), (jobs["c"], Some(inputs)));
        assert_eq!(run(&db.store, "r").await.state, RunState::Running);
        finish(&db.store, worker, &third).await;
        let ended = run(&db.store, "r").await;
        assert_eq!((ended.state, ended.live, ended.succeeded), (RunState::Succeeded, 0, 3));
        assert_eq!(ended.finished_at, get(&db.store, jobs["c"]).await.finished_at);
        assert_eq!(events(&db.store, jobs["b"]).await, ["enqueued", "started", "finished"]);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_large_result_is_an_input_by_reference() {
    on_both(async |db| {
        start(&db.store, "r", OnFailure::Cancel, vec![node("a", &[]), node("b", &["a"])]).await;
        let worker = register(&db.store, &["q"]).await;
        let large = format!("\"{}\"", "x".repeat(64 << 10));
        let a = end_next(&db.store, worker, End::Finish(Some(large.as_str().into()))).await;
        let inputs = claim_one(&db.store, worker).await.inputs.expect("it has inputs");
        assert_eq!(inputs, [("a".to_owned(), Input::Reference { job: a, size: large.len() as i64 })]);
    })
    .await;
}

#[tokio::test]
async fn a_failure_cancels_what_needs_it_and_starts_its_handlers() {
    on_both(async |db| {
        let nodes = vec![
            node("a", &[]),
            node("b", &["a"]),
            node("c", &["b"]),
            when(NeedCondition::Failure, "undo", &["a"]),
            when(NeedCondition::Always, "report", &["c", "undo"]),
            node("other", &[]),
        ];
        let jobs = start(&db.store, "r", OnFailure::Continue, nodes).await;
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(end_next(&db.store, worker, fail()).await, jobs["a"]);
        let expected = "a failed, b canceled, c canceled, other queued, report waiting, undo queued";
        assert_eq!(states(&db.store, &jobs).await, expected);
        let history = db.store.history(T, jobs["c"]).await.expect("reads").expect("it has a history");
        let last = history.last().expect("it ended");
        assert_eq!((last.event.as_str(), last.cause.as_deref()), ("canceled", Some("needs: b was canceled")));
        assert_eq!(end_next(&db.store, worker, succeed()).await, jobs["other"]);
        assert_eq!(end_next(&db.store, worker, succeed()).await, jobs["undo"]);
        assert_eq!(run(&db.store, "r").await.state, RunState::Running);
        assert_eq!(end_next(&db.store, worker, succeed()).await, jobs["report"]);
        let ended = run(&db.store, "r").await;
        assert_eq!((ended.state, ended.failed, ended.canceled), (RunState::Failed, 1, 2));
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_handler_that_is_not_needed_is_skipped_and_the_run_succeeds() {
    on_both(async |db| {
        let undo = when(NeedCondition::Failure, "undo", &["a"]);
        let nodes = vec![node("a", &[]), undo, node("after", &["undo"])];
        let jobs = start(&db.store, "r", OnFailure::Cancel, nodes).await;
        let worker = register(&db.store, &["q"]).await;
        end_next(&db.store, worker, succeed()).await;
        assert_eq!(states(&db.store, &jobs).await, "a succeeded, after canceled, undo canceled");
        assert_eq!(run(&db.store, "r").await.state, RunState::Succeeded);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn the_first_failure_cancels_the_rest_of_the_run() {
    on_both(async |db| {
        let cleanup = when(NeedCondition::Always, "cleanup", &["a", "b", "c"]);
        let nodes = vec![node("a", &[]), node("b", &[]), node("c", &[]), cleanup];
        let jobs = start(&db.store, "r", OnFailure::Cancel, nodes).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 2).await;
        settle(&db.store, worker, claimed[0].id, claimed[0].epoch, fail()).await;
        assert_eq!(db.store.stop_runs().await.expect("stops"), 1);
        assert_eq!(states(&db.store, &jobs).await, "a failed, b canceled, c canceled, cleanup queued");
        assert_eq!(end_next(&db.store, worker, succeed()).await, jobs["cleanup"]);
        assert_eq!(run(&db.store, "r").await.state, RunState::Failed);
        assert_eq!(db.store.stop_runs().await.expect("stops"), 0);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_chain_of_a_thousand_nodes_ends_with_its_first_failure() {
    on_both(async |db| {
        let names: Vec<String> = (0..1_000).map(|number| format!("n{number}")).collect();
        let nodes = names.iter().enumerate().map(|(number, name)| match number {
            0 => node(name, &[]),
            _ => node(name, &[&names[number - 1]]),
        });
        start(&db.store, "r", OnFailure::Continue, nodes.collect()).await;
        let worker = register(&db.store, &["q"]).await;
        end_next(&db.store, worker, fail()).await;
        let ended = run(&db.store, "r").await;
        assert_eq!((ended.state, ended.live, ended.canceled), (RunState::Failed, 0, 999));
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_canceled_run_ends_once_with_all_its_jobs() {
    on_both(async |db| {
        create(&db.store, new("hears", Source::Run, "{}")).await;
        let cleanup = when(NeedCondition::Always, "cleanup", &["a"]);
        let nodes = vec![node("a", &[]), node("b", &[]), node("c", &["b"]), cleanup];
        let jobs = start(&db.store, "r", OnFailure::Cancel, nodes).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        for _ in 0..2 {
            assert_eq!(db.store.cancel_run(T, label("r"), "me".into()).await.expect("cancels"), RunCanceled::Canceled);
        }
        assert_eq!(states(&db.store, &jobs).await, "a canceled, b canceled, c canceled, cleanup canceled");
        let ended = run(&db.store, "r").await;
        assert_eq!((ended.state, ended.canceled_by.as_deref()), (RunState::Canceled, Some("me")));
        assert_eq!(settle(&db.store, worker, claimed.id, claimed.epoch, End::Cancel).await, SettleStatus::Applied);
        assert_eq!(number(&db.store, "select count(*) from outbox").await, 1);
        let missing = db.store.cancel_run(T, label("nowhere"), "me".into()).await;
        assert_eq!(missing.expect("answers"), RunCanceled::NotFound);
        assert_consistent(&db).await;
    })
    .await;
}

/// Ends the branches of a fan-out from two nodes at once. The join starts once and the run ends once.
async fn race(db: &Database, round: usize, stores: [Store; 2]) {
    let id = format!("r{round}");
    let names: Vec<String> = (0..8).map(|number| format!("n{number}")).collect();
    let needs: Vec<&str> = names.iter().map(String::as_str).collect();
    let nodes = names.iter().map(|name| node(name, &[])).chain([node("join", &needs), node("last", &["join"])]);
    let jobs = start(&db.store, &id, OnFailure::Cancel, nodes.collect()).await;
    let worker = register_with_long_lease(&db.store).await;
    let claimed = claim(&db.store, worker, 10).await;
    assert_eq!(claimed.len(), 8);
    let mut ends = tokio::task::JoinSet::new();
    for (number, job) in claimed.into_iter().enumerate() {
        let store = stores[number % 2].clone();
        ends.spawn(async move {
            let outcome = Outcome { job: job.id, epoch: job.epoch, end: succeed() };
            store.settle(T, worker, vec![outcome]).await.expect("settles")
        });
    }
    ends.join_all().await;
    assert_eq!(state(&db.store, jobs["join"]).await, "queued", "no wake-up is lost");
    assert_eq!(get(&db.store, jobs["join"]).await.version, 2, "and it happens once");
    assert_eq!(end_next(&db.store, worker, succeed()).await, jobs["join"]);
    let last = claim_one(&db.store, worker).await;
    let other = {
        let fresh =
            NewJob { extras: Some(Box::new(Extras { run: Some(label(&id)), ..Extras::default() })), ..job("q") };
        push(&db.store, fresh).await;
        claim_one(&db.store, worker).await
    };
    let mut ends = tokio::task::JoinSet::new();
    for (store, job) in stores.into_iter().zip([last, other]) {
        ends.spawn(async move { settle(&store, worker, job.id, job.epoch, succeed()).await });
    }
    ends.join_all().await;
    assert_eq!(run(&db.store, &id).await.state, RunState::Succeeded);
    assert_eq!(number(&db.store, "select count(*) from outbox").await, round as i64 + 1, "each run ended once");
}

#[tokio::test]
async fn concurrent_last_ends_start_the_join_once_and_end_the_run_once() {
    on_both(async |db| {
        create(&db.store, new("hears", Source::Run, "{}")).await;
        for round in 0..5 {
            race(&db, round, [db.store.clone(), db.store.clone()]).await;
        }
        assert_consistent(&db).await;
    })
    .await;
    on_postgres(async |db| {
        create(&db.store, new("hears", Source::Run, "{}")).await;
        for round in 0..10 {
            race(&db, round, [db.another_node().await, db.another_node().await]).await;
        }
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_thousand_branches_join_once() {
    on_both(async |db| {
        let names: Vec<String> = (0..1_000).map(|number| format!("n{number}")).collect();
        let needs: Vec<&str> = names.iter().map(String::as_str).collect();
        let nodes = names.iter().map(|name| node(name, &[])).chain([node("join", &needs)]);
        let jobs = start(&db.store, "r", OnFailure::Cancel, nodes.collect()).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim(&db.store, worker, 2_000).await;
        assert_eq!(claimed.len(), 1_000);
        for part in claimed.chunks(300) {
            assert_eq!(state(&db.store, jobs["join"]).await, "waiting");
            let end = |job: &store::queue::claim::ClaimedJob| Outcome {
                job: job.id,
                epoch: job.epoch,
                end: End::Finish(None),
            };
            db.store.settle(T, worker, part.iter().map(end).collect()).await.expect("settles");
        }
        let join = claim_one(&db.store, worker).await;
        assert_eq!((join.id, join.inputs.as_ref().map(Vec::len)), (jobs["join"], Some(1_000)));
        finish(&db.store, worker, &join).await;
        assert_eq!(run(&db.store, "r").await.state, RunState::Succeeded);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_refused_graph_creates_nothing() {
    on_both(async |db| {
        let refused = [
            vec![node("a", &["b"]), node("b", &["a"])],
            vec![node("a", &["missing"])],
            vec![node("a", &[]), node("a", &[])],
        ];
        for nodes in refused {
            let answer = db.store.start_run(T, new_run("r", OnFailure::Cancel), nodes).await.expect("answers");
            assert!(matches!(answer, RunStarted::Refused(_)), "{answer:?}");
        }
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 0);
        assert_eq!(db.store.run(T, label("r")).await.expect("reads").map(|_| ()), None);
        start(&db.store, "r", OnFailure::Cancel, vec![node("a", &[])]).await;
        let again =
            db.store.start_run(T, new_run("r", OnFailure::Cancel), vec![node("b", &[])]).await.expect("answers");
        assert_eq!(again, RunStarted::Exists);
        assert_eq!(number(&db.store, "select count(*) from jobs").await, 1);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn nodes_are_added_to_a_live_run_and_not_to_an_ended_one() {
    on_both(async |db| {
        start(&db.store, "r", OnFailure::Continue, vec![node("split", &[]), node("hold", &[])]).await;
        let worker = register(&db.store, &["q"]).await;
        end_next(&db.store, worker, succeed()).await;
        let add = async |nodes| db.store.add_nodes(T, label("r"), nodes).await.expect("answers");
        let more = vec![node("a", &["split"]), node("b", &["split"]), node("join", &["a", "b", "hold"])];
        let NodesAdded::Added(jobs) = add(more).await else { panic!("not added") };
        let jobs = by_name(jobs);
        assert_eq!(states(&db.store, &jobs).await, "a queued, b queued, join waiting");
        let refused = add(vec![node("x", &["nowhere"])]).await;
        assert_eq!(refused, NodesAdded::Refused(GraphError::UnknownNeed { node: 0, need: "nowhere".into() }));
        for _ in 0..2 {
            end_next(&db.store, worker, succeed()).await;
        }
        end_next(&db.store, worker, fail()).await;
        assert_eq!(state(&db.store, jobs["join"]).await, "canceled");
        assert_eq!(run(&db.store, "r").await.state, RunState::Failed);
        assert_eq!(add(vec![node("late", &[])]).await, NodesAdded::Ended(RunState::Failed));
        assert_eq!(db.store.add_nodes(T, label("x"), Vec::new()).await.expect("answers"), NodesAdded::NotFound);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn jobs_pushed_with_a_run_belong_to_an_open_run() {
    on_both(async |db| {
        let in_run = || {
            let extras = Extras { run: Some(label("nightly")), ..Extras::default() };
            NewJob { extras: Some(Box::new(extras)), ..job("q") }
        };
        push_all(&db.store, vec![in_run(), in_run()]).await;
        let worker = register(&db.store, &["q"]).await;
        for left in [1, 0] {
            end_next(&db.store, worker, End::Finish(None)).await;
            assert_eq!(run(&db.store, "nightly").await.live, left);
        }
        assert_eq!(run(&db.store, "nightly").await.state, RunState::Succeeded);
        push(&db.store, in_run()).await;
        let open = run(&db.store, "nightly").await;
        assert_eq!((open.state, open.live, open.finished_at), (RunState::Running, 1, None));
        end_next(&db.store, worker, fail()).await;
        assert_eq!(run(&db.store, "nightly").await.state, RunState::Failed);
        let page = db.store.runs(T, RunFilter::default(), None, 10).await.expect("lists");
        assert_eq!(page.runs.iter().map(|run| run.id.as_str()).collect::<Vec<_>>(), ["nightly"]);
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn a_retried_run_repeats_what_failed_and_everything_behind_it() {
    on_both(async |db| {
        let nodes = vec![node("a", &[]), node("b", &[]), node("join", &["a", "b"])];
        start(&db.store, "r", OnFailure::Continue, nodes).await;
        let worker = register(&db.store, &["q"]).await;
        end_next(&db.store, worker, succeed()).await;
        let retry = async |new: &str| db.store.retry_run(T, label("r"), label(new), "me").await.expect("answers");
        assert_eq!(retry("r2").await, RunRetried::Running);
        end_next(&db.store, worker, fail()).await;
        let RunRetried::Started(jobs) = retry("r2").await else { panic!("not retried") };
        let jobs = by_name(jobs);
        assert_eq!(states(&db.store, &jobs).await, "b queued, join waiting");
        assert_eq!(retry("r3").await, RunRetried::AlreadyRetried("r2".into()));
        assert_eq!(end_next(&db.store, worker, End::Finish(Some("7".into()))).await, jobs["b"]);
        let join = claim_one(&db.store, worker).await;
        let inputs = vec![("a".into(), Input::Inline("42".into())), ("b".into(), Input::Inline("7".into()))];
        assert_eq!(join.inputs, Some(inputs), "the result of the first run is an input of the second");
        finish(&db.store, worker, &join).await;
        assert_eq!(run(&db.store, "r2").await.state, RunState::Succeeded);
        assert_eq!(run(&db.store, "r2").await.parent.as_deref(), Some("r"));
        assert_consistent(&db).await;
    })
    .await;
}

#[tokio::test]
async fn results_of_a_live_run_are_not_pruned() {
    on_both(async |db| {
        start(&db.store, "r", OnFailure::Cancel, vec![node("a", &[]), node("b", &["a"])]).await;
        let worker = register_with_long_lease(&db.store).await;
        end_next(&db.store, worker, succeed()).await;
        db.pass_ms(30 * 86_400_000).await;
        assert_eq!(db.store.prune(i64::MAX / 2_000_000).await.expect("prunes").jobs, 0);
        let worker = register_with_long_lease(&db.store).await;
        let b = claim_one(&db.store, worker).await;
        assert_eq!(b.inputs, Some(vec![("a".into(), Input::Inline("42".into()))]));
        finish(&db.store, worker, &b).await;
        db.pass_ms(30 * 86_400_000).await;
        assert_eq!(db.store.prune_runs().await.expect("prunes"), 0, "its jobs exist");
        assert_eq!(db.store.prune(i64::MAX / 2_000_000).await.expect("prunes").jobs, 2);
        assert_eq!(db.store.prune_runs().await.expect("prunes"), 1);
        assert_eq!(number(&db.store, "select count(*) from run_nodes").await, 0);
        assert_eq!(number(&db.store, "select count(*) from run_needs").await, 0);
    })
    .await;
}

#[tokio::test]
async fn a_waiting_node_is_explained_and_can_be_canceled() {
    on_both(async |db| {
        let nodes = vec![node("a", &[]), node("z", &[]), node("b", &["a", "z"]), node("c", &["b"])];
        let jobs = start(&db.store, "r", OnFailure::Continue, nodes).await;
        let why = db.store.why(T, jobs["c"]).await.expect("reads").expect("it exists");
        assert_eq!(why.reason.as_str(), "waiting");
        let detail = "waits for b, which waits for a (2 of 2 needs left): no live worker serves this queue and kind";
        assert_eq!(why.detail, detail);
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(claim(&db.store, worker, 10).await.len(), 2, "waiting jobs are not claimable");
        assert_eq!(db.store.cancel(T, jobs["b"], "me".into()).await.expect("cancels"), Canceled::Canceled(jobs["b"]));
        assert_eq!(states(&db.store, &jobs).await, "a working, b canceled, c canceled, z working");
        assert_consistent(&db).await;
    })
    .await;
}
