//! Checks that the program exists before the worker claims jobs, because a misspelled name would fail every job.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use rustix::fs::{Access, access};

use crate::cli::exit::UsageError;

/// Looks the program up like the system does: by path if it contains a slash, else in `folders`.
pub(super) fn check(program: &OsStr, folders: &[PathBuf]) -> Result<(), UsageError> {
    let name = program.display();
    if !program.as_encoded_bytes().contains(&b'/') {
        if folders.iter().any(|folder| is_executable(&folder.join(program))) {
            return Ok(());
        }
        return Err(UsageError(format!(
            "program {name} not found on PATH; for a program in the current directory, use ./{name}"
        )));
    }
    let path = Path::new(program);
    if is_executable(path) {
        Ok(())
    } else if path.is_file() {
        Err(UsageError(format!("program {name} is not executable; run `chmod +x {name}`")))
    } else {
        Err(UsageError(format!("program {name} not found")))
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

    fn outcome(program: impl AsRef<OsStr>, folders: &[PathBuf]) -> String {
        check(program.as_ref(), folders).map_or_else(|error| error.to_string(), |()| "found".into())
    }

    #[test]
    fn a_program_is_resolved_on_the_path_and_must_be_executable() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("send.sh");
        std::fs::write(&path, "#!/bin/sh\n").unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
        let folders = [PathBuf::from("/nowhere"), folder.path().to_owned()];
        assert!(outcome(&path, &folders).contains("chmod +x"));
        assert!(outcome("send.sh", &folders).contains("on PATH"));
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(outcome(&path, &[]), "found");
        assert_eq!(outcome("send.sh", &folders), "found");
        assert!(outcome("./no/such/program", &folders).starts_with("program ./no/such/program not found"));
        assert!(outcome(folder.path(), &folders).ends_with("not found"), "a folder is not a program");
    }
}
