use std::os::unix::fs::PermissionsExt;

use super::*;

fn file(folder: &tempfile::TempDir) -> KeyFile {
    KeyFile::at(folder.path().join("deep/secret.key"))
}

/// Requirement X7.
#[test]
fn a_sealed_secret_opens_only_unchanged_and_for_its_bound_purpose() {
    let cipher = Cipher::new(&fresh_key());
    let purpose = Purpose::Webhook { url: "https://a" };
    let bound = bound_to(TenantId(1), purpose);
    let sealed = cipher.seal(&bound, b"whsec_canary");
    assert_eq!(cipher.open(&bound, &sealed).unwrap(), b"whsec_canary");
    assert_ne!(sealed, cipher.seal(&bound, b"whsec_canary"), "sealing the same text twice gives different results");
    for other in [
        bound_to(TenantId(2), purpose),
        bound_to(TenantId(1), Purpose::Webhook { url: "https://evil" }),
        bound_to(TenantId(1), Purpose::Environment { runtime: "https://a" }),
    ] {
        assert_eq!(cipher.open(&other, &sealed), None, "{other}");
    }
    for index in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[index] ^= 1;
        assert_eq!(cipher.open(&bound, &changed), None, "byte {index}");
    }
    assert_eq!(Cipher::new(&fresh_key()).open(&bound, &sealed), None);
}

/// Requirement X7.
#[test]
fn master_keys_rotate_while_another_process_uses_them() {
    let folder = tempfile::tempdir().unwrap();
    let (server, tool) = (file(&folder), file(&folder));
    let key = fresh_key();
    let old = server.keys_or_create().unwrap().wrap("t", &key);
    tool.add().unwrap();
    let new = tool.keys().unwrap().unwrap().wrap("t", &key);
    for wrapped in [&old, &new] {
        assert_eq!(server.keys().unwrap().unwrap().unwrap("t", wrapped), Some(key), "the server reads the file again");
    }
    assert_eq!(server.keys().unwrap().unwrap().derive("cookies").len(), 2);
    tool.remove_old_keys().unwrap();
    assert_eq!(server.keys().unwrap().unwrap().unwrap("t", &old), None);
    assert_eq!(server.keys().unwrap().unwrap().unwrap("t", &new), Some(key));
    assert_eq!(server.keys().unwrap().unwrap().unwrap("u", &new), None);
}

/// Requirement X7.
#[test]
fn the_key_file_must_be_readable_only_by_its_owner() {
    let folder = tempfile::tempdir().unwrap();
    let keys = file(&folder);
    assert!(keys.keys().unwrap().is_none(), "reading creates no file");
    keys.keys_or_create().unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(keys.path()), 0o600);
    keys.add().unwrap();
    assert_eq!(mode(keys.path()), 0o600);
    let files: Vec<_> = std::fs::read_dir(keys.path().parent().unwrap()).unwrap().collect();
    assert_eq!(files.len(), 1, "no temporary file remains: {files:?}");
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = file(&folder).keys().err().unwrap().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(keys.path(), "nonsense").unwrap();
    // Use a new reader: the old one could miss a change within one tick of the file system's clock.
    assert!(file(&folder).keys().is_err());
}

/// Requirement X7.
#[test]
fn concurrent_key_file_creations_agree_on_one_key() {
    let folder = tempfile::tempdir().unwrap();
    let derived = |keys: &KeyFile| keys.keys_or_create().unwrap().derive("same");
    let both: Vec<_> = std::thread::scope(|scope| {
        let each: Vec<_> = (0..8).map(|_| scope.spawn(|| derived(&file(&folder)))).collect();
        each.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(both.iter().all(|keys| *keys == both[0]));
}
