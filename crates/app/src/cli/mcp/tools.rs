//! The tools of the MCP server: what they accept, and the calls to the API that they make with the caller's token.

use client::{Client, ClientError, JobFilter, RunFilter};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use uuid::Uuid;
use wire::{JobRequest, RawValue, RetryRequest, Timestamp};

use crate::cli::id_argument::IdArgument;
use crate::cli::queue::job::bulk::{self, BulkAction};

/// Items that a listing returns at most.
const MAX_ITEMS: usize = 100;
const DEFAULT_ITEMS: usize = 20;
/// Jobs that one call of `cancel` or `replay` changes at most.
const MAX_CHANGES: usize = 500;

/// The tools of one caller.
pub(super) struct Tools {
    client: Client,
    allow_changes: bool,
}

/// A tool with the JSON schema of its arguments.
struct Tool {
    name: &'static str,
    title: &'static str,
    description: &'static str,
    arguments: fn() -> Value,
    required: &'static [&'static str],
    changes: bool,
}

const TOOLS: [Tool; 10] = [
    Tool {
        name: "list",
        title: "List jobs or queues",
        description: "List jobs, newest first, filtered by state, queue, kind, tag, run, subject or text. With \
            what=queues, list queues with their counts instead.",
        arguments: || {
            json!({
                "what": {"type": "string", "enum": ["jobs", "queues"]},
                "state": text("waiting, scheduled, queued, loading, working, succeeded, failed or canceled"),
                "queue": text("Name of the queue"),
                "kind": text("Kind of the jobs"),
                "tag": text("Tag of the jobs"),
                "run": text("Id of the run"),
                "subject": text("Id of the subject"),
                "text": text("Prefix of a kind, a tag, a unique key or an error code"),
                "since": text("Created at or after this time, RFC 3339"),
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS},
                "cursor": text("next_cursor of the previous page"),
            })
        },
        required: &[],
        changes: false,
    },
    Tool {
        name: "show",
        title: "Show a job",
        description: "Show a job with its payload, result, error, attempts and signal.",
        arguments: job_argument,
        required: &["job"],
        changes: false,
    },
    Tool {
        name: "why",
        title: "Why a job is not running",
        description: "Show the reason why a job is not running, until when, and its position.",
        arguments: job_argument,
        required: &["job"],
        changes: false,
    },
    Tool {
        name: "signal",
        title: "Progress and ETA of a job",
        description: "Show the signal of a job: phase, progress, ETA and predicted failure.",
        arguments: job_argument,
        required: &["job"],
        changes: false,
    },
    Tool {
        name: "history",
        title: "History of a job",
        description: "Show the events of a job, oldest first.",
        arguments: job_argument,
        required: &["job"],
        changes: false,
    },
    Tool {
        name: "failures",
        title: "Failure groups",
        description: "List groups of similar failures, most recently seen first, with count, trend and example.",
        arguments: || json!({"limit": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS}}),
        required: &[],
        changes: false,
    },
    Tool {
        name: "runs",
        title: "Runs of jobs",
        description: "List runs (groups of jobs with dependencies), newest first, or show one with its nodes.",
        arguments: || {
            json!({
                "run": text("Id of a run to show"),
                "state": text("running, succeeded, failed or canceled"),
                "name": text("Name of the runs"),
                "limit": {"type": "integer", "minimum": 1, "maximum": MAX_ITEMS},
            })
        },
        required: &[],
        changes: false,
    },
    Tool {
        name: "push",
        title: "Enqueue a job",
        description: "Enqueue a job. With dry_run (default: true) only estimate when it would end.",
        arguments: || {
            json!({
                "queue": text("Queue of the job"),
                "kind": text("Kind of the job"),
                "payload": {"description": "Payload, any JSON"},
                "priority": {"type": "integer"},
                "run_at": text("Earliest start, RFC 3339"),
                "unique_key": text("Do not enqueue another unfinished job with this key"),
                "tags": {"type": "array", "items": {"type": "string"}},
                "idempotency_key": text("Repeated calls with this key enqueue one job"),
                "dry_run": dry_run(),
            })
        },
        required: &["queue", "kind"],
        changes: true,
    },
    Tool {
        name: "replay",
        title: "Retry ended jobs",
        description: "Enqueue ended jobs again: one job, or all that match `where`. With dry_run (default: true) only \
            list them.",
        arguments: many_argument,
        required: &[],
        changes: true,
    },
    Tool {
        name: "cancel",
        title: "Cancel jobs",
        description: "Cancel unfinished jobs: one job, or all that match `where`. With dry_run (default: true) only list \
            them.",
        arguments: many_argument,
        required: &[],
        changes: true,
    },
];

fn text(description: &str) -> Value {
    json!({"type": "string", "description": description})
}

fn dry_run() -> Value {
    json!({"type": "boolean", "default": true, "description": "Describe the change without making it"})
}

fn job_argument() -> Value {
    json!({"job": text("Id of the job, its first or last six digits, or @last")})
}

fn many_argument() -> Value {
    json!({
        "job": text("Id of the job, its first or last six digits, or @last"),
        "where": {"type": "array", "items": {"type": "string"}, "minItems": 1, "description":
            "FIELD=VALUE with state, queue, kind, affinity, subject, run, tag, text, since or until"},
        "dry_run": dry_run(),
    })
}

/// A failed call, in words for the assistant.
type Called = Result<Value, String>;

impl Tools {
    pub(super) fn new(client: Client, allow_changes: bool) -> Self {
        Self { client, allow_changes }
    }

    /// The tools with their schemas, as `tools/list` returns them.
    pub(super) fn list(&self) -> Vec<Value> {
        let described = |tool: &Tool| {
            json!({
                "name": tool.name, "title": tool.title, "description": tool.description,
                "inputSchema": {"type": "object", "properties": (tool.arguments)(), "required": tool.required,
                                "additionalProperties": false},
                "annotations": {"readOnlyHint": !(tool.changes && self.allow_changes),
                                "destructiveHint": tool.name == "cancel", "openWorldHint": false},
            })
        };
        TOOLS.iter().map(described).collect()
    }

    /// Calls a tool; `None` if there is none with this name.
    pub(super) async fn call(&self, name: &str, arguments: Value) -> Option<Called> {
        let tool = TOOLS.iter().find(|tool| tool.name == name)?;
        Some(self.checked(tool, arguments).await)
    }

    async fn checked(&self, tool: &Tool, arguments: Value) -> Called {
        let Value::Object(arguments) = arguments else { return Err("the arguments must be an object".into()) };
        let known = (tool.arguments)();
        if let Some(unknown) = arguments.keys().find(|name| known.get(name.as_str()).is_none()) {
            return Err(format!("the tool {} has no argument `{unknown}`", tool.name));
        }
        if let Some(missing) = tool.required.iter().find(|name| !arguments.contains_key(**name)) {
            return Err(format!("the argument `{missing}` is required"));
        }
        let is_dry_run = match arguments.get("dry_run") {
            None => true,
            Some(Value::Bool(value)) => *value,
            Some(_) => return Err("dry_run must be true or false".into()),
        };
        if tool.changes && !is_dry_run && !self.allow_changes {
            return Err("this server makes no changes; start `windlass mcp` with --allow-changes, or call with \
                 dry_run=true"
                .into());
        }
        let arguments = Arguments(arguments);
        match tool.name {
            "list" => self.jobs_or_queues(&arguments).await,
            "show" => {
                let id = self.job(&arguments).await?;
                let job = self.client.job(id).await.map_err(reason)?;
                let signal = self.client.signal(id).await.map_err(reason)?;
                Ok(json!({"job": value(&job)?, "signal": value(&signal)?}))
            }
            "why" => value(&self.client.why(self.job(&arguments).await?).await.map_err(reason)?),
            "signal" => {
                let signal = self.client.signal(self.job(&arguments).await?).await.map_err(reason)?;
                Ok(json!({"signal": value(&signal)?}))
            }
            "history" => value(&self.client.history(self.job(&arguments).await?).await.map_err(reason)?),
            "failures" => {
                let mut page = self.client.failures(None).await.map_err(reason)?;
                page.items.truncate(arguments.limit()?);
                value(&page)
            }
            "runs" => self.runs(&arguments).await,
            "push" => self.push(arguments, is_dry_run).await,
            "replay" => self.change(BulkAction::Retry, &arguments, is_dry_run).await,
            "cancel" => self.change(BulkAction::Cancel, &arguments, is_dry_run).await,
            other => Err(format!("the tool {other} is not implemented")),
        }
    }

    async fn job(&self, arguments: &Arguments) -> Result<Uuid, String> {
        let text = arguments.text("job")?.ok_or("the argument `job` is required")?;
        let id: IdArgument = text.parse().map_err(|error| format!("job: {error}"))?;
        id.job(&self.client).await.map_err(|error| format!("{error:#}"))
    }

    async fn jobs_or_queues(&self, arguments: &Arguments) -> Called {
        let cursor = arguments.text("cursor")?;
        match arguments.text("what")?.as_deref() {
            None | Some("jobs") => {}
            Some("queues") => return value(&self.client.queues(cursor.as_deref()).await.map_err(reason)?),
            Some(other) => return Err(format!("what must be jobs or queues, not `{other}`")),
        }
        let filter = JobFilter {
            state: arguments.text("state")?,
            queue: arguments.text("queue")?,
            kind: arguments.text("kind")?,
            tag: arguments.text("tag")?,
            run: arguments.text("run")?,
            subject: arguments.text("subject")?,
            text: arguments.text("text")?,
            since: arguments.time("since")?,
            limit: Some(arguments.limit()?),
            cursor,
            ..JobFilter::default()
        };
        value(&self.client.jobs(&filter).await.map_err(reason)?)
    }

    async fn runs(&self, arguments: &Arguments) -> Called {
        if let Some(run) = arguments.text("run")? {
            return value(&self.client.run(&run).await.map_err(reason)?);
        }
        let filter = RunFilter {
            state: arguments.text("state")?,
            name: arguments.text("name")?,
            limit: Some(arguments.limit()?),
            ..RunFilter::default()
        };
        value(&self.client.runs(&filter).await.map_err(reason)?)
    }

    async fn push(&self, arguments: Arguments, is_dry_run: bool) -> Called {
        let key = arguments.text("idempotency_key")?;
        let mut job = arguments.0;
        job.retain(|name, _| !matches!(name.as_str(), "idempotency_key" | "dry_run"));
        let request: JobRequest = parsed(&Value::Object(job))?;
        if is_dry_run {
            let estimate = self.client.estimate(&request).await.map_err(reason)?;
            return Ok(json!({"dry_run": true, "would": "enqueue one job", "estimate": value(&estimate)?}));
        }
        let accepted = match key {
            Some(key) => self.client.enqueue_idempotent(&key, &request).await,
            None => self.client.enqueue(&request).await,
        };
        value(&accepted.map_err(reason)?)
    }

    async fn change(&self, action: BulkAction, arguments: &Arguments, is_dry_run: bool) -> Called {
        let ids = match (arguments.0.get("job"), arguments.0.get("where")) {
            (Some(_), None) => vec![self.job(arguments).await?],
            (None, Some(matching)) => {
                let matching: Vec<String> = parsed(matching).map_err(|error| format!("where: {error}"))?;
                if matching.is_empty() {
                    return Err("`where` must have at least one FIELD=VALUE".into());
                }
                let filters = bulk::parse(action, &matching).map_err(|error| error.to_string())?;
                let (jobs, _) = bulk::find(&self.client, filters).await.map_err(reason)?;
                jobs.into_iter().map(|job| job.id).collect()
            }
            _ => return Err("name one `job`, or the jobs by `where`".into()),
        };
        if ids.len() > MAX_CHANGES {
            let (count, limit) = (ids.len(), MAX_CHANGES);
            return Err(format!(
                "{count} jobs match, and one call changes at most {limit}; make `where` more specific"
            ));
        }
        if is_dry_run {
            return Ok(json!({"dry_run": true, "matched": ids.len(), "jobs": ids}));
        }
        let (mut changed, mut unchanged) = (Vec::new(), Vec::new());
        for id in ids {
            let result = match action {
                BulkAction::Cancel => self.client.cancel(id).await.map(|canceled| canceled.id),
                BulkAction::Retry => self.client.retry(id, &RetryRequest::default()).await.map(|accepted| accepted.id),
            };
            match result {
                Ok(id) => changed.push(id),
                Err(error) => unchanged.push(json!({"job": id, "reason": reason(error)})),
            }
        }
        Ok(json!({action.past_tense(): changed, "unchanged": unchanged}))
    }
}

/// The arguments of a call. Their names have been checked.
struct Arguments(Map<String, Value>);

impl Arguments {
    fn text(&self, name: &str) -> Result<Option<String>, String> {
        match self.0.get(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.clone())),
            Some(_) => Err(format!("{name} must be a text")),
        }
    }

    fn time(&self, name: &str) -> Result<Option<Timestamp>, String> {
        let wrong = |_| format!("{name} must be a time like 2026-01-31T12:00:00Z");
        self.text(name)?.map(|text| text.parse().map_err(wrong)).transpose()
    }

    fn limit(&self) -> Result<usize, String> {
        match self.0.get("limit") {
            None | Some(Value::Null) => Ok(DEFAULT_ITEMS),
            Some(value) => match value.as_u64() {
                Some(limit) if (1..=MAX_ITEMS as u64).contains(&limit) => Ok(limit as usize),
                _ => Err(format!("limit must be from 1 to {MAX_ITEMS}")),
            },
        }
    }
}

fn value(object: &impl Serialize) -> Called {
    // Through text: payloads are raw JSON.
    let text = serde_json::to_string(object).map_err(|error| error.to_string())?;
    serde_json::from_str(&text).map_err(|error| error.to_string())
}

fn parsed<T: DeserializeOwned>(value: &Value) -> Result<T, String> {
    let raw = RawValue::from_string(value.to_string()).map_err(|error| error.to_string())?;
    serde_json::from_str(raw.get()).map_err(|error| error.to_string())
}

fn reason(error: ClientError) -> String {
    let code = error.code().map(|code| format!(" ({code})")).unwrap_or_default();
    format!("{:#}{code}", anyhow::Error::from(error))
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(allow_changes: bool, name: &str, arguments: Value) -> String {
        let tools = Tools::new(Client::new("http://127.0.0.1:1").unwrap(), allow_changes);
        tools.call(name, arguments).await.unwrap().unwrap_err()
    }

    #[tokio::test]
    async fn a_change_needs_the_flag_of_the_server_and_of_the_call() {
        for (name, arguments) in [
            ("push", json!({"queue": "q", "kind": "k", "dry_run": false})),
            ("cancel", json!({"where": ["queue=q"], "dry_run": false})),
            ("replay", json!({"where": ["queue=q"], "dry_run": false})),
        ] {
            let error = refused(false, name, arguments.clone()).await;
            assert!(error.contains("--allow-changes"), "{error}");
            let error = refused(true, name, arguments).await;
            assert!(error.contains("cannot reach"), "the server is asked: {error}");
        }
    }

    #[tokio::test]
    async fn invalid_arguments_are_named() {
        for (name, arguments, part) in [
            ("show", json!({}), "`job` is required"),
            ("show", json!({"job": "12"}), "6 or more"),
            ("list", json!({"colour": "red"}), "no argument `colour`"),
            ("list", json!({"limit": 0}), "from 1 to 100"),
            ("list", json!({"what": "cars"}), "`cars`"),
            ("list", json!({"since": "soon"}), "since must be a time"),
            ("cancel", json!({}), "`where`"),
            ("cancel", json!({"where": []}), "at least one"),
            ("cancel", json!({"where": ["state=failed"]}), "cannot be canceled"),
            ("cancel", json!({"where": ["queue=q"], "dry_run": "no"}), "dry_run must be"),
            ("push", json!({"queue": "q", "kind": 7}), "invalid type"),
            ("list", json!(7), "must be an object"),
        ] {
            let error = refused(true, name, arguments.clone()).await;
            assert!(error.contains(part), "{name} {arguments}: {error}");
        }
    }

    #[test]
    fn every_tool_has_a_schema_and_says_whether_it_changes_something() {
        let tools = |allow| Tools::new(Client::new("http://127.0.0.1:1").unwrap(), allow).list();
        let changing = |allow| {
            let all = tools(allow).into_iter().filter(|tool| tool["annotations"]["readOnlyHint"] == false);
            all.map(|tool| tool["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(changing(true), ["push", "replay", "cancel"]);
        assert!(changing(false).is_empty());
        assert!(tools(true).iter().all(|tool| tool["inputSchema"]["type"] == "object"));
    }
}
