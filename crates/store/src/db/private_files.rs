//! Creates files and folders that only the user of this process can access, whatever the umask. Used for the database, its
//! copies, the key file and the artifacts, because all of them contain payloads or secrets.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;

/// Creates an empty file. Fails if it exists.
pub(crate) fn create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)
}

/// Opens a file for writing, or creates it. The mode of an existing file stays as it is.
pub(crate) fn open_or_create_file(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create(true).truncate(true).mode(FILE_MODE).open(path)
}

/// Creates a folder and its missing parents. The modes of existing folders stay as they are.
pub(crate) fn create_folder(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(FOLDER_MODE).create(path)
}

/// Creates one folder if it is missing, and syncs its name to disk.
pub(crate) fn create_folder_durably(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(FOLDER_MODE).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        created => created?,
    }
    File::open(path)?.sync_all()?;
    path.parent().map_or(Ok(()), |parent| File::open(parent)?.sync_all())
}

/// Takes the access of other users away from a file that a library created.
pub(crate) fn restrict_file(path: &Path) -> io::Result<()> {
    std::fs::set_permissions(path, Permissions::from_mode(FILE_MODE))
}
