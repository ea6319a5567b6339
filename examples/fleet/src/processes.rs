//! The processes of the example.

use client::wire::ProcessRequest;
use client::{Client, ClientError};
use serde_json::{Value, json};

pub const QUEUE: &str = "fleet";
pub const START_AGENT: &str = "start-agent";
pub const RECOVER: &str = "recover";
pub const INSTALL: &str = "install";

/// Declares the three processes. A machine without a heartbeat for `silence_s` is recovered.
pub async fn declare(client: &Client, silence_s: u64) -> anyhow::Result<()> {
    let silent = json!({"fact": "heartbeat", "older_than_s": silence_s});
    // The backoff doubles, so that a broken machine does not take capacity from the others.
    let backoff = json!({"initial_s": 1, "maximum_s": 60, "exponent": 2.0});
    let start_agent = json!({
        "selector": {"kind": "machine", "all": [{"fact": "state", "equals": "provided"}]},
        "queue": QUEUE, "kind": START_AGENT, "max_active": 8, "backoff": backoff,
    });
    let recover = json!({
        "selector": {"kind": "machine", "all": [silent], "not": [{"fact": "state", "equals": "provided"}]},
        "queue": QUEUE, "kind": RECOVER, "max_active": 4, "excludes": [INSTALL], "backoff": backoff,
    });
    let install = json!({
        "selector": {
            "kind": "machine",
            "all": [{"fact": "state", "equals": "started"}, {"fact": "heartbeat", "exists": true}],
            "not": [silent],
        },
        "queue": QUEUE, "kind": INSTALL, "max_active": 4, "backoff": backoff,
    });
    put(client, START_AGENT, start_agent).await?;
    put(client, RECOVER, recover).await?;
    put(client, INSTALL, install).await?;
    Ok(())
}

async fn put(client: &Client, name: &str, settings: Value) -> anyhow::Result<()> {
    let request: ProcessRequest = serde_json::from_str(&settings.to_string())?;
    client.set_process(name, &request).await.map(drop).map_err(|error: ClientError| error.into())
}
