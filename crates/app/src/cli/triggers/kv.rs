//! `windlass kv`: reads and writes key-value collections.

use clap::Subcommand;
use client::Client;
use wire::KvView;

use crate::cli::exit::Exit;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Output, cell, relative};

#[derive(Subcommand)]
pub(crate) enum KvVerb {
    /// Print a value
    Get { collection: String, key: String },
    /// Set a value; fires matching triggers
    Set {
        collection: String,
        key: String,
        /// Value: JSON, @FILE, or - for stdin
        value: String,
        /// Only if the key has this version; 0 means that it must not exist
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(0..))]
        if_version: Option<i64>,
    },
    /// Delete a value; fires matching triggers
    Delete { collection: String, key: String },
    /// List the entries of a collection by key
    List { collection: String },
}

pub(crate) async fn run(client: &Client, verb: KvVerb, format: Output) -> anyhow::Result<Exit> {
    let entry = match verb {
        KvVerb::Get { collection, key } => client.kv(&collection, &key).await?,
        KvVerb::Set { collection, key, value, if_version } => {
            let value = crate::cli::queue::job::json_argument("the value", &value)?;
            match if_version {
                Some(version) => client.set_kv_at(&collection, &key, version, &value).await?,
                None => client.set_kv(&collection, &key, &value).await?,
            }
        }
        KvVerb::Delete { collection, key } => client.delete_kv(&collection, &key).await?,
        KvVerb::List { collection } => return list(client, &collection, format).await,
    };
    match format {
        Output::Json => output::json(&entry)?,
        Output::Table => output::line(&crate::cli::queue::job::pretty(entry.value.get()))?,
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, collection: &str, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.kv_entries(collection, cursor).await).await?;
    list::print(
        format,
        &page,
        "The collection is empty.",
        ["KEY", "VERSION", "UPDATED", "VALUE"],
        |KvView { key, version, updated_at, value, .. }| {
            [cell(key), cell(version), cell(relative(*updated_at)), cell(value.get())]
        },
    )?;
    Ok(Exit::Done)
}
