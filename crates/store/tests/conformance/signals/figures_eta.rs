//! ETA: durations are learned from ended jobs, and estimates are as accurate as their quantiles promise.

use domain::signals::eta::{BusySlot, Calibration, QueueForecast};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::signals::duration_statistics::{DurationStatistics, StatisticsKey};
use testkit::{Database, job, name, on_both};

use crate::support::*;

fn key() -> StatisticsKey {
    (name("k"), None)
}

async fn statistics(db: &Database) -> std::sync::Arc<DurationStatistics> {
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

/// Requirement S9.
#[tokio::test]
async fn the_eta_is_calibrated_on_a_known_workload_and_the_accuracy_is_stored() {
    on_both(async |db| {
        let mut rng = StdRng::seed_from_u64(9);
        let worker = register_with_long_lease(&db.store).await;
        assert!(statistics(&db).await.run.is_none(), "no statistics at first");
        let mut own = Calibration::default();
        for round in 0..260 {
            let id = push(&db.store, job("q")).await;
            let statistics = statistics(&db).await;
            let estimate = statistics.run.as_ref().map(|run| {
                let forecast = QueueForecast {
                    slots: 1,
                    busy: Vec::<BusySlot<'_>>::new(),
                    ahead: vec![],
                    own: run,
                    load: None,
                    not_before_s: 0.0,
                };
                forecast.eta(round)
            });
            if let Some(estimate) = estimate {
                db.store.record_estimate(id, db.clock.now(), estimate);
            }
            let claimed = claim_one(&db.store, worker).await;
            let took = random_duration_s(&mut rng);
            db.pass_ms((took * 1_000.0) as i64).await;
            finish(&db.store, worker, &claimed).await;
            db.store.fold_duration_samples().await.expect("folds");
            // The first estimates rest on few samples, so accuracy is measured from round 60.
            if let (Some(estimate), 60..) = (estimate, round) {
                own.add(estimate, took);
            }
        }
        let (p50, p90) = own.shares().expect("there are answers");
        assert!((p50 - 0.5).abs() <= 0.08, "p50 covers {p50}");
        assert!((p90 - 0.9).abs() <= 0.05, "p90 covers {p90}");
        let stored = statistics(&db).await;
        let (_, stored_p90) = stored.calibration.shares().expect("it is measured");
        assert!((stored_p90 - 0.9).abs() <= 0.06, "stored calibration: p90 covers {stored_p90}");
        assert!(stored.calibration.answers > 200.0 && stored.samples > 200.0);
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
