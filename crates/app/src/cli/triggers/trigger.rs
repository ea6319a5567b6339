//! `windlass trigger`: manages triggers.

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use client::{Client, ClientError};
use serde_json::json;
use uuid::Uuid;
use wire::{FireRequest, RawValue, TriggerRequest, TriggerRetry, TriggerView};

use crate::cli::exit::{Exit, NotFound, UsageError};
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Output, cell, moment, relative_maybe};
use crate::cli::queue::job::json_argument;

#[derive(Subcommand)]
pub(crate) enum TriggerVerb {
    /// List triggers with their figures
    List,
    /// Show a trigger, by name or id
    Show { trigger: String },
    /// Create a trigger
    Create(Box<TriggerCreateArgs>),
    /// Create or change a trigger; settings that are not given keep their values
    Set(Box<TriggerSetArgs>),
    /// Enable a trigger
    Enable { trigger: String },
    /// Disable a trigger; events that it has already matched wait until it is enabled
    Disable { trigger: String },
    /// Fire a trigger manually, regardless of its filter
    Fire {
        trigger: String,
        /// Data of the event: JSON, @FILE, or - for stdin
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
    },
    /// Dry run: show whether an event matches and what it would start
    Test {
        trigger: String,
        /// Data of the event: JSON, @FILE, or - for stdin
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
        /// Operation of the event: set, delete, publish, succeeded and so on
        #[arg(long)]
        op: Option<String>,
        /// Attribute that filters test: NAME=VALUE with collection, key, topic, queue, kind and so on; may be repeated
        #[arg(long = "attribute", value_name = "NAME=VALUE")]
        attributes: Vec<String>,
    },
    /// Show recent runs of the trigger's script with their logs
    Runs {
        trigger: String,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Delete a trigger and discard its pending runs
    Delete { trigger: String },
}

const FILTERS: &str = r#"Filters, by source. Members that are left out match anything, and a text may end in `*`. Every
source except `cron` also accepts `when`, an expression over `event` and `data` that must be true:
  kv           {"collection": "users", "key": "a*", "ops": ["set", "delete"]}
  cron         {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "missed": "coalesce"}
               The default time zone is UTC. Missed due times are skipped (skip, the default), fired once (coalesce) or
               fired individually (catch_up).
  pubsub       {"topic": "orders:*"}
               A CloudEvent sent to /api/v1/events is published on the topic named by its type.
  http         {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
               `trigger show` prints the address of the hook. With a secret, callers must sign their requests.
  email        {"to": "orders@example.com"}
  job          {"queue": "mail", "kind": "welcome", "states": ["failed", "canceled"]}
  queue        {"queue": "gpu", "ops": ["paused", "resumed", "changed", "drained"]}
               Without `ops`, the target processes the jobs of that queue.
  runtime      {"name": "llama", "health": "exited"} or {"name": "llama", "operations": ["stop"]}
  run          {"name": "report", "states": ["failed"]}
  dead_letter  {"source": "job"}"#;

#[derive(Args)]
#[command(after_help = FILTERS)]
pub(crate) struct TriggerCreateArgs {
    name: String,
    /// Source: kv, cron, pubsub, queue, http, email, job, runtime, run or dead_letter
    #[arg(long)]
    source: String,
    /// Filter as JSON; see below
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Action as JSON: {"job": {"queue": "mail", "kind": "welcome"}}, {"http": {"url": …}} or {"runtime": {"name":
    /// "llama", "operation": "restart"}}
    #[arg(long, value_name = "JSON", required_unless_present = "script")]
    target: Option<String>,
    /// Script to run instead, in Rhai: a file, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    script: Option<String>,
    /// async, or sync: the request that causes the event waits for the run, which is attempted once [default: async]
    #[arg(long)]
    mode: Option<String>,
    /// Retry policy of failed runs, as JSON: {"max_attempts": 5, "initial_s": 10}
    #[arg(long, value_name = "JSON")]
    retry: Option<String>,
    /// Create the trigger as disabled
    #[arg(long)]
    disabled: bool,
    /// For dead_letter triggers: a successful run resolves the dead letter
    #[arg(long)]
    handles: bool,
}

#[derive(Args)]
#[command(after_help = FILTERS)]
pub(crate) struct TriggerSetArgs {
    /// Name of the trigger
    name: String,
    /// Source; required for a new trigger: kv, cron, pubsub, queue, http, email, job, runtime, run or dead_letter
    #[arg(long)]
    source: Option<String>,
    /// Filter as JSON; see below
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// Action as JSON; a new trigger needs a target or a script
    #[arg(long, value_name = "JSON")]
    target: Option<String>,
    /// Script to run instead, in Rhai: a file, or - for stdin
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    script: Option<String>,
    /// async or sync [default: async]
    #[arg(long)]
    mode: Option<String>,
    /// Members of the retry policy to change, as JSON: {"max_attempts": 5, "initial_s": 10}
    #[arg(long, value_name = "JSON")]
    retry: Option<String>,
    /// Enable or disable the trigger [default: true]
    #[arg(long, value_name = "BOOL")]
    enabled: Option<bool>,
    /// For dead_letter triggers: a successful run resolves the dead letter [default: false]
    #[arg(long, value_name = "BOOL")]
    handles: Option<bool>,
}

impl TriggerSetArgs {
    /// Returns the trigger with the given flags applied. A new trigger has none before.
    fn apply(&self, before: Option<TriggerRequest>) -> anyhow::Result<TriggerRequest> {
        let filter = self.filter.as_deref().map(|text| json_argument("--filter", text)).transpose()?;
        let given = match (&self.target, &self.script) {
            (None, None) => None,
            (target, script) => Some(target_of(target.as_deref(), script.as_deref())?),
        };
        let retry = self.retry.as_deref().map(retry).transpose()?;
        let needed = |name: &str| UsageError(format!("a new trigger needs {name}"));
        let mut request = match before {
            Some(before) => before,
            None => TriggerRequest {
                name: self.name.clone(),
                source: self.source.clone().ok_or_else(|| needed("--source"))?,
                filter: None,
                target: given.clone().ok_or_else(|| needed("--target or --script"))?,
                mode: None,
                retry: None,
                enabled: None,
                handles: None,
            },
        };
        request.source = self.source.clone().unwrap_or(request.source);
        request.filter = filter.or(request.filter);
        request.target = given.unwrap_or(request.target);
        request.mode = self.mode.clone().or(request.mode);
        request.enabled = self.enabled.or(request.enabled);
        request.handles = self.handles.or(request.handles);
        if let Some(given) = retry {
            let before = request.retry.unwrap_or_default();
            request.retry = Some(TriggerRetry {
                max_attempts: given.max_attempts.or(before.max_attempts),
                initial_s: given.initial_s.or(before.initial_s),
                maximum_s: given.maximum_s.or(before.maximum_s),
                exponent: given.exponent.or(before.exponent),
                jitter: given.jitter.or(before.jitter),
            });
        }
        Ok(request)
    }
}

fn retry(text: &str) -> Result<TriggerRetry, UsageError> {
    serde_json::from_str(text).map_err(|error| UsageError(format!("invalid --retry: {error}")))
}

pub(crate) async fn run(client: &Client, verb: TriggerVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        TriggerVerb::List => list(client, format).await,
        TriggerVerb::Show { trigger } => show(&find(client, &trigger).await?, format),
        TriggerVerb::Create(args) => {
            let args = *args;
            let retry = args.retry.as_deref().map(retry).transpose()?;
            let request = TriggerRequest {
                name: args.name,
                source: args.source,
                filter: args.filter.as_deref().map(|text| json_argument("--filter", text)).transpose()?,
                target: target_of(args.target.as_deref(), args.script.as_deref())?,
                mode: args.mode,
                retry,
                enabled: Some(!args.disabled),
                handles: args.handles.then_some(true),
            };
            show(&client.create_trigger(&request).await?, format)
        }
        TriggerVerb::Set(args) => {
            let before = by_name(client, &args.name).await?;
            let id = before.as_ref().map(|before| before.id);
            let request = args.apply(before.as_ref().map(declared).transpose()?)?;
            let trigger = match id {
                Some(id) => client.replace_trigger(id, &request).await?,
                None => client.create_trigger(&request).await?,
            };
            show(&trigger, format)
        }
        TriggerVerb::Enable { trigger } => switch(client, &trigger, Some(true), format).await,
        TriggerVerb::Disable { trigger } => switch(client, &trigger, Some(false), format).await,
        TriggerVerb::Fire { trigger, data } => {
            let id = find(client, &trigger).await?.id;
            let data = data.as_deref().map(|text| json_argument("--data", text)).transpose()?;
            let fired = client.fire_trigger(id, &FireRequest { data, ..FireRequest::default() }).await?;
            match (format, fired.event_id) {
                (Output::Json, _) => output::json(&fired)?,
                (Output::Table, Some(event)) => output::line(&event.to_string())?,
                (Output::Table, None) => {}
            }
            Ok(Exit::Done)
        }
        TriggerVerb::Test { trigger, data, op, attributes } => {
            let id = find(client, &trigger).await?.id;
            let data = data.as_deref().map(|text| json_argument("--data", text)).transpose()?;
            let attributes = if attributes.is_empty() { None } else { Some(pairs(&attributes)?) };
            test(client, id, FireRequest { data, op, attributes, dry_run: Some(true) }, format).await
        }
        TriggerVerb::Runs { trigger, cursor } => {
            runs(client, find(client, &trigger).await?.id, cursor.as_deref(), format).await
        }
        TriggerVerb::Delete { trigger } => {
            let TriggerView { id, name, .. } = find(client, &trigger).await?;
            client.delete_trigger(id).await?;
            let deleted = json!({"id": id, "name": name, "deleted": true});
            output::done(format, &format!("Deleted trigger {name}."), &deleted)?;
            Ok(Exit::Done)
        }
    }
}

fn target_of(target: Option<&str>, script: Option<&str>) -> anyhow::Result<Box<RawValue>> {
    let Some(file) = script else { return json_argument("--target", target.unwrap_or_default()) };
    let source = match file {
        "-" => std::io::read_to_string(std::io::stdin()),
        file => std::fs::read_to_string(file),
    };
    let source = source.map_err(|error| UsageError(format!("cannot read --script {file}: {error}")))?;
    Ok(serde_json::value::to_raw_value(&json!({"script": source}))?)
}

async fn runs(client: &Client, id: Uuid, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.trigger_runs(id, cursor).await?;
    let empty_message = "No runs. Only runs of scripts and of synchronous triggers are listed.";
    list::print(format, &page, empty_message, ["WHEN", "OUTCOME", "ATTEMPT", "DURATION", "EVENT", "OUTPUT"], |run| {
        let error = run.error.iter().map(|error| format!("{}: {}", error.code, error.message));
        let output: Vec<String> = run.log.iter().cloned().chain(error).collect();
        [
            cell(moment(run.at)),
            output::state(&run.outcome),
            cell(run.attempt),
            cell(run.duration_ms.map_or_else(String::new, |ms| format!("{ms} ms"))),
            cell(run.event_id),
            cell(output.join("\n")),
        ]
    })?;
    if let (Output::Table, Some(cursor)) = (format, &page.next_cursor) {
        output::note(&format!("More results: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

fn pairs(texts: &[String]) -> Result<BTreeMap<String, String>, UsageError> {
    let pair = |text: &String| {
        let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| UsageError(format!("--attribute must be NAME=VALUE, not `{text}`")))
    };
    texts.iter().map(pair).collect()
}

/// Finds a trigger by id or by name.
async fn find(client: &Client, wanted: &str) -> anyhow::Result<TriggerView> {
    if let Ok(id) = wanted.parse::<Uuid>() {
        return Ok(client.trigger(id).await?);
    }
    if let Some(found) = by_name(client, wanted).await? {
        return Ok(found);
    }
    if let Ok(id) = wanted.parse::<IdArgument>() {
        let described = |trigger: &TriggerView| (trigger.id, trigger.name.clone());
        let id = id.search_newest("trigger", async |cursor| client.triggers(cursor).await, described).await?;
        return Ok(client.trigger(id).await?);
    }
    Err(NotFound(format!("no trigger named `{wanted}`")).into())
}

pub(crate) async fn by_name(client: &Client, wanted: &str) -> Result<Option<TriggerView>, ClientError> {
    let mut cursor = None;
    loop {
        let page = client.triggers(cursor.as_deref()).await?;
        if let Some(found) = page.items.into_iter().find(|trigger| trigger.name == wanted) {
            return Ok(Some(found));
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Ok(None);
        }
    }
}

/// The request that would declare the trigger as it is.
pub(crate) fn declared(trigger: &TriggerView) -> anyhow::Result<TriggerRequest> {
    Ok(TriggerRequest {
        name: trigger.name.clone(),
        source: trigger.source.clone(),
        filter: Some(RawValue::from_string(trigger.filter.get().to_owned())?),
        target: RawValue::from_string(trigger.target.get().to_owned())?,
        mode: Some(trigger.mode.clone()),
        retry: Some(trigger.retry),
        enabled: Some(trigger.enabled),
        handles: Some(trigger.handles).filter(|handles| *handles),
    })
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.triggers(cursor).await).await?;
    list::print(
        format,
        &page,
        "No triggers.",
        ["NAME", "STATE", "SOURCE", "FIRED", "FAILED", "LOOPS", "LAST", "FILTER"],
        |trigger| {
            [
                cell(&trigger.name),
                state(trigger),
                cell(&trigger.source),
                cell(trigger.fired),
                cell(trigger.failed),
                cell(trigger.loops_stopped),
                cell(relative_maybe(trigger.last_fired_at)),
                cell(trigger.filter.get()),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn state(trigger: &TriggerView) -> comfy_table::Cell {
    output::state(if trigger.enabled { "active" } else { "paused" })
}

fn show(trigger: &TriggerView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(trigger)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("trigger", &trigger.name)
        .text("id", trigger.id)
        .add("state", state(trigger))
        .text("source", &trigger.source)
        .text("filter", trigger.filter.get())
        .text("target", crate::cli::queue::job::pretty(trigger.target.get()))
        .maybe("hook", trigger.hook.as_ref())
        .text("registered by", &trigger.principal)
        .text("fired", trigger.fired)
        .text("failed", trigger.failed)
        .text("loops stopped", trigger.loops_stopped)
        .text("missed", trigger.missed)
        .maybe("last fired", trigger.last_fired_at.map(moment))
        .maybe("last error", trigger.last_error.as_ref());
    for next in &trigger.next_fires {
        details.text("next", moment(*next));
    }
    details.print()?;
    Ok(Exit::Done)
}

// The route replaces the whole trigger, so send everything else unchanged.
async fn switch(client: &Client, wanted: &str, enabled: Option<bool>, format: Output) -> anyhow::Result<Exit> {
    let trigger = find(client, wanted).await?;
    let request = TriggerRequest { enabled, ..declared(&trigger)? };
    show(&client.replace_trigger(trigger.id, &request).await?, format)
}

async fn test(client: &Client, id: Uuid, request: FireRequest, format: Output) -> anyhow::Result<Exit> {
    let fired = client.fire_trigger(id, &request).await?;
    let Some(run) = fired.dry_run else { return Ok(Exit::Done) };
    if format == Output::Json {
        output::json(&run)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("matches", if run.matches { "yes" } else { "no" })
        .maybe("reason", run.reason.as_ref())
        .maybe("queue", run.queue.as_ref())
        .maybe("kind", run.kind.as_ref())
        .maybe("url", run.url.as_ref())
        .maybe("payload", run.payload.as_ref().map(|payload| crate::cli::queue::job::pretty(payload.get())));
    for effect in &run.effects {
        details.text("would", effect);
    }
    for line in &run.log {
        details.text("log", line);
    }
    details.print()?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use domain::TriggerId;
    use domain::triggers::trigger::Source;
    use serde_json::Value;
    use store::triggers::filter;

    use super::*;
    use crate::cli::tests::parse_args;

    #[test]
    fn settings_of_a_trigger_that_are_not_given_keep_their_values() {
        let args = |flags: &[&str]| parse_args::<TriggerSetArgs>(&[&["nightly"], flags].concat());
        let new = [
            "--source",
            "cron",
            "--filter",
            r#"{"schedule": "0 2 * * *"}"#,
            "--target",
            r#"{"job": {"queue": "q", "kind": "k"}}"#,
        ];
        let before = args(&new).apply(None).unwrap();
        assert_eq!(before.source, "cron");
        let before =
            TriggerRequest { retry: Some(TriggerRetry { initial_s: Some(9), ..TriggerRetry::default() }), ..before };
        let filter = before.filter.clone();
        let after = args(&["--retry", r#"{"jitter": 0.5}"#, "--enabled", "false"]).apply(Some(before)).unwrap();
        assert_eq!(after.filter.unwrap().get(), filter.unwrap().get());
        assert_eq!(
            after.retry,
            Some(TriggerRetry { initial_s: Some(9), jitter: Some(0.5), ..TriggerRetry::default() })
        );
        assert_eq!(after.enabled, Some(false));
        let error = args(&["--source", "cron"]).apply(None).unwrap_err();
        assert!(error.is::<UsageError>() && error.to_string().contains("--target or --script"), "{error}");
    }

    /// Requirement T2.
    #[test]
    fn the_help_shows_a_valid_filter_for_each_source() {
        for source in Source::ALL {
            let line = FILTERS.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{source} ")));
            let shown = line.unwrap_or_else(|| panic!("no filter of {source} in the help"));
            for shown in shown.split(" or ") {
                let shown: Value = serde_json::from_str(shown).unwrap();
                let read = filter::read(source, TriggerId::new(Uuid::nil()), &shown.to_string());
                assert!(read.is_ok(), "{source}: {shown}");
            }
        }
    }
}
