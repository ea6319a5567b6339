//! Runs the examples of the guide.

#[path = "../examples/order.rs"]
#[expect(dead_code, unreachable_pub, reason = "the example is a program of its own")]
mod order;

#[tokio::test(flavor = "multi_thread")]
async fn the_order_workflow_returns_its_receipt() {
    let folder = tempfile::tempdir().expect("a folder");
    let receipt = order::run(&format!("sqlite:{}", folder.path().join("orders.db").display())).await.expect("it runs");
    assert_eq!(receipt, order::Receipt { payment: "payment for 7".into(), words: 4 });
}

mod on_a_test_server {
    //! The same workflow without a database, with virtual time.

    use client::testing::{TestJobState, TestServer};

    use super::order::{Order, Receipt, order, page};

    #[tokio::test]
    async fn a_lost_parcel_is_refunded() {
        let server = TestServer::new();
        let job = server.push_job(&Order { id: 8, pages: vec!["one two".into()] }).expect("JSON");
        server.run(server.worker().job(page).workflow_job(order)).await.expect("the jobs run");
        let lost = server.job(job).expect("it exists");
        assert_eq!(lost.state, TestJobState::Failed);
        assert_eq!(lost.keys, ["charge", "page", "delivered", "undo/charge"]);
        let other = server.push_job(&Order { id: 9, pages: Vec::new() }).expect("JSON");
        server.send_event(other, "delivered", &serde_json::json!({"order": 9, "at": "noon"})).expect("it is live");
        server.run(server.worker().job(page).workflow_job(order)).await.expect("the jobs run");
        let receipt: Receipt = server.result(other).expect("it succeeded");
        assert_eq!(receipt, Receipt { payment: "payment for 9".into(), words: 0 });
    }
}
