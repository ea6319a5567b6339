//! `windlass kv`: key-value collections (T1).

use clap::Subcommand;
use client::Client;
use wire::KvView;

use super::exit::Exit;
use super::list;
use super::output::{self, Output, cell, relative};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Print a value.
    Get { collection: String, key: String },
    /// Set a value; triggers that listen to the collection run.
    Set {
        collection: String,
        key: String,
        /// JSON, from a file as @FILE, or from stdin as -.
        value: String,
        /// Only while it has this version; 0 while there is none.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
        if_version: Option<i64>,
    },
    /// Delete a value.
    Delete { collection: String, key: String },
    /// List a collection by key.
    List { collection: String },
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let entry = match verb {
        Verb::Get { collection, key } => client.kv(&collection, &key).await?,
        Verb::Set { collection, key, value, if_version } => {
            let value = super::job::json_argument("the value", &value)?;
            match if_version {
                Some(version) => client.set_kv_at(&collection, &key, version, &value).await?,
                None => client.set_kv(&collection, &key, &value).await?,
            }
        }
        Verb::Delete { collection, key } => client.delete_kv(&collection, &key).await?,
        Verb::List { collection } => return list(client, &collection, format).await,
    };
    match format {
        Output::Json => output::json(&entry)?,
        Output::Table => output::line(&super::job::pretty(entry.value.get()))?,
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, collection: &str, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.kv_entries(collection, cursor).await).await?;
    list::print(
        format,
        &page,
        "There is nothing in it.",
        ["KEY", "VERSION", "UPDATED", "VALUE"],
        |KvView { key, version, updated_at, value, .. }| {
            [cell(key), cell(version), cell(relative(*updated_at)), cell(value.get())]
        },
    )?;
    Ok(Exit::Done)
}
