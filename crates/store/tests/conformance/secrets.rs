//! X7: secrets are sealed for one tenant and one purpose, by keys that any node with the key file opens.

use store::secrets::{Purpose, is_sealed};
use store::tenants::create::TenantCreated;
use store::{KEY_FILE, Store, StoreError, StoreOptions};
use testkit::{name, on_both};

use crate::support::*;

const URL: Purpose<'_> = Purpose::Webhook { url: "https://a.example/hook" };

#[tokio::test]
async fn x7_a_secret_opens_for_its_tenant_and_purpose_on_every_node() {
    on_both(async |db| {
        let node = db.another_node().await;
        let TenantCreated::Created(other) = db.store.create_tenant(name("other")).await.unwrap() else { panic!("new") };
        let sealed = db.store.seal(T, URL, "whsec_canary").await.unwrap();
        assert!(is_sealed(&sealed) && !sealed.contains("canary"));
        assert_eq!(node.open_sealed(T, URL, &sealed).await.unwrap(), "whsec_canary");
        assert_eq!(db.store.seal(T, URL, &sealed).await.unwrap(), sealed, "sealed once is enough");
        assert_eq!(node.open_sealed(T, URL, "whsec_plain").await.unwrap(), "whsec_plain");
        let elsewhere = Purpose::Webhook { url: "https://evil.example/hook" };
        for (tenant, purpose) in [(other, URL), (T, elsewhere), (T, Purpose::Environment { runtime: "r" })] {
            let refused = node.open_sealed(tenant, purpose, &sealed).await;
            assert!(matches!(refused, Err(StoreError::Unusable(_))), "{tenant:?} {purpose:?}");
        }
        for broken in ["sealed.1.", "sealed.1.!", "sealed.1.AAAA", &sealed[..sealed.len() - 2]] {
            assert!(node.open_sealed(T, URL, broken).await.is_err(), "{broken}");
        }
    })
    .await;
}

/// Keys change while others seal and open: nothing is lost, also for who knows the new key alone.
#[tokio::test]
async fn x7_a_rotation_beside_those_who_seal_loses_nothing() {
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
            // Each tenant's first secret makes a key while the master key changes.
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

#[tokio::test]
async fn x7_another_key_file_is_told_and_none_is_made() {
    on_both(async |db| {
        db.store.seal(T, URL, "whsec_canary").await.unwrap();
        let folder = tempfile::tempdir().unwrap();
        let key_file = folder.path().join(KEY_FILE);
        let options = StoreOptions { key_file: Some(key_file.clone()), ..StoreOptions::default() };
        let stranger = Store::open(&db.url, options).await.unwrap();
        for refused in [stranger.prepare_secrets().await, stranger.rotate_secret_keys().await.map(|_| ())] {
            let told = refused.unwrap_err().to_string();
            assert!(told.contains("secret-key-file"), "{told}");
        }
        assert!(!key_file.exists());
        assert!(stranger.reset_secret_keys().await.unwrap() > 0);
        stranger.prepare_secrets().await.unwrap();
        stranger.seal(T, URL, "another").await.unwrap();
        assert!(key_file.exists(), "where nothing is sealed a key is made");
    })
    .await;
}
