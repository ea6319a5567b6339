use std::collections::BTreeSet;

use domain::{JobId, JobState};
use store::Store;
use store::queue::enqueue::{Extras, NewJob, Unique};
use store::queue::list::{JobFilter, JobPage};
use store::queue::queues::autocomplete::FilterSuggestions;
use store::queue::settle::End;
use testkit::{job, label, name, on_both};

use crate::support::*;

async fn page(store: &Store, filter: JobFilter, before: Option<JobId>, limit: usize) -> JobPage {
    store.list_jobs(T, filter, before, limit).await.expect("lists")
}

async fn ids(store: &Store, filter: JobFilter) -> Vec<JobId> {
    let page = page(store, filter, None, 100).await;
    assert!(!page.partial && page.next.is_none(), "the result fits one page");
    page.jobs.iter().map(|job| job.id).collect()
}

fn with(change: impl FnOnce(&mut Extras)) -> NewJob {
    let mut extras = Extras::default();
    change(&mut extras);
    NewJob { extras: Some(Box::new(extras)), ..job("q") }
}

/// Checks that the filter returns one live and one ended job among others that do not match.
async fn check(wanted: impl Fn() -> NewJob, filter: JobFilter) {
    on_both(async |db| {
        let store = &db.store;
        let ended = push(store, wanted()).await;
        let other = push(store, NewJob { queue: name("elsewhere"), kind: name("other"), ..job("q") }).await;
        let worker = register(store, &["q", "elsewhere"]).await;
        for claimed in claim(store, worker, 10).await {
            settle(
                store,
                worker,
                claimed.id,
                claimed.epoch,
                End::Fail(domain::JobError { retryable: false, ..boom() }),
            )
            .await;
        }
        db.pass_ms(10).await;
        push(store, NewJob { queue: name("elsewhere"), kind: name("other"), ..job("q") }).await;
        db.pass_ms(10).await;
        let live = push(store, wanted()).await;
        assert_eq!(ids(store, filter.clone()).await, [live, ended], "newest first: {filter:?}");
        assert_eq!(ids(store, JobFilter { state: Some(JobState::Failed), ..filter.clone() }).await, [ended]);
        assert_eq!(ids(store, JobFilter { state: Some(JobState::Queued), ..filter.clone() }).await, [live]);
        assert!(!ids(store, filter.clone()).await.contains(&other));
        let unknown = store.list_jobs(domain::TenantId(77), filter.clone(), None, 100).await.expect("lists");
        assert!(unknown.jobs.is_empty(), "another tenant sees nothing");
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_queue() {
    check(|| job("q"), JobFilter { queue: Some("q".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_kind() {
    check(|| job("q"), JobFilter { kind: Some("k".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_affinity() {
    let wanted = || NewJob { affinity: Some(label("llama")), ..job("q") };
    check(wanted, JobFilter { affinity: Some("llama".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_subject() {
    let wanted = || with(|extras| extras.subject = Some(label("m 7")));
    check(wanted, JobFilter { subject: Some("m 7".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_run() {
    let wanted = || with(|extras| extras.run = Some(label("r1")));
    check(wanted, JobFilter { run: Some("r1".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_tag() {
    let wanted = || with(|extras| extras.tags = vec![label("x"), label("nightly")]);
    check(wanted, JobFilter { tag: Some("nightly".into()), ..JobFilter::default() }).await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_two_filters_together() {
    let wanted = || with(|extras| extras.tags = vec![label("x")]);
    check(wanted, JobFilter { tag: Some("x".into()), queue: Some("q".into()), ..JobFilter::default() }).await;
    let none = JobFilter { tag: Some("x".into()), queue: Some("elsewhere".into()), ..JobFilter::default() };
    on_both(async |db| {
        push(&db.store, wanted()).await;
        assert_eq!(ids(&db.store, none.clone()).await, []);
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_text_filter_matches_the_start_of_a_kind_a_tag_or_a_key() {
    let text = |text: &str| JobFilter { text: Some(text.into()), ..JobFilter::default() };
    check(|| NewJob { kind: name("image.scan"), ..job("q") }, text("image.")).await;
    check(|| with(|extras| extras.tags = vec![label("nightly build")]), text("nightly b")).await;
    let keyed = || with(|extras| extras.unique = Some(Unique { key: "order 66".into(), for_s: None }));
    check(keyed, text("order 6")).await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_text_filter_matches_the_start_of_an_error_code_and_payload_text() {
    on_both(async |db| {
        let failed = push(&db.store, job("q")).await;
        let worker = register(&db.store, &["q"]).await;
        let claimed = claim_one(&db.store, worker).await;
        let error = domain::JobError { code: "disk_full".into(), message: "no".into(), retryable: false };
        settle(&db.store, worker, claimed.id, claimed.epoch, End::Fail(error)).await;
        let other = push(&db.store, NewJob { payload: r#"{"image": "alpine"}"#.into(), ..job("q") }).await;
        let text = |text: &str| JobFilter { text: Some(text.into()), ..JobFilter::default() };
        assert_eq!(ids(&db.store, text("disk_")).await, [failed]);
        assert_eq!(ids(&db.store, text("alp")).await, [other]);
        assert_eq!(ids(&db.store, text("nowhere")).await, []);
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn since_and_until_bound_the_creation_time() {
    on_both(async |db| {
        let mut made = Vec::new();
        for _ in 0..3 {
            // A job's time is an estimate of the database clock, which may be slightly earlier than this one.
            let start = db.clock.now().plus_ms(-1_000);
            made.push((start, push(&db.store, job("q")).await));
            db.pass_ms(10_000).await;
        }
        let from = |n: usize| Some(made[n].0);
        let since = JobFilter { since: from(1), ..JobFilter::default() };
        assert_eq!(ids(&db.store, since).await, [made[2].1, made[1].1]);
        let until = JobFilter { until: from(1), ..JobFilter::default() };
        assert_eq!(ids(&db.store, until).await, [made[0].1]);
        let between = JobFilter { since: from(1), until: from(2), ..JobFilter::default() };
        assert_eq!(ids(&db.store, between).await, [made[1].1]);
    })
    .await;
}

/// Walks all pages of a filter while new jobs arrive between pages.
async fn walk(store: &Store, filter: JobFilter, limit: usize) -> Vec<JobId> {
    let mut seen = Vec::new();
    let mut before = None;
    loop {
        let page = page(store, filter.clone(), before, limit).await;
        assert!(page.jobs.len() <= limit);
        seen.extend(page.jobs.iter().map(|job| job.id));
        assert!(seen.len() < 1_000, "paging does not end");
        push_all(store, (0..3).map(|_| job("q")).collect()).await;
        match page.next {
            Some(next) => before = Some(next),
            None => return seen,
        }
    }
}

/// Requirement Q13.
#[tokio::test]
async fn pages_have_no_gaps_or_repeats_while_jobs_are_enqueued() {
    on_both(async |db| {
        let worker = register(&db.store, &["q"]).await;
        let mut all = BTreeSet::new();
        for round in 0..5 {
            let jobs = (0..7).map(|n| NewJob { kind: name(["k", "l"][n % 2]), priority: round, ..job("q") }).collect();
            all.extend(push_all(&db.store, jobs).await.iter().map(|job| job.id));
            for claimed in claim(&db.store, worker, 3).await {
                finish(&db.store, worker, &claimed).await;
            }
            db.pass_ms(10).await;
        }
        let newest = db.clock.now();
        for limit in [1, 4, 35, 36] {
            let filter = JobFilter { until: Some(newest), ..JobFilter::default() };
            let seen = walk(&db.store, filter, limit).await;
            assert!(seen.is_sorted_by(|a, b| a > b), "newest first, none twice");
            assert_eq!(BTreeSet::from_iter(seen), all, "pages of {limit}");
        }
        let seen = walk(&db.store, JobFilter { queue: Some("q".into()), ..JobFilter::default() }, 6).await;
        assert!(seen.is_sorted_by(|a, b| a > b) && all.iter().all(|id| seen.contains(id)));
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_partial_scan_is_reported_and_the_next_page_continues() {
    on_both(async |db| {
        let needle = push(&db.store, NewJob { payload: r#"{"needle": 1}"#.into(), ..job("q") }).await;
        db.pass_ms(10).await;
        push_all(&db.store, (0..domain::limits::SCAN_ROWS + 100).map(|_| job("q")).collect()).await;
        let filter = JobFilter { text: Some("needle".into()), ..JobFilter::default() };
        let first = page(&db.store, filter.clone(), None, 10).await;
        assert!(first.partial && first.jobs.is_empty(), "only newer rows were scanned");
        let second = page(&db.store, filter, Some(first.next.expect("there is more")), 10).await;
        assert_eq!(second.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [needle]);
        assert!(!second.partial);
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn an_indexed_filter_finds_old_jobs_behind_many_newer_ones() {
    on_both(async |db| {
        let store = &db.store;
        let keyed = |key: &str| with(|extras| extras.unique = Some(Unique { key: key.into(), for_s: None }));
        let in_queue = push(store, NewJob { queue: name("small"), ..job("q") }).await;
        let working = push(store, NewJob { queue: name("busy"), ..job("q") }).await;
        let worker = register(store, &["busy"]).await;
        claim_one(store, worker).await;
        let later = db.clock.now().plus_ms(3_600_000);
        let scheduled = push(store, NewJob { run_at: Some(later), ..job("q") }).await;
        let order = push(store, keyed("order 66")).await;
        db.pass_ms(10).await;
        push_all(store, (0..domain::limits::SCAN_ROWS + 100).map(|_| job("q")).collect()).await;

        assert_eq!(ids(store, JobFilter { queue: Some("small".into()), ..JobFilter::default() }).await, [in_queue]);
        assert_eq!(ids(store, JobFilter { queue: Some("nowhere".into()), ..JobFilter::default() }).await, []);
        for (state, wanted) in [(JobState::Working, working), (JobState::Scheduled, scheduled)] {
            assert_eq!(ids(store, JobFilter { state: Some(state), ..JobFilter::default() }).await, [wanted]);
        }
        let text = JobFilter { text: Some("order 6".into()), ..JobFilter::default() };
        let found = page(store, text, None, 10).await;
        assert_eq!(found.jobs.iter().map(|job| job.id).collect::<Vec<_>>(), [order]);
        assert!(found.partial, "payloads are searched only in the newest rows");
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_long_lane_is_listed_behind_newer_jobs_of_other_queues() {
    on_both(async |db| {
        for queue in ["long", "longer"] {
            let many = (0..domain::limits::SCAN_ROWS + 1).map(|_| NewJob { queue: name(queue), ..job("q") });
            push_all(&db.store, many.collect()).await;
            db.pass_ms(10).await;
        }
        let filter = JobFilter { queue: Some("long".into()), ..JobFilter::default() };
        let first = page(&db.store, filter.clone(), None, 10).await;
        assert_eq!((first.jobs.len(), first.partial), (10, true));
        let second = page(&db.store, filter, first.next, 10).await;
        assert!(second.jobs.len() == 10 && second.jobs[0].id < first.jobs[9].id, "none twice");
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn filter_suggestions_are_distinct_and_scoped_to_the_tenant() {
    on_both(async |db| {
        let tagged = |tags: &[&str]| with(|extras| extras.tags = tags.iter().map(|tag| label(tag)).collect());
        push_all(&db.store, vec![tagged(&["b", "a"]), tagged(&["b"]), tagged(&["c"])]).await;
        push(&db.store, NewJob { affinity: Some(label("llama")), ..job("r") }).await;
        let suggestions = db.store.filter_suggestions(T, 10).await.expect("reads");
        assert_eq!((suggestions.queues, suggestions.kinds), (vec!["q".into(), "r".into()], vec!["k".into()]));
        assert_eq!(
            (suggestions.affinities, suggestions.tags),
            (vec!["llama".into()], vec!["a".into(), "b".into(), "c".into()])
        );
        assert_eq!(db.store.filter_suggestions(T, 2).await.expect("reads").tags, ["a", "b"]);
        assert_eq!(
            db.store.filter_suggestions(domain::TenantId(77), 10).await.expect("reads"),
            FilterSuggestions::default()
        );
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn jobs_are_filtered_by_principal_within_allowed_queues() {
    on_both(async |db| {
        let store = &db.store;
        let by = |who: &str, queue: &str| NewJob { principal: who.into(), ..job(queue) };
        push(store, by("bob", "q")).await;
        let here = push(store, by("ann", "q")).await;
        let there = push(store, by("ann", "other")).await;
        let retried = with(|extras| extras.parent = Some(here));
        push(store, NewJob { principal: "ann".into(), ..retried }).await;
        let filter = |queues: Option<&[&str]>| JobFilter {
            principal: Some("ann".into()),
            queues: queues.map(|queues| queues.iter().map(|queue| (*queue).to_owned()).collect()),
            ..JobFilter::default()
        };
        assert_eq!(ids(store, filter(None)).await, [there, here], "retries and replays belong to no principal");
        assert_eq!(ids(store, filter(Some(&["q", "no"]))).await, [here]);
        assert_eq!(ids(store, filter(Some(&["the", "her"]))).await, []);
        assert_eq!(ids(store, filter(Some(&[]))).await, [], "an empty list of queues matches nothing");
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_page_is_limited_in_bytes_and_the_next_page_continues() {
    on_both(async |db| {
        let large = || NewJob { payload: format!("\"{}\"", "x".repeat((1 << 20) - 2)).into(), ..job("q") };
        let mut all = push_all(&db.store, (0..20).map(|_| large()).collect()).await;
        all.reverse();
        let first = page(&db.store, JobFilter::default(), None, 100).await;
        assert_eq!(first.jobs.len(), 16, "as many as one page may carry");
        assert!(first.jobs.iter().all(|job| job.payload.len() == 1 << 20));
        let second = page(&db.store, JobFilter::default(), first.next, 100).await;
        assert!(second.next.is_none() && !second.partial);
        let seen = first.jobs.iter().chain(&second.jobs).map(|job| job.id);
        assert_eq!(seen.collect::<Vec<_>>(), all.iter().map(|job| job.id).collect::<Vec<_>>());
        let heads = JobFilter { without_content: true, ..JobFilter::default() };
        let heads = page(&db.store, heads, None, 100).await;
        assert!(heads.jobs.len() == 20 && heads.jobs.iter().all(|job| job.payload == "null"));
    })
    .await;
}

/// Requirement Q13.
#[tokio::test]
async fn a_page_includes_results_and_name_search_includes_error_codes() {
    on_both(async |db| {
        let store = &db.store;
        let worker = register(store, &["q"]).await;
        let good = push(store, job("q")).await;
        let claimed = claim_one(store, worker).await;
        finish(store, worker, &claimed).await;
        let listed = page(store, JobFilter::default(), None, 10).await.jobs.remove(0);
        assert_eq!((listed.id, &*listed.payload, listed.result.as_deref()), (good, "{}", Some("42")));
        let bad = push(store, NewJob { payload: r#"{"boo": 1}"#.into(), max_attempts: 1, ..job("q") }).await;
        let claimed = claim_one(store, worker).await;
        settle(store, worker, claimed.id, claimed.epoch, End::Fail(boom())).await;
        let names = |text: &str| JobFilter { text: Some(text.into()), names_only: true, ..JobFilter::default() };
        assert_eq!(ids(store, names("boom")).await, [bad]);
        assert_eq!(ids(store, names("it broke")).await, [], "messages are not searched");
        assert_eq!(ids(store, names("\"boo\"")).await, [], "payloads are not searched");
    })
    .await;
}

#[tokio::test]
async fn jobs_are_found_by_the_first_and_the_last_digits_of_their_ids() {
    on_both(async |db| {
        let store = &db.store;
        let ended = push(store, job("q")).await;
        let worker = register(store, &["q"]).await;
        let claimed = claim(store, worker, 1).await;
        finish(store, worker, &claimed[0]).await;
        db.pass_ms(10).await;
        let live = push(store, job("q")).await;
        for id in [ended, live] {
            let digits = id.uuid().as_simple().to_string();
            let part = |text: &str| Some(domain::IdPart::parse(text).expect("digits"));
            let suffix = JobFilter { id_suffix: part(&digits[20..]), ..JobFilter::default() };
            assert_eq!(ids(store, suffix.clone()).await, [id]);
            let elsewhere = JobFilter { queue: Some("elsewhere".into()), ..suffix };
            assert!(ids(store, elsewhere).await.is_empty(), "the filters combine");
            for prefix in [&digits[..13], &digits] {
                let prefix = JobFilter { id_prefix: part(prefix), ..JobFilter::default() };
                assert_eq!(ids(store, prefix).await, [id]);
            }
        }
        let neither = domain::IdPart::parse("000000").expect("digits");
        let prefix = JobFilter { id_prefix: Some(neither), ..JobFilter::default() };
        assert!(ids(store, prefix).await.is_empty());
    })
    .await;
}
