//! Writes the table of documents and pictures that `src/docs.rs` embeds, from the files of the repository.

use std::error::Error;
use std::fmt::Write;
use std::path::{Path, PathBuf};

/// Documents outside `docs/` that the documentation links to.
const DOCUMENTS: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"];
/// Larger pictures are not embedded; pages show their description instead.
const PICTURE_BYTES: u64 = 300 * 1024;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let mut files: Vec<PathBuf> = DOCUMENTS.iter().map(|name| root.join(name)).collect();
    collect(&root.join("docs"), &mut files)?;
    files.sort();

    let (mut documents, mut pictures) = (String::new(), String::new());
    for file in &files {
        let path = file.to_str().ok_or("a path is not UTF-8")?;
        let name = file.strip_prefix(&root)?.to_str().ok_or("a path is not UTF-8")?;
        match file.extension().and_then(|extension| extension.to_str()) {
            Some("md") => writeln!(documents, "    ({name:?}, include_str!({path:?})),")?,
            Some("png" | "svg") if file.metadata()?.len() <= PICTURE_BYTES => {
                writeln!(pictures, "    ({name:?}, include_bytes!({path:?})),")?;
            }
            _ => {}
        }
    }
    let table = format!(
        "const DOCUMENTS: &[(&str, &str)] = &[\n{documents}];\nconst PICTURES: &[(&str, &[u8])] = &[\n{pictures}];\n"
    );
    #[expect(clippy::disallowed_methods, reason = "Cargo names the output directory of a build script this way")]
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("docs.rs"), table)?;

    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", root.join("docs").display());
    for name in DOCUMENTS {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
    }
    Ok(())
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) -> Result<(), Box<dyn Error>> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            collect(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
