//! `windlass.step(…)` inside a transaction of the caller: a database step happens exactly once.

use domain::JobId;
use store::queue::settle::End;
use testkit::{job, on_postgres};
use tokio_postgres::Client;

use super::journal::{done, entries, record};
use crate::support::*;
use crate::triggers::declarations::assert_verified;

async fn step(
    client: &Client,
    job: JobId,
    epoch: i64,
    key: &str,
    result: &str,
) -> Result<String, tokio_postgres::Error> {
    let call =
        format!("select windlass.step(job => '{job}', epoch => {epoch}, key => '{key}', result => '{result}')::text");
    client.query_one(&call, &[]).await.map(|row| row.get(0))
}

fn code(error: tokio_postgres::Error) -> String {
    error.code().map(|code| code.code().to_owned()).unwrap_or_default()
}

#[tokio::test]
async fn a_step_is_recorded_exactly_when_the_callers_transaction_commits() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        psql.client.batch_execute("create table effects (n integer)").await.expect("creates");
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let epoch = claimed.epoch.0;
        for (ending, recorded) in [("rollback", 0), ("commit", 1)] {
            psql.client.batch_execute("begin; insert into effects values (1)").await.expect("begins");
            assert_eq!(step(&psql.client, id, epoch, "pay", "{\"n\":1}").await.expect("records"), "{\"n\":1}");
            psql.client.batch_execute(ending).await.expect("ends");
            assert_eq!(entries(&db.store, id).await.len(), recorded, "{ending}");
        }
        // The caller did not learn that the commit succeeded, and tries again.
        psql.client.batch_execute("begin; insert into effects values (1)").await.expect("begins");
        let again = step(&psql.client, id, epoch, "pay", "{\"n\":2}").await.unwrap_err();
        assert_eq!(again.as_db_error().and_then(|error| error.detail()), Some("{\"n\":1}"));
        assert_eq!(code(again), "23505");
        psql.client.batch_execute("rollback").await.expect("rolls back");
        let effects: i64 = psql.client.query_one("select count(*) from effects", &[]).await.expect("counts").get(0);
        assert_eq!(effects, 1);
        record(&db.store, worker, &claimed, vec![done("b", "2")]).await;
        step(&psql.client, id, epoch, "c", "3").await.expect("records");
        assert_eq!(entries(&db.store, id).await, ["pay {\"n\":1} 1", "b 2 2", "c 3 3"]);
        settle(&db.store, worker, id, claimed.epoch, End::Release).await;
        assert_eq!(claim_one(&db.store, worker).await.journal.expect("has a journal").entries.len(), 3);
        assert_verified(&db.store).await;
    })
    .await;
}

#[tokio::test]
async fn a_lost_claim_or_an_invalid_step_fails_the_callers_transaction() {
    on_postgres(async |db| {
        let psql = psql(&db.admin).await;
        let id = push(&db.store, job("q")).await;
        let worker = register_with_long_lease(&db.store).await;
        let claimed = claim_one(&db.store, worker).await;
        let epoch = claimed.epoch.0;
        let large = format!("\"{}\"", "x".repeat(1 << 20));
        for (epoch, key, result, expected) in [
            (epoch - 1, "a", "1", "55000"),
            (epoch + 1, "a", "1", "55000"),
            (epoch, "", "1", "22023"),
            (epoch, " a", "1", "22023"),
            (epoch, "a", large.as_str(), "22023"),
        ] {
            assert_eq!(code(step(&psql.client, id, epoch, key, result).await.unwrap_err()), expected, "{key}");
        }
        run_sql(
            &db.store,
            "insert into journals (job, tenant, entries, resolved, bytes)
            select id, tenant, 10000, 0, 0 from jobs",
        )
        .await
        .expect("inserts");
        assert_eq!(code(step(&psql.client, id, epoch, "a", "1").await.unwrap_err()), "54000");
        settle(&db.store, worker, id, claimed.epoch, End::Release).await;
        assert_eq!(code(step(&psql.client, id, epoch, "a", "1").await.unwrap_err()), "55000");
        assert_eq!(entries(&db.store, id).await, Vec::<String>::new());
    })
    .await;
}
