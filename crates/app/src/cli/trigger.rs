//! `windlass trigger`: when this happens, start that (T2, T10).

use std::collections::BTreeMap;

use clap::{Args, Subcommand};
use client::Client;
use serde_json::json;
use uuid::Uuid;
use wire::{FireRequest, RawValue, TriggerRequest, TriggerView};

use super::exit::{Exit, NotFound, UsageError};
use super::job::json_argument;
use super::list;
use super::output::{self, Details, Output, cell, moment, relative_maybe};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List triggers with their figures.
    List,
    /// Show one trigger, by name or id.
    Show { trigger: String },
    /// Register a trigger.
    Create(Box<CreateArgs>),
    /// Let it run again.
    Enable { trigger: String },
    /// Stop it; what it has matched already waits until it is enabled.
    Disable { trigger: String },
    /// Start it by hand, whatever its filter says.
    Fire {
        trigger: String,
        /// What the event carries, as JSON, from a file as @FILE, or from stdin as -.
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
    },
    /// Show whether an event would match and what it would start; nothing is started.
    Test {
        trigger: String,
        /// What the event carries, as JSON, from a file as @FILE, or from stdin as -.
        #[arg(long, value_name = "JSON")]
        data: Option<String>,
        /// The event's operation: set, delete, publish, succeeded and so on.
        #[arg(long)]
        op: Option<String>,
        /// What filters look at: NAME=VALUE with collection, key, topic, queue, kind and so on.
        #[arg(long = "attribute", value_name = "NAME=VALUE")]
        attributes: Vec<String>,
    },
    /// Show how its script ran lately, with what it logged.
    Runs {
        trigger: String,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Take it away, with what it had still to start.
    Delete { trigger: String },
}

const FILTERS: &str = r#"Filters, by source. What is left out may be anything, and a text may end in `*`. All but that of
`cron` take `when`, an expression over `event` and `data` that must be true:
  kv           {"collection": "users", "key": "a*", "ops": ["set", "delete"]}
  cron         {"schedule": "30 2 * * *", "timezone": "Europe/Berlin", "missed": "coalesce"}
               The zone is UTC unless given. Missed slots are lost (skip, unless given), fired as one (coalesce) or each
               (catch_up).
  pubsub       {"topic": "orders:*"}
               A CloudEvent sent to /api/v1/events is heard on the topic of its type.
  http         {"secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
               `trigger show` tells the address of the hook; with a secret its callers must sign.
  email        {"to": "orders@example.com"}
  job          {"queue": "mail", "kind": "welcome", "states": ["failed", "canceled"]}
  queue        {"queue": "gpu", "ops": ["paused", "resumed", "changed", "drained"]}
               Without `ops` the target works the jobs of that queue.
  runtime      {"name": "llama", "health": "exited"} or {"name": "llama", "operations": ["stop"]}
  dead_letter  {"source": "job"}"#;

#[derive(Args)]
#[command(after_help = FILTERS)]
pub(crate) struct CreateArgs {
    name: String,
    /// kv, cron, pubsub, queue, http, email, job, runtime or dead_letter.
    #[arg(long)]
    source: String,
    /// What of the source, as JSON; see below.
    #[arg(long, value_name = "JSON")]
    filter: Option<String>,
    /// What to start, as JSON: {"job": {"queue": "mail", "kind": "welcome"}}, {"http": {"url": …}} or {"runtime": {"name":
    /// "llama", "operation": "restart"}}.
    #[arg(long, value_name = "JSON", required_unless_present = "script")]
    target: Option<String>,
    /// A script to run instead, in Rhai: a file, or - for stdin.
    #[arg(long, value_name = "FILE", conflicts_with = "target")]
    script: Option<String>,
    /// async, or sync: whoever causes the event waits for the run, which is tried once.
    #[arg(long)]
    mode: Option<String>,
    /// How failed runs are tried again, as JSON: {"max_attempts": 5, "initial_s": 10}.
    #[arg(long, value_name = "JSON")]
    retry: Option<String>,
    /// Register it without letting it run.
    #[arg(long)]
    disabled: bool,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List => list(client, format).await,
        Verb::Show { trigger } => show(&find(client, &trigger).await?, format),
        Verb::Create(args) => {
            let args = *args;
            let retry = args.retry.as_deref().map(serde_json::from_str).transpose();
            let retry = retry.map_err(|error| UsageError(format!("--retry cannot be taken: {error}")))?;
            let request = TriggerRequest {
                name: args.name,
                source: args.source,
                filter: args.filter.as_deref().map(|text| json_argument("--filter", text)).transpose()?,
                target: target(args.target.as_deref(), args.script.as_deref())?,
                mode: args.mode,
                retry,
                enabled: Some(!args.disabled),
            };
            show(&client.create_trigger(&request).await?, format)
        }
        Verb::Enable { trigger } => switch(client, &trigger, Some(true), format).await,
        Verb::Disable { trigger } => switch(client, &trigger, Some(false), format).await,
        Verb::Fire { trigger, data } => {
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
        Verb::Test { trigger, data, op, attributes } => {
            let id = find(client, &trigger).await?.id;
            let data = data.as_deref().map(|text| json_argument("--data", text)).transpose()?;
            let attributes = if attributes.is_empty() { None } else { Some(pairs(&attributes)?) };
            test(client, id, FireRequest { data, op, attributes, dry_run: Some(true) }, format).await
        }
        Verb::Runs { trigger, cursor } => {
            runs(client, find(client, &trigger).await?.id, cursor.as_deref(), format).await
        }
        Verb::Delete { trigger } => {
            let TriggerView { id, name, .. } = find(client, &trigger).await?;
            client.delete_trigger(id).await?;
            let deleted = json!({"id": id, "name": name, "deleted": true});
            output::done(format, &format!("Trigger {name} was taken away."), &deleted)?;
            Ok(Exit::Done)
        }
    }
}

fn target(target: Option<&str>, script: Option<&str>) -> anyhow::Result<Box<RawValue>> {
    let Some(file) = script else { return json_argument("--target", target.unwrap_or_default()) };
    let source = match file {
        "-" => std::io::read_to_string(std::io::stdin()),
        file => std::fs::read_to_string(file),
    };
    let source = source.map_err(|error| UsageError(format!("--script {file} cannot be read: {error}")))?;
    Ok(serde_json::value::to_raw_value(&json!({"script": source}))?)
}

async fn runs(client: &Client, id: Uuid, cursor: Option<&str>, format: Output) -> anyhow::Result<Exit> {
    let page = client.trigger_runs(id, cursor).await?;
    let nothing = "No run is kept: only those of scripts and of triggers that are waited for are.";
    list::print(format, &page, nothing, ["WHEN", "OUTCOME", "TRY", "TOOK", "EVENT", "SAID"], |run| {
        let error = run.error.iter().map(|error| format!("{}: {}", error.code, error.message));
        let said: Vec<String> = run.log.iter().cloned().chain(error).collect();
        [
            cell(moment(run.at)),
            output::state(&run.outcome),
            cell(run.attempt),
            cell(run.duration_ms.map_or_else(String::new, |ms| format!("{ms} ms"))),
            cell(run.event_id),
            cell(said.join("\n")),
        ]
    })?;
    if let (Output::Table, Some(cursor)) = (format, &page.next_cursor) {
        output::note(&format!("There are more: --cursor {cursor}"));
    }
    Ok(Exit::Done)
}

fn pairs(texts: &[String]) -> Result<BTreeMap<String, String>, UsageError> {
    let pair = |text: &String| {
        let pair = text.split_once('=').map(|(name, value)| (name.to_owned(), value.to_owned()));
        pair.ok_or_else(|| UsageError(format!("--attribute takes NAME=VALUE, not `{text}`")))
    };
    texts.iter().map(pair).collect()
}

/// People know triggers by name; ids are for programs.
async fn find(client: &Client, wanted: &str) -> anyhow::Result<TriggerView> {
    if let Ok(id) = wanted.parse::<Uuid>() {
        return Ok(client.trigger(id).await?);
    }
    let mut cursor = None;
    loop {
        let page = client.triggers(cursor.as_deref()).await?;
        if let Some(found) = page.items.into_iter().find(|trigger| trigger.name == wanted) {
            return Ok(found);
        }
        cursor = page.next_cursor;
        if cursor.is_none() {
            return Err(NotFound(format!("there is no trigger named `{wanted}`")).into());
        }
    }
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.triggers(cursor).await).await?;
    list::print(
        format,
        &page,
        "There are no triggers yet.",
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
        .text("target", super::job::pretty(trigger.target.get()))
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

/// The route replaces the whole trigger: all but the switch goes back as it came.
async fn switch(client: &Client, wanted: &str, enabled: Option<bool>, format: Output) -> anyhow::Result<Exit> {
    let trigger = find(client, wanted).await?;
    let filter = RawValue::from_string(trigger.filter.get().to_owned())?;
    let target = RawValue::from_string(trigger.target.get().to_owned())?;
    let request = TriggerRequest {
        name: trigger.name.clone(),
        source: trigger.source.clone(),
        filter: Some(filter),
        target,
        mode: Some(trigger.mode.clone()),
        retry: Some(trigger.retry),
        enabled,
    };
    show(&client.replace_trigger(trigger.id, &request).await?, format)
}

async fn test(client: &Client, id: Uuid, request: FireRequest, format: Output) -> anyhow::Result<Exit> {
    let told = client.fire_trigger(id, &request).await?;
    let Some(run) = told.dry_run else { return Ok(Exit::Done) };
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
        .maybe("payload", run.payload.as_ref().map(|payload| super::job::pretty(payload.get())));
    for deed in &run.deeds {
        details.text("would", deed);
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
    use domain::trigger::Source;
    use serde_json::Value;
    use store::triggers::filter;

    use super::*;

    #[test]
    fn t2_help_shows_a_filter_of_every_source_that_can_be_read() {
        for source in Source::ALL {
            let line = FILTERS.lines().find_map(|line| line.trim_start().strip_prefix(&format!("{source} ")));
            let shown = line.unwrap_or_else(|| panic!("{source} is not shown"));
            for shown in shown.split(" or ") {
                let shown: Value = serde_json::from_str(shown).unwrap();
                let read = filter::read(source, TriggerId::new(Uuid::nil()), &shown.to_string());
                assert!(read.is_ok(), "{source}: {shown}");
            }
        }
    }
}
