//! S9: how long work takes is learnt from what ended, and answers hold as often as they say.

use domain::eta::{Busy, Calibration, Outlook};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use store::signals::figures::{Figure, FigureKey};
use testkit::{Database, job, name, on_both};

use crate::support::*;

fn key() -> FigureKey {
    (name("k"), None)
}

async fn figure(db: &Database) -> std::sync::Arc<Figure> {
    db.store.figures(T, vec![key()]).await.expect("reads").remove(&key()).expect("asked for")
}

/// Seconds, exponential with a mean of ten.
fn draw(dice: &mut StdRng) -> f64 {
    -10.0 * (1.0 - dice.random::<f64>()).ln()
}

#[tokio::test]
async fn s9_answers_on_a_known_workload_hold_as_often_as_they_say_and_that_is_kept() {
    on_both(async |db| {
        let mut dice = StdRng::seed_from_u64(9);
        let worker = patient(&db.store).await;
        assert!(figure(&db).await.run.is_none(), "nothing is known at first");
        let mut own = Calibration::default();
        for round in 0..260 {
            let id = push(&db.store, job("q")).await;
            let known = figure(&db).await;
            let said = known.run.as_ref().map(|run| {
                let outlook = Outlook {
                    places: 1,
                    busy: Vec::<Busy<'_>>::new(),
                    ahead: vec![],
                    own: run,
                    load: None,
                    not_before_s: 0.0,
                };
                outlook.eta(round)
            });
            if let Some(said) = said {
                db.store.note_answer(id, db.clock.now(), said);
            }
            let claimed = claim_one(&db.store, worker).await;
            let took = draw(&mut dice);
            db.pass_ms((took * 1_000.0) as i64).await;
            finish(&db.store, worker, &claimed).await;
            db.store.fold_figures().await.expect("folds");
            // The first answers rest on few samples; what is promised is promised of what is known.
            if let (Some(said), 60..) = (said, round) {
                own.add(said, took);
            }
        }
        let (p50, p90) = own.shares().expect("there are answers");
        assert!((p50 - 0.5).abs() <= 0.08, "p50 covers {p50}");
        assert!((p90 - 0.9).abs() <= 0.05, "p90 covers {p90}");
        let kept = figure(&db).await;
        let (_, kept_p90) = kept.calibration.shares().expect("it is measured");
        assert!((kept_p90 - 0.9).abs() <= 0.06, "the kept calibration says {kept_p90}");
        assert!(kept.calibration.answers > 200.0 && kept.samples > 200.0);
        assert_eq!(
            db.store.figures(domain::TenantId(77), vec![key()]).await.expect("reads")[&key()].samples,
            0.0,
            "X6"
        );
    })
    .await;
}

#[tokio::test]
async fn s9_ends_are_sampled_evenly_and_folding_twice_adds_nothing() {
    on_both(async |db| {
        let worker = patient(&db.store).await;
        push_all(&db.store, (0..600).map(|_| job("q")).collect()).await;
        let mut done = 0;
        while done < 600 {
            let jobs = claim(&db.store, worker, 200).await;
            done += jobs.len();
            let end = || store::jobs::settle::End::Finish(None);
            let outcomes =
                jobs.iter().map(|job| store::jobs::settle::Outcome { job: job.id, epoch: job.epoch, end: end() });
            db.store.settle(T, worker, outcomes.collect()).await.expect("settles");
        }
        assert_eq!(db.store.fold_figures().await.expect("folds"), domain::limits::FIGURE_SAMPLES);
        assert_eq!(db.store.fold_figures().await.expect("folds"), 0);
        assert_eq!(figure(&db).await.samples, domain::limits::FIGURE_SAMPLES as f64);
    })
    .await;
}
