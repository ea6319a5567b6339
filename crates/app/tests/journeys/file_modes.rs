//! Files of the program are accessible to its user only, whatever the umask.

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{Fixture, Server, push, windlass};

/// Returns the files and folders below a folder, with their modes.
fn entries(folder: &Path) -> Vec<(PathBuf, bool, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("the folder is readable") {
        let path = entry.expect("an entry").path();
        let metadata = std::fs::symlink_metadata(&path).expect("the entry exists");
        found.push((path.clone(), metadata.is_dir(), metadata.permissions().mode() & 0o777));
        if metadata.is_dir() {
            found.extend(entries(&path));
        }
    }
    found
}

/// Requirement X7.
#[tokio::test(flavor = "multi_thread")]
async fn files_of_the_server_are_accessible_to_its_user_only() {
    let fixture = Fixture::sqlite();
    let before: Vec<PathBuf> = entries(fixture.folder()).into_iter().map(|(path, ..)| path).collect();
    let server = Server::start(&fixture).await;
    let client = server.client();
    let id = push(&client, "q", json!(1)).await;
    client.put_artifact(id, None, "large", "text/plain", vec![b'x'; 1_000_000]).await.expect("it is stored");
    // A secret creates the key file.
    let webhook = ["queue", "set", "q", "--url", &server.url, "--webhook", "https://example.com/", "--webhook-secret"];
    let set = windlass(&[&webhook[..], &["whsec_MDAwMDAwMDAwMDAwMDAwMDAwMDAwMDAw"]].concat()).await;
    assert_eq!(set.code, Some(0), "{set:?}");
    let copy = fixture.path("copy.db").display().to_string();
    let backup = windlass(&["backup", &copy, "--database", &fixture.url]).await;
    assert_eq!(backup.code, Some(0), "{backup:?}");

    let new: Vec<_> = entries(fixture.folder()).into_iter().filter(|(path, ..)| !before.contains(path)).collect();
    let names: Vec<String> = new.iter().map(|(path, ..)| path.display().to_string()).collect();
    for expected in [".db", ".db-wal", ".db-shm", ".db.lock", "copy.db", "secret.key", "artifacts"] {
        assert!(names.iter().any(|name| name.ends_with(expected)), "{expected} in {names:?}");
    }
    for (path, is_folder, mode) in new {
        // The test itself writes the output of the programs that it starts.
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("stdout") || name.starts_with("stderr") {
            continue;
        }
        assert_eq!(mode, if is_folder { 0o700 } else { 0o600 }, "{}", path.display());
    }
}
