//! The host folders of a runtime. They are created, never deleted, and never reached through a symbolic link.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use domain::runtimes::VolumePath;
use domain::{RuntimeName, TenantId};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::container::Folder;

#[derive(Debug, thiserror::Error)]
#[error("cannot use {path} as a folder: {source}")]
pub(super) struct StatePathError {
    path: String,
    #[source]
    source: io::Error,
}

/// The folder of a runtime's data, which outlives its containers.
pub(super) fn of(root: &Path, tenant: TenantId, name: &RuntimeName) -> PathBuf {
    root.join(tenant.0.to_string()).join(name.as_str())
}

/// Creates the state path and the folders of its volumes.
///
/// A container controls the contents of its volumes and may have created a symbolic link there. Every component from
/// the root on is opened without following links, so that no mount leads outside the state path.
pub(super) fn prepare(
    root: &Path,
    tenant: TenantId,
    name: &RuntimeName,
    volumes: &[VolumePath],
) -> Result<(PathBuf, Vec<Folder>), StatePathError> {
    let fault = |path: &Path, source: io::Error| StatePathError { path: path.display().to_string(), source };
    fs::DirBuilder::new().recursive(true).mode(0o700).create(root).map_err(|error| fault(root, error))?;
    let root = root.canonicalize().map_err(|error| fault(root, error))?;
    let state = of(&root, tenant, name);
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let open_below = |start: &Path, parts: &mut dyn Iterator<Item = &str>, mode: Mode| -> Result<(), StatePathError> {
        let mut path = start.to_path_buf();
        let mut folder = rustix::fs::open(start, flags, Mode::empty()).map_err(|error| fault(start, error.into()))?;
        for part in parts {
            path.push(part);
            match mkdirat(&folder, part, mode) {
                Ok(()) | Err(rustix::io::Errno::EXIST) => {}
                Err(error) => return Err(fault(&path, error.into())),
            }
            folder = openat(&folder, part, flags, Mode::empty()).map_err(|error| fault(&path, error.into()))?;
        }
        Ok(())
    };
    let tenant_folder = tenant.0.to_string();
    open_below(&root, &mut [tenant_folder.as_str(), name.as_str()].into_iter(), Mode::from_raw_mode(0o711))?;
    let mut folders = Vec::with_capacity(volumes.len());
    for volume in volumes {
        open_below(&state, &mut volume.parts(), Mode::from_raw_mode(0o755))?;
        let source = volume.parts().fold(state.clone(), |path, part| path.join(part));
        // The container's user is unknown here, and without capabilities its root can write only to world-writable
        // folders. Other users of the host cannot get past the root folder, which only this process's user can enter.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&source, open).map_err(|error| fault(&source, error))?;
        folders.push(Folder { source, target: volume.target() });
    }
    Ok((state, folders))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement R6.
    #[test]
    fn a_symbolic_link_in_the_state_path_is_rejected() {
        let folder = tempfile::tempdir().expect("a folder");
        let root = folder.path().join("root");
        let (tenant, name) = (TenantId(7), RuntimeName::stored("r"));
        let volume = |text: &str| VolumePath::parse(text).expect("a path");
        let (state, folders) = prepare(&root, tenant, &name, &[volume("/data/deep")]).expect("is created");
        assert_eq!(folders[0].source, state.join("data/deep"));
        assert!(folders[0].source.is_dir());
        prepare(&root, tenant, &name, &[volume("/data/deep")]).expect("already exists");

        std::os::unix::fs::symlink("/etc", state.join("data/deep/link")).expect("a link");
        prepare(&root, tenant, &name, &[volume("/data/deep/link")]).expect_err("a link is not a folder");
        std::os::unix::fs::symlink("/", state.join("up")).expect("a link");
        prepare(&root, tenant, &name, &[volume("/up/etc")]).expect_err("a folder behind a link");
        fs::write(state.join("file"), "x").expect("a file");
        prepare(&root, tenant, &name, &[volume("/file")]).expect_err("a file is not a folder");
        fs::remove_dir_all(root.join("7")).expect("is removed");
        std::os::unix::fs::symlink("/tmp", root.join("7")).expect("a link");
        prepare(&root, tenant, &name, &[]).expect_err("the tenant's folder is a link");
    }
}
