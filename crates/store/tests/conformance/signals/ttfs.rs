//! Time to first signal: recorded events and hourly rollups, which also count late events.

use domain::Time;
use store::signals::ttfs::list::TtfsFilter;
use store::signals::ttfs::record::TtfsEvent;
use store::signals::ttfs::summary::SummaryPeriod;
use testkit::{on_both, on_postgres};
use uuid::Uuid;

use crate::support::*;

fn rendered(ms: i64, cache_hit: bool) -> TtfsEvent {
    TtfsEvent {
        surface: "cli".into(),
        event_type: "signal.rendered".into(),
        ttfs_ms: ms,
        cache_hit,
        ..TtfsEvent::default()
    }
}

/// Requirement S5.
#[tokio::test]
async fn ttfs_rollups_include_late_events_and_count_each_event_once() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        let now = db.clock.now();
        let record = async |events: Vec<TtfsEvent>| db.store.record_ttfs(T, events).await.expect("records");
        assert_eq!(record(vec![rendered(100, true), rendered(3_000, true), rendered(6_000, false)]).await, 3);
        let error = TtfsEvent { event_type: "signal.error".into(), ..rendered(6_000, false) };
        record(vec![error]).await;
        let two_days_ago = Time::from_micros(now.micros()).plus_s(-2 * 86_400);
        let late = TtfsEvent { id: Some(Uuid::from_u128(7)), at: Some(two_days_ago), ..rendered(500, true) };
        assert_eq!(record(vec![late.clone()]).await, 1);
        assert_eq!(record(vec![late]).await, 0, "the same event twice is counted once");

        let hours = db.store.ttfs_summary(T, SummaryPeriod::Hour).await.expect("reads");
        let rows: Vec<_> = hours.iter().map(|hour| (hour.cache_hit, hour.events, hour.p50_ms, hour.p95_ms)).collect();
        let hit = (Some(true), 2, Some(1_550), Some(2_855));
        let miss = (Some(false), 2, Some(6_000), Some(6_000));
        assert_eq!(rows, [miss, hit, (Some(true), 1, Some(500), Some(500))], "newest first, split by hit");
        assert_eq!((hours[1].avg_ms, hours[1].min_ms, hours[1].max_ms), (Some(1_550.0), Some(100), Some(3_000)));
        assert_eq!((hours[1].over_2s, hours[1].over_5s, hours[0].over_5s, hours[0].errors), (1, 0, 2, 1));
        let days = db.store.ttfs_summary(T, SummaryPeriod::Day).await.expect("reads");
        assert_eq!((days.len(), days[0].events, days[0].hit_rate, days[0].errors), (2, 4, 0.5, 1));
        let slo = db.store.ttfs_slo(T).await.expect("reads");
        assert_eq!((slo.len(), slo[0].total, slo[0].p50_breaches, slo[0].p95_breaches), (1, 3, 2, 1));
        assert_eq!((slo[0].p50_compliance_pct, slo[0].p95_compliance_pct), (33.33, 66.67));
        assert!(
            db.store.ttfs_summary(domain::TenantId(77), SummaryPeriod::Day).await.expect("reads").is_empty(),
            "another tenant sees nothing"
        );

        db.pass_ms(91 * 86_400_000).await;
        assert_eq!(db.store.prune_ttfs().await.expect("prunes"), 5);
        assert_eq!(number(&db.store, "select count(*) from ttfs_buckets").await, 0);
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn ttfs_alerts_begin_and_end_with_their_condition_and_publish_events() {
    on_both(async |db| {
        assert_eq!(db.store.watch_ttfs().await.expect("watches"), Default::default());
        let slow: Vec<TtfsEvent> = (0..30).map(|_| rendered(9_000, false)).collect();
        db.store.record_ttfs(T, slow).await.expect("records");
        let id = db.store.new_trigger_id();
        let trigger = store::triggers::NewTrigger {
            name: "alerts".into(),
            source: domain::triggers::trigger::Source::Pubsub,
            filter: r#"{"topic": "windlass:ttfs"}"#.into(),
            target: r#"{"job": {"queue": "q", "kind": "k"}}"#.into(),
            mode: store::triggers::Mode::Async,
            retry: domain::RetryPolicy::NONE,
            max_attempts: 1,
            enabled: true,
            handles: false,
            next_at: None,
        };
        db.store.create_trigger(T, id, trigger, "ann").await.expect("creates a trigger");
        let began = db.store.watch_ttfs().await.expect("watches").began;
        let names: Vec<&str> = began.iter().map(|alert| alert.alert.as_str()).collect();
        assert_eq!(names, ["breaches", "hit_rate_low", "p95_over_target"]);
        assert_eq!(db.store.watch_ttfs().await.expect("watches"), Default::default(), "each alert fires once");
        assert_eq!(db.store.ttfs_alerts(T).await.expect("reads").len(), 3);
        assert!(
            db.store.ttfs_alerts(domain::TenantId(77)).await.expect("reads").is_empty(),
            "another tenant sees nothing"
        );
        db.pass_ms(3 * 3_600_000).await;
        assert_eq!(db.store.watch_ttfs().await.expect("watches").ended.len(), 3);
        let batch = db.store.claim_outbox().await.expect("takes");
        let events = batch.rows.iter().map(|row| serde_json::from_str::<serde_json::Value>(&row.data).expect("JSON"));
        let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
        let mut published: Vec<_> = events.map(|data| (text(&data["alert"]), text(&data["state"]))).collect();
        published.sort();
        let alerts = ["breaches", "hit_rate_low", "p95_over_target"];
        let expected =
            alerts.iter().flat_map(|alert| ["began", "ended"].map(|state| (alert.to_string(), state.into())));
        assert_eq!(published, expected.collect::<Vec<_>>(), "each change is an event, once");
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn an_error_rate_above_one_percent_is_an_alert() {
    on_both(async |db| {
        let record = async |events: Vec<TtfsEvent>| db.store.record_ttfs(T, events).await.expect("records");
        let error = || TtfsEvent { event_type: "signal.error".into(), ..rendered(0, true) };
        record((0..99).map(|_| rendered(100, true)).chain([error()]).collect()).await;
        assert_eq!(db.store.watch_ttfs().await.expect("watches"), Default::default(), "one is below the threshold");
        record(vec![error()]).await;
        let began = db.store.watch_ttfs().await.expect("watches").began;
        let alerts: Vec<_> = began.iter().map(|alert| (alert.alert.as_str(), alert.detail.as_str())).collect();
        assert_eq!(alerts, [("error_rate_high", "2.0 % of events are errors")]);
        db.pass_ms(3 * 3_600_000).await;
        assert_eq!(db.store.watch_ttfs().await.expect("watches").ended.len(), 1);
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn the_ttfs_sql_function_and_views_match_the_program() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let record = |(ms, hit): (i64, bool)| {
            format!(
                "select windlass.record_ttfs_event(job_id => null, surface => 'ui', event_type => 'signal.rendered',
                     ttfs_ms => {ms}, cache_hit => {hit}, metadata => '{{\"a\": 1}}');"
            )
        };
        // In one transaction all events have the same time; otherwise they could fall into two hours.
        let all: String = [(100, true), (1_238, true), (6_000, false)].map(record).concat();
        psql.client.batch_execute(&format!("begin; {all} commit")).await.expect("records");
        let hours = db.store.ttfs_summary(T, SummaryPeriod::Hour).await.expect("reads");
        assert_eq!((hours.len(), hours[1].p95_ms, hours[1].events), (2, Some(1_183), 2));
        let rows = psql
            .client
            .query(
                "select cache_hit, event_count, p50_ms, p95_ms, max_ms, over_p50_slo, over_p95_slo
            from windlass.ttfs_hourly_summary order by cache_hit",
                &[],
            )
            .await
            .expect("reads");
        let row = |n: usize| -> (bool, i64, i64, i64, i64, i64, i64) {
            let row = &rows[n];
            (row.get(0), row.get(1), row.get(2), row.get(3), row.get(4), row.get(5), row.get(6))
        };
        assert_eq!(row(0), (false, 1, 6_000, 6_000, 6_000, 1, 1));
        assert_eq!(row(1), (true, 2, 670, 1_183, 1_238, 0, 0));
        let day = psql
            .client
            .query_one(
                "select event_count, p50_ms, cache_hit_rate::float8, error_count
            from windlass.ttfs_daily_summary",
                &[],
            )
            .await
            .expect("reads");
        assert_eq!((day.get::<_, i64>(0), day.get::<_, i64>(1), day.get::<_, f64>(2)), (3, 1_240, 0.6667));
        let slo = psql
            .client
            .query_one(
                "select total_signals, p50_breaches, p95_breaches, p50_compliance_pct::float8
            from windlass.ttfs_slo_breaches",
                &[],
            )
            .await
            .expect("reads");
        assert_eq!((slo.get::<_, i64>(0), slo.get::<_, i64>(1), slo.get::<_, f64>(3)), (3, 1, 66.67));
        let bad_arguments = [
            "'tv', 'signal.start', 1",
            "'ui', 'signal.odd', 1",
            "'ui', 'signal.start', -1",
            "'ui', 'signal.start', null",
            "'ui', 'signal.start', 1, true, 'rumor'",
            "'ui', 'signal.start', 1, true, 'snapshot', 'odd'",
            "'ui', 'signal.start', 1, true, 'snapshot', 'queued', 'odd'",
        ];
        for bad in bad_arguments {
            let refused = psql.client.query_one(&format!("select windlass.record_ttfs_event(null, {bad})"), &[]).await;
            assert_eq!(refused.expect_err("refused").code().map(|code| code.code()), Some("22023"), "{bad}");
        }
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn percentiles_match_exact_ones_within_one_percent_and_stay_within_the_extremes() {
    on_both(async |db| {
        db.advance_to_hour_start().await;
        // Skewed like real measurements: most signals are fast, some take many seconds.
        let mut times: Vec<i64> = (1..=400).map(|n: i64| 40 + n * n * n / 4_500 + n % 7).collect();
        let events = times.iter().map(|ms| rendered(*ms, true)).collect();
        db.store.record_ttfs(T, events).await.expect("records");
        times.sort_unstable();
        let exact = |share: f64| {
            let rank = share * (times.len() - 1) as f64;
            let [below, above] = [rank.floor(), rank.ceil()].map(|rank| times[rank as usize] as f64);
            below + (above - below) * rank.fract()
        };
        let check = |source: &str, share: f64, ms: i64| {
            assert!((ms as f64 / exact(share) - 1.0).abs() < 0.01, "{source}: {share} is {ms}, not {}", exact(share));
            assert!(ms <= *times.last().expect("times"), "{source}: {ms} exceeds the maximum");
        };
        for by in [SummaryPeriod::Hour, SummaryPeriod::Day] {
            let row = &db.store.ttfs_summary(T, by).await.expect("reads")[0];
            for (share, ms) in [(0.5, row.p50_ms), (0.95, row.p95_ms), (0.99, row.p99_ms)] {
                check("summary", share, ms.expect("a percentile"));
            }
        }
        if db.store.is_postgres() {
            let psql = psql(&db.admin).await;
            let view = "select p50_ms, p95_ms, p99_ms from windlass.ttfs_hourly_summary";
            let row = psql.client.query_one(view, &[]).await.expect("reads");
            for (column, share) in [0.5, 0.95, 0.99].into_iter().enumerate() {
                check("view", share, row.get(column));
            }
        }
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn the_database_refuses_words_outside_a_closed_vocabulary() {
    on_both(async |db| {
        db.store.record_ttfs(T, vec![rendered(1, true)]).await.expect("records");
        for (column, word) in [
            ("surface", "'tv'"),
            ("event_type", "'signal.odd'"),
            ("ttfs_ms", "-1"),
            ("signal_source", "'rumor'"),
            ("kind", "'odd'"),
            ("phase", "'odd'"),
        ] {
            let change = format!("update ttfs_events set {column} = {word}");
            let refused = run_sql(&db.store, &change).await;
            assert!(refused.is_err(), "{change}");
        }
    })
    .await;
}

/// Requirement S5.
#[tokio::test]
async fn single_events_are_listed_by_job_error_and_time() {
    on_both(async |db| {
        let (job, start) = (uuid::Uuid::from_u128(7), db.clock.now());
        let event = |seconds: i64, of_job: bool, code: Option<&str>| TtfsEvent {
            at: Some(start.plus_s(seconds)),
            job: of_job.then_some(job),
            error_code: code.map(Into::into),
            metadata: Some(r#"{"n": 1}"#.into()),
            ..rendered(100, true)
        };
        let events = vec![event(1, true, None), event(2, false, Some("timeout")), event(3, true, Some("timeout"))];
        db.store.record_ttfs(T, events).await.expect("records");
        let list = async |filter: TtfsFilter, before| {
            let events = db.store.list_ttfs(T, filter, before, 10).await.expect("lists");
            events.iter().map(|event| event.at.expect("a time").ms_since(start) / 1_000).collect::<Vec<_>>()
        };
        let of_job = || TtfsFilter { job: Some(domain::JobId::new(job)), ..TtfsFilter::default() };
        let timeout = || Some("timeout".to_owned());
        assert_eq!(list(TtfsFilter::default(), None).await, [3, 2, 1]);
        assert_eq!(list(of_job(), None).await, [3, 1]);
        assert_eq!(list(TtfsFilter { error_code: timeout(), ..of_job() }, None).await, [3]);
        assert_eq!(list(TtfsFilter { error_code: timeout(), ..TtfsFilter::default() }, None).await, [3, 2]);
        let since = Some(start.plus_s(2));
        assert_eq!(list(TtfsFilter { since, ..TtfsFilter::default() }, None).await, [3, 2]);
        let newest = db.store.list_ttfs(T, TtfsFilter::default(), None, 1).await.expect("lists").remove(0);
        assert_eq!(newest.metadata.as_deref(), Some(r#"{"n": 1}"#), "unchanged");
        let before = Some((newest.at.expect("a time"), newest.id.expect("an id")));
        assert_eq!(list(TtfsFilter::default(), before).await, [2, 1]);
        let foreign = db.store.list_ttfs(domain::TenantId::SYSTEM, of_job(), None, 10).await.expect("lists");
        assert!(foreign.is_empty());
    })
    .await;
}
