//! JSON-RPC messages of MCP: the handshake, the list of tools and calls. Both transports use it.

use serde_json::{Value, json};

use super::tools::Tools;

/// Maximum size of one message.
pub(super) const MESSAGE_BYTES: usize = 4 << 20;
/// Supported versions of the protocol, newest first.
const VERSIONS: [&str; 3] = ["2025-11-25", "2025-06-18", "2025-03-26"];

const PARSE_ERROR: i64 = -32700;
const INVALID_REQUEST: i64 = -32600;
const METHOD_NOT_FOUND: i64 = -32601;
const INVALID_PARAMS: i64 = -32602;

const INSTRUCTIONS: &str = "Windlass is a durable job queue. Use `list` to find jobs, `show` and `why` for the state of one job, \
`signal` for its progress and ETA, and `failures` for groups of failures. A job is named by its id, by the first or last six digits \
of it, or by @last. The tools push, replay and cancel describe what they would do; with dry_run=false they do it, if the server \
was started with --allow-changes.";

/// Returns the response to a message; `None` for a notification.
pub(super) async fn respond(tools: &Tools, message: &[u8]) -> Option<Value> {
    let Ok(message) = serde_json::from_slice::<Value>(message) else {
        return Some(error(&Value::Null, PARSE_ERROR, "the message is not JSON"));
    };
    let Some(method) = message["method"].as_str() else {
        // A response to a request of the server, which sends none.
        let is_response = message.get("result").is_some() || message.get("error").is_some();
        return (!is_response).then(|| error(&message["id"], INVALID_REQUEST, "the message has no method"));
    };
    let id = message.get("id").filter(|id| !id.is_null())?;
    Some(match answer(tools, method, &message["params"]).await {
        Ok(result) => json!({"jsonrpc": "2.0", "id": id, "result": result}),
        Err((code, message)) => error(id, code, &message),
    })
}

fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}

async fn answer(tools: &Tools, method: &str, params: &Value) -> Result<Value, (i64, String)> {
    match method {
        "initialize" => Ok(json!({
            "protocolVersion": version(&params["protocolVersion"]),
            "capabilities": {"tools": {"listChanged": false}},
            "serverInfo": {"name": "windlass", "title": "Windlass", "version": env!("CARGO_PKG_VERSION")},
            "instructions": INSTRUCTIONS,
        })),
        "ping" => Ok(json!({})),
        "tools/list" => Ok(json!({"tools": tools.list()})),
        "tools/call" => {
            let name = params["name"].as_str().unwrap_or_default();
            let arguments = params.get("arguments").cloned().unwrap_or(json!({}));
            match tools.call(name, arguments).await {
                None => Err((INVALID_PARAMS, format!("there is no tool `{name}`"))),
                // A failed call is a result, so that the assistant sees the reason.
                Some(Ok(result)) => Ok(content(&result, false)),
                Some(Err(reason)) => Ok(content(&json!({"error": reason}), true)),
            }
        }
        _ => Err((METHOD_NOT_FOUND, format!("the method `{method}` is not supported"))),
    }
}

/// The client's version if it is supported, else the newest.
fn version(wanted: &Value) -> &'static str {
    VERSIONS.into_iter().find(|version| Some(*version) == wanted.as_str()).unwrap_or(VERSIONS[0])
}

fn content(result: &Value, is_error: bool) -> Value {
    let text = serde_json::to_string_pretty(result).unwrap_or_else(|_| result.to_string());
    json!({"content": [{"type": "text", "text": text}], "structuredContent": result, "isError": is_error})
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn sent(message: &str) -> Option<Value> {
        let client = client::Client::new("http://127.0.0.1:1").unwrap();
        respond(&Tools::new(client, false), message.as_bytes()).await
    }

    #[tokio::test]
    async fn the_handshake_agrees_on_a_version() {
        let asked = async |version: &str| {
            let message =
                json!({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": version}});
            sent(&message.to_string()).await.unwrap()["result"]["protocolVersion"].clone()
        };
        assert_eq!(asked("2025-06-18").await, "2025-06-18");
        assert_eq!(asked("2099-01-01").await, VERSIONS[0]);
    }

    #[tokio::test]
    async fn every_message_has_the_response_that_the_protocol_requires() {
        let code = async |message: &str| sent(message).await.map(|response| response["error"]["code"].clone());
        assert_eq!(code("{").await, Some(json!(PARSE_ERROR)));
        assert_eq!(code(r#"{"id": 1}"#).await, Some(json!(INVALID_REQUEST)));
        assert_eq!(code(r#"{"id": 1, "method": "server/discover"}"#).await, Some(json!(METHOD_NOT_FOUND)));
        assert_eq!(
            code(r#"{"id": 1, "method": "tools/call", "params": {"name": "drop"}}"#).await,
            Some(json!(INVALID_PARAMS))
        );
        assert_eq!(code(r#"{"method": "notifications/initialized"}"#).await, None);
        assert_eq!(code(r#"{"id": 1, "result": {}}"#).await, None, "a response");
        assert_eq!(sent(r#"{"id": 7, "method": "ping"}"#).await.unwrap()["result"], json!({}));
        let down =
            sent(r#"{"id": 1, "method": "tools/call", "params": {"name": "list", "arguments": {}}}"#).await.unwrap();
        assert_eq!(down["result"]["isError"], true, "{down}");
    }
}
