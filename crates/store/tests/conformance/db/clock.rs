//! A clock that was ahead and is set back: nothing stays stuck.

use std::collections::HashMap;

use store::queue::enqueue::NewJob;
use store::queue::settle::End;
use testkit::{job, on_both};

use crate::support::*;
use crate::triggers::declarations::claim_outbox;
use crate::triggers::deliveries::{claim_deliveries, enqueue_deliveries};
use crate::triggers::schedules::{fire, scheduled};

const MONTH_MS: i64 = 30 * 24 * 3_600_000;
const HOUR_MS: i64 = 3_600_000;

/// Requirement Q7.
#[tokio::test]
async fn a_clock_corrected_backwards_leaves_nothing_stuck() {
    on_both(async |db| {
        let store = &db.store;
        db.advance_to_hour_start().await;
        scheduled(&db, "coalesce").await;
        assert_eq!(store.repair_clock_step().await.expect("looks"), None);
        db.pass_ms(MONTH_MS).await;
        assert_eq!((fire(store).await, claim_outbox(store).await.rows.len()), (1, 1));
        push_all(store, vec![job("q"), job("q")]).await;
        let (well, dead) = (register(store, &["q"]).await, register(store, &["q"]).await);
        let failed = claim_one(store, well).await;
        settle(store, well, failed.id, failed.epoch, End::Fail(boom())).await;
        assert_eq!(state(store, failed.id).await, "scheduled");
        let lost = claim_one(store, dead).await;
        enqueue_deliveries(store, T, ["https://slow.example/".to_owned()]).await;
        assert_eq!(claim_deliveries(store, 1, HashMap::new()).await.len(), 1);
        db.clock.advance_ms(-MONTH_MS);
        let wanted_at = db.clock.now().plus_s(86_400);
        let later = push(store, NewJob { run_at: Some(wanted_at), ..job("later") }).await;
        let back_ms = store.repair_clock_step().await.expect("repairs").expect("the step is detected");
        assert!((MONTH_MS - HOUR_MS..=MONTH_MS + HOUR_MS).contains(&back_ms), "{back_ms}");
        assert_eq!(store.repair_clock_step().await.expect("looks"), None, "once");
        db.pass_ms(HOUR_MS).await;
        assert_eq!(
            (fire(store).await, claim_outbox(store).await.rows.len()),
            (1, 2),
            "the next slot, and the rows that were claimed"
        );
        assert_eq!(store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(state(store, failed.id).await, "queued");
        assert_eq!(store.sweep().await.expect("sweeps").jobs, 1);
        assert_eq!(state(store, lost.id).await, "queued");
        assert_eq!(claim_deliveries(store, 1, HashMap::new()).await.len(), 1);
        assert_eq!(get(store, later).await.run_at, wanted_at, "a producer's run_at stays");
        assert_counters_match(store).await;
    })
    .await;
}
