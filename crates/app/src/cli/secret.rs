//! `windlass secret`: the key that secrets are sealed with (X7). It works on the machine, beside a running server or without.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use serde_json::json;
use store::{DatabaseUrl, KEY_FILE, Store, StoreOptions};

use super::exit::{Exit, UsageError};
use super::migrate::{DatabaseArgs, beside_a_server, check_schema, open_existing};
use super::output::{self, Output, many};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Put a new key into the key file and wrap what the old one wrapped. Copy the file to every other node and agent then,
    /// and keep a copy of the old one beside the backups made until now: the new key does not open them.
    Rotate(KeyArgs),
    /// Give up every secret that was sealed, when the key file is lost. They must be set anew.
    Reset {
        #[command(flatten)]
        key: KeyArgs,
        /// Say that the secrets may go.
        #[arg(long)]
        yes: bool,
    },
}

#[derive(Args)]
pub(crate) struct KeyArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    /// The server's data directory, if it was given one.
    #[arg(long, env = "WINDLASS_DATA_DIR")]
    data_dir: Option<PathBuf>,
    /// The server's key file, if it was given one.
    #[arg(long, env = "WINDLASS_SECRET_KEY_FILE", value_name = "FILE")]
    secret_key_file: Option<PathBuf>,
}

impl KeyArgs {
    async fn open(&self) -> anyhow::Result<Store> {
        let url = DatabaseUrl::parse(&self.database.database)?;
        let folder = self.data_dir.clone().unwrap_or_else(|| url.data_dir());
        let key_file = self.secret_key_file.clone().unwrap_or_else(|| folder.join(KEY_FILE));
        let options = StoreOptions { key_file: Some(key_file), ..beside_a_server() };
        let store = open_existing(&url, options).await?;
        check_schema(&store).await?;
        Ok(store)
    }
}

pub(super) async fn run(verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Rotate(key) => {
            let wrapped = key.open().await?.rotate_secret_keys().await?;
            let keys = many(wrapped, "tenant key");
            let sentence = format!("A new key is in use; it wraps {keys}, and the old key is gone.");
            output::done(format, &sentence, &json!({"rotated": true, "tenant_keys": wrapped}))?;
        }
        Verb::Reset { key, yes } => {
            if !yes {
                let what = "every sealed secret is lost and must be set anew: say --yes to do it";
                return Err(UsageError(what.into()).into());
            }
            let forgotten = key.open().await?.reset_secret_keys().await?;
            let keys = many(forgotten as usize, "tenant key");
            let sentence = format!("{keys} given up, and what was sealed is gone.");
            output::done(format, &sentence, &json!({"reset": true, "tenant_keys": forgotten}))?;
        }
    }
    Ok(Exit::Done)
}
