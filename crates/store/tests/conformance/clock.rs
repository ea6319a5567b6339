//! Q7, T3, T10: a clock that was ahead and has come back leaves nothing stuck.

use std::collections::HashMap;

use store::jobs::enqueue::NewJob;
use store::jobs::settle::End;
use testkit::{job, on_both};

use crate::deliveries::{owe, taken};
use crate::schedules::{fire, scheduled};
use crate::support::*;
use crate::triggers::take;

const MONTH_MS: i64 = 30 * 24 * 3_600_000;
const HOUR_MS: i64 = 3_600_000;

#[tokio::test]
async fn q7_a_clock_that_was_ahead_and_has_come_back_leaves_nothing_stuck() {
    on_both(async |db| {
        let store = &db.store;
        db.begin_an_hour().await;
        scheduled(&db, "coalesce").await;
        assert_eq!(store.mend_clock_step().await.expect("looks"), None);
        db.pass_ms(MONTH_MS).await;
        assert_eq!((fire(store).await, take(store).await.rows.len()), (1, 1));
        push_all(store, vec![job("q"), job("q")]).await;
        let (well, dead) = (register(store, &["q"]).await, register(store, &["q"]).await);
        let failed = claim_one(store, well).await;
        settle(store, well, failed.id, failed.epoch, End::Fail(boom())).await;
        assert_eq!(state(store, failed.id).await, "scheduled");
        let lost = claim_one(store, dead).await;
        owe(store, T, ["https://slow.example/".to_owned()]).await;
        assert_eq!(taken(store, 1, HashMap::new()).await.len(), 1);
        db.clock.advance_ms(-MONTH_MS);
        let wanted_at = db.clock.now().plus_s(86_400);
        let later = push(store, NewJob { run_at: Some(wanted_at), ..job("later") }).await;
        let back_ms = store.mend_clock_step().await.expect("mends").expect("it has come back");
        assert!((MONTH_MS - HOUR_MS..=MONTH_MS + HOUR_MS).contains(&back_ms), "{back_ms}");
        assert_eq!(store.mend_clock_step().await.expect("looks"), None, "once");
        db.pass_ms(HOUR_MS).await;
        assert_eq!((fire(store).await, take(store).await.rows.len()), (1, 2), "the next slot, and what was taken");
        assert_eq!(store.promote_due().await.expect("promotes").jobs, 1);
        assert_eq!(state(store, failed.id).await, "queued");
        assert_eq!(store.sweep().await.expect("sweeps").jobs, 1);
        assert_eq!(state(store, lost.id).await, "queued");
        assert_eq!(taken(store, 1, HashMap::new()).await.len(), 1);
        assert_eq!(get(store, later).await.run_at, wanted_at, "what a producer said stays");
        sound(store).await;
    })
    .await;
}
