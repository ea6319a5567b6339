//! Writes the table of documents and pictures that `src/docs.rs` embeds, from the files of the repository, and the styles and
//! scripts that `src/assets.rs` embeds, without comments and indentation.

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

    let own = Path::new(env!("CARGO_MANIFEST_DIR")).join("static");
    let shortened = Path::new(&out).join("static");
    std::fs::create_dir_all(&shortened)?;
    for entry in std::fs::read_dir(&own)? {
        let path = entry?.path();
        let name = path.file_name().ok_or("a file has no name")?;
        let text = std::fs::read_to_string(&path)?;
        let text = match path.extension().and_then(|extension| extension.to_str()) {
            Some("js") => without_comment_lines(&text)?,
            Some("css") => without_comments(&text)?,
            _ => text,
        };
        std::fs::write(shortened.join(name), text)?;
    }

    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed={}", own.display());
    println!("cargo::rerun-if-changed={}", root.join("docs").display());
    for name in DOCUMENTS {
        println!("cargo::rerun-if-changed={}", root.join(name).display());
    }
    Ok(())
}

/// Removes indentation, empty lines and lines that are comments. A script has no template literal over several lines.
fn without_comment_lines(script: &str) -> Result<String, Box<dyn Error>> {
    let lines = script.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with("//"));
    let mut shortened = String::new();
    for line in lines {
        if line.matches('`').count() % 2 == 1 {
            return Err(format!("a template literal ends on another line: {line}").into());
        }
        shortened.push_str(line);
        shortened.push('\n');
    }
    Ok(shortened)
}

/// Removes comments, indentation and the spaces that no rule needs.
fn without_comments(style: &str) -> Result<String, Box<dyn Error>> {
    let (mut plain, mut rest) = (String::new(), style);
    while let Some((before, comment)) = rest.split_once("/*") {
        plain.push_str(before);
        rest = comment.split_once("*/").ok_or("a comment has no end")?.1;
    }
    plain.push_str(rest);
    let mut shortened: String =
        plain.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join("\n");
    for (long, short) in [
        (" {", "{"),
        ("{ ", "{"),
        ("; ", ";"),
        (": ", ":"),
        (", ", ","),
        (" }", "}"),
        (";}", "}"),
        (";\n", ";"),
        ("{\n", "{"),
        (";}", "}"),
    ] {
        shortened = shortened.replace(long, short);
    }
    Ok(shortened)
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
