use domain::limits::CLAIM_BYTES;
use store::queue::claim::Claimed;
use store::queue::enqueue::{Extras, NewJob};
use store::queue::settle::End;
use store::queue::workers::register::NewWorker;
use store::signals::refine::SignalChange;
use testkit::{job, label, name, on_both};

use crate::queue::limits::with_key;
use crate::support::*;

fn with(affinity: &str, priority: i32) -> NewJob {
    NewJob { affinity: Some(label(affinity)), priority, ..job("q") }
}

/// Requirement Q6.
#[tokio::test]
async fn a_claim_orders_by_priority_then_age() {
    on_both(async |db| {
        let low = push(&db.store, job("q")).await;
        let high = push(&db.store, NewJob { priority: 5, ..job("q") }).await;
        let lower = push(&db.store, NewJob { priority: -1, ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        let order: Vec<_> = claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect();
        assert_eq!(order, [high, low, lower]);
        assert_counters_match(&db.store).await;
    })
    .await;
}

/// Lanes outlive their jobs: one remains for each affinity that was ever used.
/// Requirement Q6.
#[tokio::test]
async fn a_job_is_claimed_behind_any_number_of_empty_lanes() {
    on_both(async |db| {
        let numbers = match db.store.is_postgres() {
            true => "select i from generate_series(1, 10100) as n(i)",
            false => "with recursive n(i) as (select 1 union all select i + 1 from n where i < 10100) select i from n",
        };
        let empty = format!(
            "insert into lanes (tenant, queue, kind, priority, affinity, guarded)
             select {}, 'q', 'a', 0, 'model-' || i, {} from ({numbers}) numbers",
            T.0,
            if db.store.is_postgres() { "false" } else { "0" }
        );
        run_sql(&db.store, &empty).await.expect("creates the lanes");
        let id = push(&db.store, with("the last", -5)).await;
        let worker = register(&db.store, &["q"]).await;
        let (around, _) = db.store.queue_snapshot(T, &name("q")).await.expect("reads");
        assert_eq!(around.order.scanned(), 1, "one lane has a waiting job");
        assert_eq!(claim_one(&db.store, worker).await.id, id);
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn lanes_with_work_that_a_worker_does_not_serve_hide_no_job() {
    on_both(async |db| {
        let is_postgres = db.store.is_postgres();
        let numbers = match is_postgres {
            true => "select i from generate_series(1, 10100) as n(i)",
            false => "with recursive n(i) as (select 1 union all select i + 1 from n where i < 10100) select i from n",
        };
        // One waiting job in each of more lanes than a claim queries.
        let lanes = format!(
            "insert into lanes (tenant, queue, kind, priority, affinity, guarded)
             select {}, 'q', 'other', i, '', {} from ({numbers}) numbers",
            T.0,
            if is_postgres { "false" } else { "0" }
        );
        let (id, now) = match is_postgres {
            true => ("gen_random_uuid()", "now()"),
            false => ("randomblob(16)", "1000000"),
        };
        let jobs = format!(
            "insert into jobs (id, tenant, lane, state, run_at, max_attempts, created_at, updated_at, principal, payload)
             select {id}, l.tenant, l.lane, 'queued', {now}, 3, {now}, {now}, 'p', '{{}}' from lanes l where l.kind = 'other'"
        );
        run_sql(&db.store, &lanes).await.expect("creates the lanes");
        run_sql(&db.store, &jobs).await.expect("creates the jobs");
        let low = push(&db.store, with("a", -5)).await;
        let high = push(&db.store, with("b", 7)).await;
        let kinds = Some(vec![name("k")]);
        let worker = db.store.register_worker(T, NewWorker { kinds, ..new_worker(&["q"]) }).await.expect("registers");
        assert_eq!(claim_one(&db.store, worker).await.id, high);
        assert_eq!(claim_one(&db.store, worker).await.id, low);
        let every_kind = register(&db.store, &["q"]).await;
        assert_eq!(claim_one(&db.store, every_kind).await.priority, 10_100, "the highest priority first");
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn a_worker_drains_its_affinity_before_it_swaps() {
    on_both(async |db| {
        for affinity in ["a", "b", "a", "b", "a"] {
            push(&db.store, with(affinity, 0)).await;
        }
        let worker = register(&db.store, &["q"]).await;
        let mut order = Vec::new();
        for _ in 0..5 {
            let claimed = claim_one(&db.store, worker).await;
            order.push(claimed.affinity.clone().expect("has one").to_string());
            finish(&db.store, worker, &claimed).await;
        }
        assert_eq!(order, ["a", "a", "a", "b", "b"]);
        let queue = db.store.queue(T, &name("q")).await.expect("reads").expect("exists");
        assert_eq!((queue.counts.swaps_made, queue.counts.swaps_avoided), (2, 2));
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn past_the_starvation_bound_the_oldest_other_affinity_is_claimed() {
    on_both(async |db| {
        let settings = domain::QueueSettings { starvation_s: Some(600), ..Default::default() };
        db.store.put_queue(T, name("q"), settings, "me".into()).await.expect("puts");
        push(&db.store, with("a", 0)).await;
        let worker = register_with_long_lease(&db.store).await;
        let first = claim_one(&db.store, worker).await;
        finish(&db.store, worker, &first).await;
        let other = push(&db.store, with("b", 0)).await;
        db.pass_ms(300_000).await;
        let younger = push(&db.store, with("a", 0)).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.id, younger, "the held affinity comes first");
        finish(&db.store, worker, &claimed).await;
        push(&db.store, with("a", 0)).await;
        db.pass_ms(301_000).await;
        assert_eq!(claim_one(&db.store, worker).await.id, other, "it waited for 601 s");
    })
    .await;
}

/// Requirement Q6.
#[tokio::test]
async fn waiting_jobs_are_reported_by_queue_and_affinity() {
    on_both(async |db| {
        let oldest = push(&db.store, with("a", 0)).await;
        db.pass_ms(1_000).await;
        for new in [with("a", 0), with("a", 5), with("b", 0), job("q"), job("plain")] {
            push(&db.store, new).await;
        }
        let waiting_lanes = async || {
            let lanes = db.store.affinity_lanes(T).await.expect("reads");
            assert!(lanes.iter().all(|lane| lane.queue == name("q")), "other queues have no affinities: {lanes:?}");
            let figures = |lane: store::queue::queues::affinities::AffinityLane| {
                (lane.affinity.map_or(String::new(), |own| own.to_string()), lane.priority, lane.waiting)
            };
            lanes.into_iter().map(figures).collect::<Vec<_>>()
        };
        let line = |affinity: &str, priority: i32, waiting: i64| (affinity.to_owned(), priority, waiting);
        assert_eq!(waiting_lanes().await, [line("", 0, 1), line("a", 5, 1), line("a", 0, 2), line("b", 0, 1)]);
        let first = db.store.affinity_lanes(T).await.expect("reads").into_iter().map(|lane| lane.oldest).min();
        let job = db.store.job(T, oldest).await.expect("reads").expect("is there");
        assert_eq!(first, Some(Some(job.run_at)));
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        assert_eq!(claimed.affinity, Some(label("a")));
        assert_eq!(waiting_lanes().await[1], line("a", 5, 0), "claimed jobs do not count as waiting");
    })
    .await;
}

#[tokio::test]
async fn one_claim_returns_at_most_one_affinity() {
    on_both(async |db| {
        for affinity in ["a", "b", "a"] {
            push(&db.store, with(affinity, 0)).await;
        }
        push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim(&db.store, worker, 10).await;
        let affinities: Vec<_> = claimed.iter().filter_map(|job| job.affinity.clone()).collect();
        assert_eq!(affinities, [label("a"), label("a")]);
        assert_eq!(claimed.len(), 3, "jobs without an affinity fit any claim");
    })
    .await;
}

#[tokio::test]
async fn a_worker_claims_only_its_queues_kinds_and_affinities() {
    on_both(async |db| {
        push(&db.store, NewJob { kind: name("other"), ..job("q") }).await;
        push(&db.store, job("elsewhere")).await;
        push(&db.store, with("big", 0)).await;
        let mine = push(&db.store, with("small", 0)).await;
        let new =
            NewWorker { kinds: Some(vec![name("k")]), affinities: Some(vec![label("small")]), ..new_worker(&["q"]) };
        let worker = db.store.register_worker(T, new).await.expect("registers");
        let claimed: Vec<_> = claim(&db.store, worker, 10).await.iter().map(|job| job.id).collect();
        assert_eq!(claimed, [mine]);
    })
    .await;
}

/// Requirement X3.
#[tokio::test]
async fn no_job_is_claimed_by_two_workers() {
    on_both(async |db| {
        push_all(&db.store, (0..500).map(|_| job("q")).collect()).await;
        let other = db.another_node().await;
        let mut claims = tokio::task::JoinSet::new();
        for n in 0..8 {
            let store = if n % 2 == 0 { db.store.clone() } else { other.clone() };
            claims.spawn(async move {
                let worker = register(&store, &["q"]).await;
                let mut ids = Vec::new();
                loop {
                    let got = claim(&store, worker, 17).await;
                    if got.is_empty() {
                        return ids;
                    }
                    ids.extend(got.into_iter().map(|job| (job.id, job.epoch)));
                }
            });
        }
        let ids: Vec<_> = claims.join_all().await.into_iter().flatten().collect();
        let distinct: std::collections::HashSet<_> = ids.iter().copied().collect();
        assert_eq!(distinct.len(), ids.len(), "a job was claimed twice");
        // A claim may skip rows that another transaction has locked at that moment. No job may be skipped for long.
        let worker = register(&db.store, &["q"]).await;
        assert_eq!(ids.len() + claim(&db.store, worker, 1000).await.len(), 500);
        assert_counters_match(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn an_unknown_and_a_dead_worker_cannot_claim() {
    on_both(async |db| {
        let unknown = domain::WorkerId::new(store::db::clock::new_uuid(db.clock.now()));
        assert!(matches!(db.store.claim(T, unknown, 1, None).await, Ok(Claimed::NotFound)));
        let worker = register(&db.store, &["q"]).await;
        db.pass_ms(31_000).await;
        assert!(matches!(db.store.claim(T, worker, 1, None).await, Ok(Claimed::LeaseExpired)));
    })
    .await;
}

/// An empty claim satisfies other waiters of the same jobs, except when a job was skipped because another claim had
/// locked it.
/// Requirement Q6.
#[tokio::test]
async fn a_claim_reports_whether_it_skipped_locked_jobs() {
    on_both(async |db| {
        let store = &db.store;
        let worker = register(store, &["q"]).await;
        let may_have_more = async || match store.claim(T, worker, 1, None).await.expect("claims") {
            Claimed::Jobs { jobs, may_have_more, .. } => (jobs.len(), may_have_more),
            other => panic!("the worker cannot claim: {other:?}"),
        };
        assert_eq!(may_have_more().await, (0, false), "no job is ready");
        for new in [job("q"), with_key("k")] {
            let id = push(store, new).await;
            if store.is_postgres() {
                let other = psql(&db.url).await;
                other.client.batch_execute("begin; select 1 from windlass.jobs for update").await.expect("locks");
                assert_eq!(may_have_more().await, (0, true), "another transaction has locked it");
                other.client.batch_execute("rollback").await.expect("rolls back");
            }
            let (taken, _) = may_have_more().await;
            assert_eq!((taken, state(store, id).await), (1, "working".to_owned()));
        }
        push(store, with_key("k")).await;
        assert_eq!(may_have_more().await.0, 0, "its key is held");
        assert_eq!(may_have_more().await, (0, false), "it is parked");
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn a_job_with_another_affinity_than_the_worker_holds_starts_in_loading() {
    on_both(async |db| {
        let with = |affinity: &str, extras: Extras| NewJob {
            affinity: Some(label(affinity)),
            extras: Some(Box::new(extras)),
            ..job("q")
        };
        let plain = || Extras::default();
        let guarded = Extras { subject: Some(label("m")), ..Extras::default() };
        let worker = register(&db.store, &["q"]).await;
        let states = async |jobs: Vec<NewJob>| {
            push_all(&db.store, jobs).await;
            let claimed = claim(&db.store, worker, 10).await;
            for job in &claimed {
                assert_eq!(state(&db.store, job.id).await, job.state.to_string(), "the row and the reply agree");
            }
            let last = claimed.last().expect("a job").id;
            let states: Vec<String> = claimed.iter().map(|job| job.state.to_string()).collect();
            (states.join(" "), events(&db.store, last).await.join(" "))
        };
        let loading = |states: &str| (states.to_owned(), "enqueued started loading".to_owned());
        let working = |states: &str| (states.to_owned(), "enqueued started".to_owned());
        assert_eq!(states(vec![job("q")]).await, working("working"), "a job without an affinity loads nothing");
        assert_eq!(states(vec![with("a", plain()), with("a", plain())]).await, loading("loading loading"));
        assert_eq!(states(vec![with("a", plain())]).await, working("working"), "the worker holds it now");
        assert_eq!(states(vec![with("b", guarded)]).await, loading("loading"), "also a job with a subject");
        let holds_a = match db.store.claim(T, register(&db.store, &["q"]).await, 1, Some(label("a"))).await {
            Ok(Claimed::Jobs { jobs, .. }) => jobs.len(),
            other => panic!("{other:?}"),
        };
        assert_eq!(holds_a, 0, "nothing waits");
        assert_counters_match(&db.store).await;
        assert_eq!(db.store.verify().await.expect("verifies").findings, []);
    })
    .await;
}

/// Requirement Q2.
#[tokio::test]
async fn a_job_that_loaded_shows_loading_before_working() {
    on_both(async |db| {
        let id = push(&db.store, NewJob { affinity: Some(label("a")), ..job("q") }).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let working =
            SignalChange { epoch: claimed.epoch, state: Some(domain::JobState::Working), ..SignalChange::default() };
        db.store.signal(T, id, working).await.expect("signals");
        finish(&db.store, worker, &claimed).await;
        assert_eq!(events(&db.store, id).await, ["enqueued", "started", "loading", "working", "finished"]);
    })
    .await;
}

/// One claim of a thousand large jobs would fill the memory of the server and of the worker. The jobs that it leaves are
/// claimed next, in order.
/// Requirement X13.
#[tokio::test]
async fn a_claim_stops_at_a_number_of_bytes() {
    const LARGE: usize = CLAIM_BYTES / 4;
    on_both(async |db| {
        let payload: Box<str> = format!("\"{}\"", "x".repeat(LARGE)).into();
        let on = |subject: String| Some(Box::new(Extras { subject: Some(label(&subject)), ..Extras::default() }));
        let worker = register(&db.store, &["q"]).await;
        let plain = |_| None;
        let guarded = |number: usize| on(format!("s{number}"));
        let extras: [&dyn Fn(usize) -> Option<Box<Extras>>; 3] = [&plain, &guarded, &plain];
        for extras in extras {
            let mut pushed = Vec::new();
            for number in 0..6 {
                let new = NewJob { payload: payload.clone(), extras: extras(number), ..job("q") };
                pushed.push(push(&db.store, new).await);
            }
            let first = claim(&db.store, worker, 100).await;
            assert_eq!(first.iter().map(|job| job.id).collect::<Vec<_>>(), pushed[..4], "four reach the limit");
            let rest = claim(&db.store, worker, 100).await;
            assert_eq!(rest.iter().map(|job| job.id).collect::<Vec<_>>(), pushed[4..]);
            for job in first.iter().chain(&rest) {
                settle(&db.store, worker, job.id, job.epoch, End::Finish(None)).await;
            }
        }
        let larger =
            push(&db.store, NewJob { payload: format!("\"{}\"", "x".repeat(2 * CLAIM_BYTES)).into(), ..job("q") });
        let larger = larger.await;
        assert_eq!(claim_one(&db.store, worker).await.id, larger, "at least one job is claimed");
        assert_counters_match(&db.store).await;
    })
    .await;
}
