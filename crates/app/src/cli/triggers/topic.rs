//! `windlass topic`: publishes messages.

use clap::Subcommand;
use client::Client;

use crate::cli::exit::Exit;
use crate::cli::output;
use crate::cli::output::Output;

#[derive(Subcommand)]
pub(crate) enum TopicVerb {
    /// Publish a JSON message on a topic; fires matching triggers
    Publish {
        topic: String,
        /// Message: JSON, @FILE, or - for stdin
        #[arg(default_value = "null")]
        data: String,
    },
}

pub(crate) async fn run(client: &Client, verb: TopicVerb, format: Output) -> anyhow::Result<Exit> {
    let TopicVerb::Publish { topic, data } = verb;
    let accepted = client.publish(&topic, &crate::cli::queue::job::json_argument("the message", &data)?).await?;
    match format {
        Output::Json => output::json(&accepted)?,
        Output::Table => output::line(&accepted.event_id.to_string())?,
    }
    Ok(Exit::Done)
}
