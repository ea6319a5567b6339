//! Sealed secrets: each belongs to one tenant and one purpose, and any node with the key file opens it.

use store::access::secrets::{Purpose, is_sealed};
use store::access::tenants::create::TenantCreated;
use store::{KEY_FILE, Store, StoreError, StoreOptions};
use testkit::{name, on_both};

use crate::support::*;

const URL: Purpose<'_> = Purpose::Webhook { url: "https://a.example/hook" };

/// Requirement X7.
#[tokio::test]
async fn a_secret_opens_on_every_node_only_for_its_tenant_and_purpose() {
    on_both(async |db| {
        let node = db.another_node().await;
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.unwrap() else { panic!("new") };
        let sealed = db.store.seal(T, URL, "whsec_canary").await.unwrap();
        assert!(is_sealed(&sealed) && !sealed.contains("canary"));
        assert_eq!(node.open_sealed(T, URL, &sealed).await.unwrap(), "whsec_canary");
        assert_eq!(db.store.seal(T, URL, &sealed).await.unwrap(), sealed, "sealing is idempotent");
        assert_eq!(node.open_sealed(T, URL, "whsec_plain").await.unwrap(), "whsec_plain");
        let elsewhere = Purpose::Webhook { url: "https://evil.example/hook" };
        for (tenant, purpose) in [(other, URL), (T, elsewhere), (T, Purpose::Environment { runtime: "r" })] {
            let failed = node.open_sealed(tenant, purpose, &sealed).await;
            assert!(matches!(failed, Err(StoreError::Unusable(_))), "{tenant:?} {purpose:?}");
        }
        for malformed in ["sealed.1.", "sealed.1.!", "sealed.1.AAAA", &sealed[..sealed.len() - 2]] {
            assert!(node.open_sealed(T, URL, malformed).await.is_err(), "{malformed}");
        }
    })
    .await;
}

/// Key rotation runs concurrently with sealing and opening. No secret is lost, also for a node that has only the new
/// key.
/// Requirement X7.
#[tokio::test]
async fn a_key_rotation_during_sealing_loses_no_secret() {
    on_both(async |db| {
        let node = db.another_node().await;
        let tenants = {
            let mut tenants = vec![T];
            for number in 0..8 {
                match db.store.create_tenant(name(&format!("t{number}"))).await.unwrap() {
                    TenantCreated::Created(tenant) => tenants.push(tenant),
                    other => panic!("{other:?}"),
                }
            }
            tenants
        };
        let before = db.store.seal(T, URL, "before").await.unwrap();
        let sealing = async {
            let mut sealed = Vec::new();
            // Each tenant's first secret creates a key while the master key is rotated.
            for tenant in &tenants {
                sealed.push((*tenant, node.seal(*tenant, URL, "meanwhile").await.unwrap()));
            }
            sealed
        };
        let rotating = async {
            for _ in 0..3 {
                db.store.rotate_secret_keys().await.unwrap();
            }
        };
        let (sealed, ()) = tokio::join!(sealing, rotating);
        let fresh = db.another_node().await;
        assert_eq!(fresh.open_sealed(T, URL, &before).await.unwrap(), "before");
        for (tenant, text) in sealed {
            assert_eq!(fresh.open_sealed(tenant, URL, &text).await.unwrap(), "meanwhile");
        }
        let after = fresh.seal(T, URL, "after").await.unwrap();
        assert_ne!(before[..30], after[..30], "what is sealed from now on has a key of its own");
    })
    .await;
}

/// Requirement X7.
#[tokio::test]
async fn a_missing_key_file_is_an_error_and_is_not_created_implicitly() {
    on_both(async |db| {
        db.store.seal(T, URL, "whsec_canary").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key_file = folder.path().join(KEY_FILE);
        let options = StoreOptions { key_file: Some(key_file.clone()), ..StoreOptions::default() };
        let unknown = Store::open(&db.url, options).await.unwrap();
        for failed in [unknown.prepare_secrets().await, unknown.rotate_secret_keys().await.map(|_| ())] {
            let error = failed.unwrap_err().to_string();
            assert!(error.contains("secret-key-file"), "{error}");
        }
        assert!(!key_file.exists());
        assert!(unknown.reset_secret_keys().await.unwrap() > 0);
        unknown.prepare_secrets().await.unwrap();
        unknown.seal(T, URL, "another").await.unwrap();
        assert!(key_file.exists(), "a key is created if nothing is sealed");
    })
    .await;
}
