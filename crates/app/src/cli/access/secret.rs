//! `windlass secret`: the key that encrypts secrets. Opens the database directly, also while a server is running.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};

use crate::cli::exit::{Exit, UsageError};
use crate::cli::migrate::{DatabaseArgs, check_schema, open_existing, shared};
use crate::cli::output;
use crate::cli::output::{Output, many};

#[derive(Subcommand)]
pub(crate) enum SecretVerb {
    /// Create a new key and re-encrypt all tenant keys with it.
    ///
    /// Then copy the key file to every other node and agent, and keep the old key with the backups made so far: the new
    /// key cannot decrypt them.
    Rotate(KeyArgs),
    /// Discard all encrypted secrets after the key file is lost. They must be set again.
    Reset {
        #[command(flatten)]
        key: KeyArgs,
        /// Confirm that all secrets are lost
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// Data directory of the server, if not the default
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// Key file of the server, if not the default
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
}

impl KeyArgs {
    async fn open(&self) -> anyhow::Result<Store> {
        let url = DatabaseUrl::parse(&self.database.database)?;
        let folder = self.data_dir.clone().unwrap_or_else(|| url.data_dir());
        let key_file = self.secret_key_file.clone().unwrap_or_else(|| folder.join(KEY_FILE));
        let options = StoreOptions { key_file: Some(key_file), ..shared() };
        let store = open_existing(&url, options).await?;
        check_schema(&store).await?;
        Ok(store)
    }
}

pub(crate) async fn run(verb: SecretVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        SecretVerb::Rotate(key) => {
            let wrapped = key.open().await?.rotate_secret_keys().await?;
            let keys = many(wrapped, "tenant key");
            let sentence = format!("Created a new key and re-encrypted {keys} with it. The old key is no longer used.");
            output::done(format, &sentence, &json!({"rotated": true, "tenant_keys": wrapped}))?;
        }
        SecretVerb::Reset { key, yes } => {
            if !yes {
                let what = "all encrypted secrets will be lost and must be set again; pass --yes to confirm";
                return Err(UsageError(what.into()).into());
            }
            let discarded = key.open().await?.reset_secret_keys().await?;
            let keys = many(discarded as usize, "tenant key");
            let sentence = format!("Discarded {keys}; the secrets encrypted with them are lost.");
            output::done(format, &sentence, &json!({"reset": true, "tenant_keys": discarded}))?;
        }
    }
    Ok(Exit::Done)
}
