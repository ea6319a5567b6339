//! `windlass mcp`: a server of the Model Context Protocol (MCP), with which an assistant works with jobs.
//!
//! Over stdio it acts with the token of the command line. Over HTTP it acts with the bearer token of each request and has
//! none of its own. Tools that change something describe the change; they make it only with `--allow-changes`.

mod http;
mod protocol;
mod tools;

use std::net::SocketAddr;

use anyhow::Context;
use clap::Args;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use super::Connection;
use super::exit::Exit;
use super::serve::listen;
use protocol::{MESSAGE_BYTES, respond};
use tools::Tools;

#[derive(Args)]
pub(crate) struct McpArgs {
    /// Allow the tools push, replay and cancel to change something
    #[arg(long)]
    allow_changes: bool,
    /// Serve over HTTP on this address, at the path /mcp, instead of stdin and stdout
    #[arg(long, value_name = "ADDR", value_parser = listen)]
    http: Option<SocketAddr>,
}

pub(crate) async fn run(connection: &Connection, args: McpArgs) -> anyhow::Result<Exit> {
    match args.http {
        Some(address) => http::serve(connection.clone(), address, args.allow_changes).await,
        None => stdio(&Tools::new(connection.client()?, args.allow_changes)).await,
    }
}

/// One JSON message per line. Ends with the end of stdin.
async fn stdio(tools: &Tools) -> anyhow::Result<Exit> {
    let mut input = BufReader::new(tokio::io::stdin());
    let mut output = tokio::io::stdout();
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut bounded = tokio::io::AsyncReadExt::take(&mut input, MESSAGE_BYTES as u64 + 1);
        if bounded.read_until(b'\n', &mut line).await.context("cannot read stdin")? == 0 {
            return Ok(Exit::Done);
        }
        if line.len() > MESSAGE_BYTES {
            anyhow::bail!("a message has more than {MESSAGE_BYTES} bytes");
        }
        if line.trim_ascii().is_empty() {
            continue;
        }
        if let Some(response) = respond(tools, &line).await {
            let mut text = response.to_string();
            text.push('\n');
            output.write_all(text.as_bytes()).await.context("cannot write to stdout")?;
            output.flush().await.context("cannot write to stdout")?;
        }
    }
}
