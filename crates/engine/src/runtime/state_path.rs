//! The folders of a runtime on this machine. They are made, never deleted, and never reached through a link (R5, R6).

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use domain::runtime::VolumePath;
use domain::{RuntimeName, TenantId};
use rustix::fs::{Mode, OFlags, mkdirat, openat};

use super::container::Folder;

#[derive(Debug, thiserror::Error)]
#[error("{path} cannot be used as a folder: {source}")]
pub(super) struct StatePathError {
    path: String,
    #[source]
    source: io::Error,
}

/// Where a runtime keeps what outlives its containers.
pub(super) fn of(root: &Path, tenant: TenantId, name: &RuntimeName) -> PathBuf {
    root.join(tenant.0.to_string()).join(name.as_str())
}

/// Makes the state path and the folders of the volumes in it.
///
/// A container owns what is in its volumes and may have put a link there. Every step from the root on is opened without
/// following links, so that no mount leads out of the state path.
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
        // The container's user is not known here, and without capabilities its root writes only where everybody may.
        // Nobody else on this machine gets past the root, which is ours alone.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        fs::set_permissions(&source, open).map_err(|error| fault(&source, error))?;
        folders.push(Folder { source, target: volume.target() });
    }
    Ok((state, folders))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r6_a_link_in_the_way_is_refused_and_followed_nowhere() {
        let place = tempfile::tempdir().expect("a folder");
        let root = place.path().join("root");
        let (tenant, name) = (TenantId(7), RuntimeName::stored("r"));
        let volume = |text: &str| VolumePath::parse(text).expect("a path");
        let (state, folders) = prepare(&root, tenant, &name, &[volume("/data/deep")]).expect("is made");
        assert_eq!(folders[0].source, state.join("data/deep"));
        assert!(folders[0].source.is_dir());
        prepare(&root, tenant, &name, &[volume("/data/deep")]).expect("is there already");

        std::os::unix::fs::symlink("/etc", state.join("data/deep/link")).expect("a link");
        prepare(&root, tenant, &name, &[volume("/data/deep/link")]).expect_err("a link is no folder");
        std::os::unix::fs::symlink("/", state.join("up")).expect("a link");
        prepare(&root, tenant, &name, &[volume("/up/etc")]).expect_err("nor is anything behind one");
        fs::write(state.join("file"), "x").expect("a file");
        prepare(&root, tenant, &name, &[volume("/file")]).expect_err("nor is a file");
        fs::remove_dir_all(root.join("7")).expect("goes");
        std::os::unix::fs::symlink("/tmp", root.join("7")).expect("a link");
        prepare(&root, tenant, &name, &[]).expect_err("the tenant's folder neither");
    }
}
