//! `windlass node`: machines whose Docker engines runtimes are started on (R1).

use clap::Subcommand;
use client::Client;

use super::exit::Exit;
use super::output::{self, Listing, Output, cell, relative};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List the nodes that drive a Docker engine, with what they have and what is taken.
    List,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let Verb::List = verb;
    let nodes = client.nodes().await?;
    if format == Output::Json {
        output::json(&nodes)?;
        return Ok(Exit::Done);
    }
    if nodes.items.is_empty() {
        output::note("No node drives a Docker engine.");
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["NAME", "STATE", "LABELS", "TAKEN", "FREE", "SEEN", "FAULT"]);
    for node in &nodes.items {
        let labels: Vec<String> = node.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        let state = match (node.is_lost, &node.fault) {
            (true, _) => "lost",
            (false, Some(_)) => "engine away",
            (false, None) => "there",
        };
        listing.row([
            cell(&node.name),
            cell(state),
            cell(labels.join(" ")),
            cell(node.slots_taken),
            cell(node.slots_free.map_or_else(|| "no bound".to_owned(), |free| free.to_string())),
            cell(relative(node.seen_at)),
            cell(node.fault.as_deref().unwrap_or_default()),
        ]);
    }
    listing.print()?;
    Ok(Exit::Done)
}
