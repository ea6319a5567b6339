//! One job's data cannot stop learning from other jobs or pruning them.

use domain::limits::MAINTENANCE_ROWS;
use store::signals::refine::SignalChange;
use testkit::{job, on_both, on_postgres};

use crate::signals::failures::{error, fail, learn, on_subject, succeed};
use crate::support::*;

/// Requirement S7.
#[tokio::test]
async fn a_nul_in_a_message_does_not_stop_failure_grouping() {
    on_both(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        let failed = fail(&db.store, worker, on_subject("m-1"), "fetch", error("BOOM", "a\0b broke")).await;
        let message = get(&db.store, failed).await.error.expect("it failed").message;
        assert_eq!(message, "a\u{fffd}b broke", "NUL is replaced, as PostgreSQL cannot store it");
        // Data that an older version stored.
        let stored = r#"update ended set error = '{"code":"BOOM","message":"a\u0000b broke","retryable":false}'"#;
        run_sql(&db.store, stored).await.expect("is stored");
        fail(&db.store, worker, on_subject("m-2"), "fetch", error("OTHER", "it broke")).await;
        learn(&db.store).await;
        let groups = db.store.list_failures(T, None, 10).await.expect("lists");
        let mut examples: Vec<&str> = groups.iter().map(|group| group.example.as_str()).collect();
        examples.sort_unstable();
        assert_eq!(examples, ["a\u{fffd}b broke", "it broke"]);
    })
    .await;
}

/// Requirement S7.
#[tokio::test]
async fn two_nodes_learn_the_same_repair_once() {
    on_postgres(async |db| {
        let worker = register_with_long_lease(&db.store).await;
        fail(&db.store, worker, on_subject("m-1"), "fetch", error("BOOM", "it broke")).await;
        learn(&db.store).await;
        db.pass_ms(60_000).await;
        succeed(&db.store, worker, on_subject("m-1")).await;
        // Both nodes have read the open failure before either may write.
        let (holder, other) = (psql(&db.admin).await, psql(&db.admin).await);
        let hold = "begin; select id from windlass.failure_groups for update";
        holder.client.batch_execute(hold).await.expect("locks the group");
        let mut nodes = tokio::task::JoinSet::new();
        for _ in 0..2 {
            let node = db.another_node().await;
            nodes.spawn(async move { node.learn_repairs().await.expect("looks") });
        }
        let both_wait = "select 1 where 2 = (select count(distinct pid) from pg_locks join pg_stat_activity using (pid)
             where not granted and datname = current_database())";
        while other.client.query_opt(both_wait, &[]).await.expect("reads the locks").is_none() {}
        holder.client.batch_execute("commit").await.expect("commits");
        assert_eq!(nodes.join_all().await.into_iter().sum::<u64>(), 1);
        let learnt = number(&db.store, "select json_array_length(repairs) from failure_groups").await;
        assert_eq!(learnt, 1, "one repair, one sample");
    })
    .await;
}

/// Requirement S10.
#[tokio::test]
async fn signals_of_live_jobs_do_not_block_pruning_of_others() {
    on_both(async |db| {
        push_all(&db.store, (0..MAINTENANCE_ROWS).map(|_| job("other")).collect()).await;
        let all_signal = "insert into signals (job, tenant, updated_at) select id, tenant, created_at from jobs";
        run_sql(&db.store, all_signal).await.expect("inserts the signals");
        db.pass_ms(1_000).await;
        push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let change = SignalChange { epoch: claimed.epoch, summary: Some("hm".into()), ..SignalChange::default() };
        db.store.signal(T, claimed.id, change).await.expect("signals");
        finish(&db.store, worker, &claimed).await;
        db.pass_ms(25 * 3_600_000).await;
        assert_eq!(db.store.prune_signals().await.expect("prunes").signals, 1);
        assert_eq!(number(&db.store, "select count(*) from signals").await, MAINTENANCE_ROWS as i64);
    })
    .await;
}
