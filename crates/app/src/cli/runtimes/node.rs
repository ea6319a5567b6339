//! `windlass node`: lists nodes with Docker engines for runtimes.

use clap::Subcommand;
use client::Client;

use crate::cli::exit::Exit;
use crate::cli::output;
use crate::cli::output::{Listing, Output, cell, relative};

#[derive(Subcommand)]
pub(crate) enum NodeVerb {
    /// List nodes with their labels and slots
    List,
}

pub(crate) async fn run(client: &Client, verb: NodeVerb, format: Output) -> anyhow::Result<Exit> {
    let NodeVerb::List = verb;
    let nodes = client.nodes().await?;
    if format == Output::Json {
        output::json(&nodes)?;
        return Ok(Exit::Done);
    }
    if nodes.items.is_empty() {
        output::note("No nodes.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["NAME", "STATE", "LABELS", "USED", "FREE", "SEEN", "FAULT"]);
    for node in &nodes.items {
        let labels: Vec<String> = node.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let state = match (node.is_lost, &node.fault) {
            (true, _) => "lost",
            (false, Some(_)) => "engine unreachable",
            (false, None) => "up",
        };
        listing.row([
            cell(&node.name),
            cell(state),
            cell(labels.join(" ")),
            cell(node.slots_taken),
            cell(node.slots_free.map_or_else(|| "no limit".to_owned(), |free| free.to_string())),
            cell(relative(node.seen_at)),
            cell(node.fault.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()?;
    Ok(Exit::Done)
}
