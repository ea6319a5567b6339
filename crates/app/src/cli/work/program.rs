//! The program that jobs are run with, looked for before the worker takes one: what is misspelt would fail them all.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::cli::exit::UsageError;

/// Finds it as the system will: by its path where it has a slash, and in these folders where it has none.
pub(super) fn check(program: &OsStr, folders: &[PathBuf]) -> Result<(), UsageError> {
    let name = program.display();
    if !program.as_encoded_bytes().contains(&b'/') {
        if folders.iter().any(|folder| is_executable(&folder.join(program))) {
            return Ok(());
        }
        return Err(UsageError(format!("there is no program {name} on PATH; one beside you is ./{name}")));
    }
    let path = Path::new(program);
    if is_executable(path) {
        Ok(())
    } else if path.is_file() {
        Err(UsageError(format!("{name} may not be executed: chmod +x {name}")))
    } else {
        Err(UsageError(format!("there is no program {name}")))
    }
}

fn is_executable(path: &Path) -> bool {
    path.is_file() && access(path, Access::EXEC_OK).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    fn told(program: impl AsRef<OsStr>, folders: &[PathBuf]) -> String {
        check(program.as_ref(), folders).map_or_else(|error| error.to_string(), |()| "found".into())
    }

    #[test]
    fn a_program_is_found_as_the_system_finds_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("send.sh");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let folders = [PathBuf::from("/nowhere"), folder.path().to_owned()];
        assert!(told(&path, &folders).contains("chmod +x"));
        assert!(told("send.sh", &folders).contains("on PATH"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(told(&path, &[]), "found");
        assert_eq!(told("send.sh", &folders), "found");
        assert!(told("./no/such/program", &folders).starts_with("there is no program ./no/such/program"));
        assert!(told(folder.path(), &folders).starts_with("there is no program"), "a folder is none");
    }
}
