//! `windlass job artifacts` and `windlass job artifact`: lists, downloads and uploads artifacts as streams.

use std::fs::Permissions;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Subcommand;
use client::{Client, Download};
use uuid::Uuid;

use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::output::{self, Listing, Output, bytes, cell, relative};

#[derive(Subcommand)]
pub(crate) enum ArtifactVerb {
    /// Download an artifact to stdout or to a file
    Get {
        id: IdArgument,
        name: String,
        /// File to write; it is created only when the download is complete
        #[arg(short = 'o', long = "to", value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Upload a file, or stdin, as an artifact of a job
    Put {
        id: IdArgument,
        name: String,
        /// File to upload [default: stdin]
        file: Option<PathBuf>,
        #[arg(long, default_value = "application/octet-stream")]
        content_type: String,
        /// Epoch of the claim, for a worker that runs the job
        #[arg(long)]
        epoch: Option<i64>,
    },
}

pub(super) async fn run(client: &Client, verb: ArtifactVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        ArtifactVerb::Get { id, name, to } => {
            let download = client.artifact(id.job(client).await?, &name).await?;
            match to {
                Some(file) => save(download, &file).await?,
                None => copy(download, &mut std::io::stdout().lock()).await?,
            }
        }
        ArtifactVerb::Put { id, name, file, content_type, epoch } => {
            let id = id.job(client).await?;
            let artifact = match file {
                Some(path) => {
                    let file = tokio::fs::File::open(&path).await;
                    let file = file.with_context(|| format!("cannot open {}", path.display()))?;
                    client.put_artifact_from(id, epoch, &name, &content_type, file).await?
                }
                None => client.put_artifact_from(id, epoch, &name, &content_type, tokio::io::stdin()).await?,
            };
            match format {
                Output::Json => output::json(&artifact)?,
                Output::Table => {
                    output::note(&format!("Stored artifact {} ({}).", artifact.name, bytes(artifact.size)))
                }
            }
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn list(client: &Client, id: Uuid, format: Output) -> anyhow::Result<Exit> {
    let page = client.artifacts(id).await?;
    if format == Output::Json {
        output::json(&page)?;
        return Ok(Exit::Done);
    }
    if page.items.is_empty() {
        output::note("The job has no artifacts.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["NAME", "SIZE", "TYPE", "CREATED", "SHA-256"]);
    for artifact in &page.items {
        listing.row([
            cell(&artifact.name),
            cell(bytes(artifact.size)),
            cell(&artifact.content_type),
            cell(relative(artifact.created_at)),
            cell(artifact.sha256.get(..16).unwrap_or(&artifact.sha256)),
        ]);
    }
    listing.print()?;
    Ok(Exit::Done)
}

async fn save(download: Download, path: &Path) -> anyhow::Result<()> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let cannot = || format!("cannot write {}", path.display());
    // Create the file with default permissions; the umask applies.
    let mut builder = tempfile::Builder::new();
    let mut file = builder.permissions(Permissions::from_mode(0o666)).tempfile_in(folder).with_context(cannot)?;
    copy(download, &mut file).await?;
    file.persist(path).with_context(cannot)?;
    Ok(())
}

async fn copy(mut download: Download, to: &mut impl Write) -> anyhow::Result<()> {
    while let Some(chunk) = download.chunk().await? {
        to.write_all(&chunk).context("cannot write")?;
    }
    to.flush().context("cannot write")
}
