use std::os::unix::fs::PermissionsExt;

use super::*;

fn file(folder: &tempfile::TempDir) -> KeyFile {
    KeyFile::at(folder.path().join("deep/secret.key"))
}

#[test]
fn x7_a_sealed_text_opens_for_what_it_was_bound_to_and_unchanged_alone() {
    let cipher = Cipher::new(&fresh_key());
    let purpose = Purpose::Webhook { url: "https://a" };
    let bound = bound_to(TenantId(1), purpose);
    let sealed = cipher.seal(&bound, b"whsec_canary");
    assert_eq!(cipher.open(&bound, &sealed).unwrap(), b"whsec_canary");
    assert_ne!(sealed, cipher.seal(&bound, b"whsec_canary"), "the same twice looks different");
    for other in [
        bound_to(TenantId(2), purpose),
        bound_to(TenantId(1), Purpose::Webhook { url: "https://evil" }),
        bound_to(TenantId(1), Purpose::Environment { runtime: "https://a" }),
    ] {
        assert_eq!(cipher.open(&other, &sealed), None, "{other}");
    }
    for place in 0..sealed.len() {
        let mut changed = sealed.clone();
        changed[place] ^= 1;
        assert_eq!(cipher.open(&bound, &changed), None, "at {place}");
    }
    assert_eq!(Cipher::new(&fresh_key()).open(&bound, &sealed), None);
}

#[test]
fn x7_master_keys_are_rotated_beside_others_who_use_them() {
    let folder = tempfile::tempdir().unwrap();
    let (server, tool) = (file(&folder), file(&folder));
    let key = fresh_key();
    let old = server.keys_or_make().unwrap().wrap("t", &key);
    tool.add().unwrap();
    let new = tool.keys().unwrap().unwrap().wrap("t", &key);
    for wrapped in [&old, &new] {
        assert_eq!(server.keys().unwrap().unwrap().unwrap("t", wrapped), Some(key), "the server reads the file again");
    }
    assert_eq!(server.keys().unwrap().unwrap().derive("cookies").len(), 2);
    tool.forget_old().unwrap();
    assert_eq!(server.keys().unwrap().unwrap().unwrap("t", &old), None);
    assert_eq!(server.keys().unwrap().unwrap().unwrap("t", &new), Some(key));
    assert_eq!(server.keys().unwrap().unwrap().unwrap("u", &new), None);
}

#[test]
fn x7_the_key_file_is_not_everyones() {
    let folder = tempfile::tempdir().unwrap();
    let keys = file(&folder);
    assert!(keys.keys().unwrap().is_none(), "looking makes none");
    keys.keys_or_make().unwrap();
    let mode = |path: &std::path::Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(keys.path()), 0o600);
    keys.add().unwrap();
    assert_eq!(mode(keys.path()), 0o600);
    let beside: Vec<_> = std::fs::read_dir(keys.path().parent().unwrap()).unwrap().collect();
    assert_eq!(beside.len(), 1, "nothing is left beside it: {beside:?}");
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o644)).unwrap();
    let refused = file(&folder).keys().err().unwrap().to_string();
    assert!(refused.contains("chmod 600"), "{refused}");
    std::fs::set_permissions(keys.path(), std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::write(keys.path(), "nonsense").unwrap();
    // By one that has not read it: within a tick of the file system's clock it would seem unchanged to the other.
    assert!(file(&folder).keys().is_err());
}

#[test]
fn x7_of_two_that_make_a_key_file_at_once_one_counts() {
    let folder = tempfile::tempdir().unwrap();
    let derived = |keys: &KeyFile| keys.keys_or_make().unwrap().derive("same");
    let both: Vec<_> = std::thread::scope(|scope| {
        let each: Vec<_> = (0..8).map(|_| scope.spawn(|| derived(&file(&folder)))).collect();
        each.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(both.iter().all(|keys| *keys == both[0]));
}
