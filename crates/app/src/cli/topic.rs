//! `windlass topic`: publish on a topic (T1).

use clap::Subcommand;
use client::Client;

use super::exit::Exit;
use super::output::{self, Output};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Publish JSON on a topic; triggers that listen to it run.
    Publish {
        topic: String,
        /// JSON, from a file as @FILE, or from stdin as -.
        #[arg(default_value = "null")]
        data: String,
    },
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let Verb::Publish { topic, data } = verb;
    let accepted = client.publish(&topic, &super::job::json_argument("the message", &data)?).await?;
    match format {
        Output::Json => output::json(&accepted)?,
        Output::Table => output::line(&accepted.event_id.to_string())?,
    }
    Ok(Exit::Done)
}
