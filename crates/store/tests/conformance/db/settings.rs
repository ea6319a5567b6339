//! Settings of PostgreSQL that change how the statements of the program run.

use store::db::health::ChangedSetting;
use store::{Store, StoreOptions};
use testkit::{Database, on_postgres};

use crate::support::*;

/// Requirement X12.
#[tokio::test]
async fn surprising_settings_of_the_role_and_the_database_are_reported() {
    assert_eq!(Database::sqlite().await.store.changed_settings().await.expect("reads"), []);
    on_postgres(async |db| {
        let admin = psql(&db.admin).await;
        let database = texts(&db.store, "", "select current_database()::text").await.remove(0);
        let role = texts(&db.store, "", "select current_user::text").await.remove(0);
        let statements = format!(
            "alter role {role} in database {database} set statement_timeout to '5s';
             alter database {database} set default_transaction_isolation to 'serializable';
             alter database {database} set work_mem to '5MB'"
        );
        admin.client.batch_execute(&statements).await.expect("changes the settings");
        // Settings apply to new sessions.
        let store = Store::open(&db.url, StoreOptions::default()).await.expect("opens");
        let changed = |name: &str, value: &str, set_for: String| ChangedSetting {
            name: name.into(),
            value: value.into(),
            set_for: Some(set_for),
        };
        let expected = [
            changed("default_transaction_isolation", "serializable", format!("database {database}")),
            changed("statement_timeout", "5000", format!("role {role}")),
        ];
        assert_eq!(store.changed_settings().await.expect("reads"), expected);
        push(&store, testkit::job("q")).await;
    })
    .await;
}
