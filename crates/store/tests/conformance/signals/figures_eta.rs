//! ETA: durations are learned from ended jobs, and estimates are as accurate as their quantiles promise.

use domain::JobId;
use domain::signals::eta::calibration::Answer;
use domain::signals::eta::progress::Progress;
use domain::signals::eta::retries::RetryForecast;
use domain::signals::eta::statistics::Statistics;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::queue::enqueue::NewJob;
use store::signals::duration_statistics::StatisticsKey;
use store::signals::refine::SignalChange;
use testkit::{Database, job, name, on_both};

use crate::support::*;

fn key() -> StatisticsKey {
    (name("k"), None)
}

async fn statistics(db: &Database) -> std::sync::Arc<Statistics> {
    db.store
        .duration_statistics(T, vec![key()])
        .await
        .expect("reads")
        .remove(&key())
        .expect("returned for every requested key")
}

/// Returns exponentially distributed seconds with a mean of 10.
fn random_duration_s(rng: &mut StdRng) -> f64 {
    -10.0 * (1.0 - rng.random::<f64>()).ln()
}

/// Asks for the estimate of a job that starts now, as a page does.
async fn ask(db: &Database, id: JobId) -> Option<Answer> {
    let answer = statistics(db).await.answer_running(0.0, false, None, &RetryForecast::NONE, 1)?;
    db.store.record_answer(id, db.clock.now(), answer);
    Some(answer)
}

/// Requirement S9.
#[tokio::test]
async fn the_eta_is_calibrated_on_a_known_workload_and_the_accuracy_is_stored() {
    on_both(async |db| {
        let mut rng = StdRng::seed_from_u64(9);
        let worker = register_with_long_lease(&db.store).await;
        assert!(statistics(&db).await.run.is_none(), "no statistics at first");
        let (mut answers, mut within) = (0.0, 0.0);
        for round in 0..260 {
            let id = push(&db.store, job("q")).await;
            let answer = ask(&db, id).await;
            let claimed = claim_one(&db.store, worker).await;
            let took = random_duration_s(&mut rng);
            db.pass_ms((took * 1_000.0) as i64).await;
            finish(&db.store, worker, &claimed).await;
            db.store.fold_duration_samples().await.expect("folds");
            // The first answers rest on few samples, so accuracy is measured from round 60.
            if let (Some(answer), 60..) = (answer, round) {
                answers += 1.0;
                within += f64::from(took <= answer.eta().p90_s);
            }
        }
        assert!((0.85..=0.95).contains(&(within / answers)), "p90 covers {}", within / answers);
        let stored = statistics(&db).await;
        let (p50, p90) = stored.calibration.held().expect("it is measured");
        assert!((0.4..=0.6).contains(&p50) && (0.84..=0.96).contains(&p90), "stored calibration: {p50} {p90}");
        assert!(stored.calibration.answers > 200.0 && stored.samples > 100.0);
        assert!(stored.calibration.widths.quantile(0.5).expect("there are widths") > 5.0);
        let rows = db.store.calibrations(T, 10).await.expect("reads");
        assert_eq!((rows.len(), rows[0].calibration.answers), (1, stored.calibration.answers));
        assert_eq!(
            db.store.duration_statistics(domain::TenantId(77), vec![key()]).await.expect("reads")[&key()].samples,
            0.0,
            "another tenant sees no samples"
        );
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn a_new_affinity_borrows_the_durations_of_the_others_of_its_kind_only() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let of = |affinity: &str| (name("k"), domain::Label::new(affinity).ok());
        for affinity in ["alpha", "alpha", "alpha", "alpha", "alpha", "alpha", ""] {
            let affinity = domain::Label::new(affinity).ok();
            push(&db.store, NewJob { affinity, ..job("q") }).await;
            let claimed = claim_one(&db.store, worker).await;
            db.pass_ms(10_000).await;
            finish(&db.store, worker, &claimed).await;
        }
        db.store.fold_duration_samples().await.expect("folds");
        let keys = vec![of("alpha"), of("beta"), key(), (name("other"), of("beta").1)];
        let found = db.store.duration_statistics(T, keys).await.expect("reads");
        let own = found[&of("alpha")].run.as_ref().expect("six jobs have ended");
        let borrowed = found[&of("beta")].run.as_ref().expect("borrowed from the other affinity");
        assert!(!own.is_borrowed() && borrowed.is_borrowed());
        assert!((borrowed.quantile(0.5) / 10.0 - 1.0).abs() < 0.05, "{}", borrowed.quantile(0.5));
        assert!(borrowed.uncertainty() > own.uncertainty() + 0.1, "it is wider");
        assert_eq!(found[&of("beta")].borrowed_samples(), Some(6.0));
        assert_eq!(found[&key()].run, None, "jobs without an affinity are other work");
        assert_eq!(found[&(name("other"), of("beta").1)].run, None, "another kind is other work");
        let retries = RetryForecast::NONE;
        let answer = found[&of("beta")].answer_running(0.0, false, None, &retries, 1).expect("an answer");
        assert!(answer.eta().p90_s > 1.2 * answer.eta().p50_s, "{:?}", answer.eta());
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn after_a_shift_the_stored_correction_widens_the_answers() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let run = async |ms: i64| {
            let id = push(&db.store, job("q")).await;
            let answer = ask(&db, id).await;
            let claimed = claim_one(&db.store, worker).await;
            db.pass_ms(ms).await;
            finish(&db.store, worker, &claimed).await;
            db.store.fold_duration_samples().await.expect("folds");
            answer
        };
        for round in 0..40 {
            run(9_000 + round % 5 * 500).await;
        }
        let before = run(10_000).await.expect("there are samples");
        assert!((8.0..14.0).contains(&before.eta().p90_s), "{before:?}");
        for _ in 0..12 {
            run(50_000).await;
        }
        let after = run(50_000).await.expect("there are samples");
        assert!(after.eta().p90_s >= 50.0, "{after:?}");
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn the_snapshot_knows_the_concurrency_of_a_worker_and_the_rate_of_arrivals() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for _ in 0..10 {
            push(&db.store, job("q")).await;
            let claimed = claim(&db.store, worker, 3).await;
            db.pass_ms(2_000).await;
            finish(&db.store, worker, &claimed[0]).await;
        }
        db.store.fold_duration_samples().await.expect("folds");
        let (snapshot, _) = db.store.queue_snapshot(T, &name("q")).await.expect("reads");
        assert_eq!(snapshot.workers[0].concurrency, Some(3));
        let rate = snapshot.arrivals_per_s.values().copied().next().expect("the lane has a rate");
        assert!((0.02..0.04).contains(&rate), "10 jobs in the last 5 minutes: {rate}");
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn reported_progress_is_learned_when_the_job_ends() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        for _ in 0..12 {
            push(&db.store, job("q")).await;
            let claimed = claim_one(&db.store, worker).await;
            // Half of the progress takes a fifth of the time.
            db.pass_ms(2_000).await;
            let change = SignalChange { epoch: claimed.epoch, progress: Some(0.5), ..SignalChange::default() };
            db.store.signal(T, claimed.id, change).await.expect("reports");
            db.pass_ms(8_000).await;
            finish(&db.store, worker, &claimed).await;
            db.store.fold_duration_samples().await.expect("folds");
        }
        let statistics = statistics(&db).await;
        let report = Progress { share: 0.5, elapsed_s: 4.0 };
        let answer = statistics.answer_running(4.0, false, Some(report), &RetryForecast::NONE, 1).expect("an answer");
        assert!((4.5..20.0).contains(&answer.eta().p50_s), "a job twice as slow has 16 s left: {answer:?}");
        let curve = statistics.progress.remaining(report, 4.0, 0.5);
        assert!((12.0..18.0).contains(&curve), "{curve}");
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn duration_samples_are_bounded_and_folding_twice_adds_nothing() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        push_all(&db.store, (0..600).map(|_| job("q")).collect()).await;
        let mut done = 0;
        while done < 600 {
            let jobs = claim(&db.store, worker, 200).await;
            done += jobs.len();
            let end = || store::queue::settle::End::Finish(None);
            let outcomes =
                jobs.iter().map(|job| store::queue::settle::Outcome { job: job.id, epoch: job.epoch, end: end() });
            db.store.settle(T, worker, outcomes.collect()).await.expect("settles");
        }
        assert_eq!(db.store.fold_duration_samples().await.expect("folds"), domain::limits::DURATION_SAMPLES);
        assert_eq!(db.store.fold_duration_samples().await.expect("folds"), 0);
        assert_eq!(statistics(&db).await.samples, domain::limits::DURATION_SAMPLES as f64);
    })
    .await;
}

/// Requirement S9.
#[tokio::test]
async fn the_turnaround_of_a_worker_is_learned_from_jobs_that_waited() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let run = async |turnaround_ms: i64| {
            db.pass_ms(turnaround_ms).await;
            let claimed = claim_one(&db.store, worker).await;
            db.pass_ms(1_000).await;
            finish(&db.store, worker, &claimed).await;
        };
        for _ in 0..7 {
            push(&db.store, job("q")).await;
        }
        for _ in 0..6 {
            run(40).await;
        }
        // A pause is no turnaround, and a job that was not due yet has not waited.
        run(30_000).await;
        db.pass_ms(100).await;
        push(&db.store, job("q")).await;
        run(0).await;
        db.store.fold_duration_samples().await.expect("folds");
        let learned = statistics(&db).await.turnaround_s;
        assert!((0.039..0.06).contains(&learned), "{learned} s");
    })
    .await;
}
