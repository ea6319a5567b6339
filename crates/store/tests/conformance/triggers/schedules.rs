//! Schedules: each slot fires once on any number of nodes, and missed slots are recorded.

use domain::limits::MISSED_AFTER_MS;
use domain::triggers::trigger::Source;
use domain::{Time, TriggerId};
use store::Store;
use store::triggers::put::TriggerPut;
use store::triggers::schedule::Slots;
use store::triggers::{NewTrigger, filter};
use testkit::{Database, on_both};

use crate::support::*;
use crate::triggers::declarations::{new, waiting};

pub(crate) async fn scheduled(db: &Database, missed: &str) -> (TriggerId, Time) {
    let text = format!(r#"{{"schedule": "0 * * * *", "timezone": "UTC", "missed": "{missed}"}}"#);
    let id = db.store.new_trigger_id();
    let schedule = filter::read(Source::Cron, id, &text).expect("reads").schedule.expect("a schedule");
    let next = Slots::read(&schedule).expect("reads").after(db.clock.now()).expect("comes");
    let trigger = NewTrigger { next_at: Some(next), ..new(missed, Source::Cron, &text) };
    db.store.create_trigger(T, id, trigger, "ann").await.expect("creates");
    (id, next)
}

pub(crate) async fn fire(store: &Store) -> usize {
    store.fire_schedules().await.expect("fires").slots
}

/// Sets the clock.
async fn go_to(db: &Database, time: Time) {
    db.pass_ms(time.ms_since(db.clock.now()) + 1).await;
}

/// Requirement T10.
#[tokio::test]
async fn a_schedule_slot_fires_once_on_any_number_of_nodes() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        let (_, next) = scheduled(&db, "skip").await;
        assert_eq!(fire(&db.store).await, 0, "not due yet");
        go_to(&db, next).await;
        let nodes = [db.another_node().await, db.another_node().await, db.another_node().await];
        let (a, b, c) = tokio::join!(fire(&nodes[0]), fire(&nodes[1]), fire(&nodes[2]));
        assert_eq!((a + b + c, waiting(&db.store).await.len()), (1, 1));
        assert_eq!(fire(&db.store).await, 0);
        // Holds even if the trigger's next slot is set back.
        let back = if db.store.is_postgres() { "next_at - interval '1 hour'" } else { "next_at - 3600000000" };
        run_sql(&db.store, &format!("update triggers set next_at = {back}")).await.expect("sets back");
        assert_eq!(fire(&db.store).await, 0, "the slot already has its row");
        db.pass_ms(3_600_000).await;
        assert_eq!(fire(&db.store).await, 1, "the next slot");
    })
    .await;
}

/// Requirement T10.
#[tokio::test]
async fn missed_slots_are_skipped_coalesced_or_caught_up() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        let (skip, next) = scheduled(&db, "skip").await;
        let (coalesce, _) = scheduled(&db, "coalesce").await;
        let (catch_up, _) = scheduled(&db, "catch_up").await;
        go_to(&db, next.plus_s(5 * 3_600).plus_ms(MISSED_AFTER_MS + 1_000)).await;
        assert_eq!(fire(&db.store).await, 7);
        let fired = waiting(&db.store).await;
        let count = |id: TriggerId| fired.iter().filter(|fired| **fired == id).count();
        assert_eq!((count(skip), count(coalesce), count(catch_up)), (0, 1, 6));
        let missed = async |id: TriggerId| {
            let trigger = db.store.trigger(T, id).await.expect("reads").expect("is there");
            (trigger.missed, trigger.last_missed_at.is_some())
        };
        assert_eq!((missed(skip).await, missed(coalesce).await), ((6, true), (5, true)), "skipped slots are recorded");
        assert_eq!(missed(catch_up).await, (0, false));
        db.pass_ms(3_600_000 - MISSED_AFTER_MS).await;
        assert_eq!(fire(&db.store).await, 3, "then each fires on time");
    })
    .await;
}

/// Requirement T10.
#[tokio::test]
async fn a_disabled_schedule_does_not_fire() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        let (id, next) = scheduled(&db, "catch_up").await;
        let off = NewTrigger { enabled: false, ..new("catch_up", Source::Cron, r#"{"schedule": "0 * * * *"}"#) };
        assert_eq!(db.store.replace_trigger(T, id, off, "ann").await.expect("answers"), TriggerPut::Done(id));
        go_to(&db, next).await;
        assert_eq!((fire(&db.store).await, waiting(&db.store).await.len()), (0, 0));
    })
    .await;
}

/// For example, one that a newer version stored.
/// Requirement T10.
#[tokio::test]
async fn an_undecodable_schedule_does_not_affect_other_schedules() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        let (_, next) = scheduled(&db, "skip").await;
        let (good, _) = scheduled(&db, "coalesce").await;
        let newer = r#"update triggers set filter = '{"schedule": "whenever"}' where name = 'skip'"#;
        run_sql(&db.store, newer).await.expect("writes");
        go_to(&db, next).await;
        assert_eq!((fire(&db.store).await, waiting(&db.store).await), (1, vec![good]));
        db.pass_ms(3_600_000).await;
        assert_eq!(fire(&db.store).await, 1, "nor in the next round");
    })
    .await;
}
