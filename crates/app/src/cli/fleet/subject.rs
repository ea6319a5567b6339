//! `windlass subject`: facts, lockouts and history of subjects.

mod show;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use client::Client;
use jiff::Timestamp;
use serde_json::json;
use wire::{BackoffRequest, RawValue, SubjectRequest};

use crate::cli::exit::{Exit, UsageError};
use crate::cli::output;
use crate::cli::output::Output;
use crate::cli::value::{duration, time};

#[derive(Subcommand)]
pub(crate) enum SubjectVerb {
    /// List subjects with their backoffs
    List {
        #[arg(long)]
        kind: Option<String>,
        /// Prefix of the id
        #[arg(long)]
        prefix: Option<String>,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a subject: facts, backoffs, work and recent events
    Show { id: String },
    /// Set facts as NAME=VALUE; a value that is not JSON is stored as text. Creates the subject if it does not exist
    Set(SubjectSetArgs),
    /// Show the events of a subject, newest first; also after its deletion
    History {
        id: String,
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Continue from the cursor of the previous page
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Prevent a process from creating jobs for a subject
    Lockout(LockoutArgs),
    /// Remove a lockout or a backoff
    Release {
        id: String,
        /// Process to release; without it, only the lockout for every process is removed
        #[arg(long, default_value = "*")]
        process: String,
    },
    /// Delete a subject with its facts and backoffs; its history is retained
    Delete { id: String },
    /// Create a credential for the subject's own agent, which can only set this subject's facts
    Credential { id: String },
    /// Report facts as the subject's own agent, with its credential in WINDLASS_TOKEN
    Report {
        id: String,
        #[arg(value_name = "NAME=VALUE", required = true)]
        facts: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct SubjectSetArgs {
    id: String,
    #[arg(value_name = "NAME=VALUE")]
    facts: Vec<String>,
    /// Kind of the subject, for example machine, game or image
    #[arg(long)]
    kind: Option<String>,
    /// Remove a fact; may be repeated
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LockoutArgs {
    id: String,
    /// Process to lock out; `*` means every process
    #[arg(long, default_value = "*")]
    process: String,
    /// Reason for the lockout
    #[arg(long)]
    cause: String,
    /// End of the lockout: 2026-12-01T10:00:00Z, or '2026-12-01 10:00' in local time [default: until released]
    #[arg(long, value_name = "TIME", value_parser = time)]
    until: Option<Timestamp>,
    /// Duration of the lockout: 30m, 2h, 1d
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    for_: Option<Duration>,
}

pub(crate) async fn run(client: &Client, verb: SubjectVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        SubjectVerb::List { kind, prefix, cursor } => {
            show::list(&client.subjects(kind.as_deref(), prefix.as_deref(), cursor.as_deref()).await?, format)
        }
        SubjectVerb::Show { id } => show::card(client, &client.subject(&id).await?, format).await,
        SubjectVerb::Set(args) => {
            let request = SubjectRequest { kind: args.kind, facts: facts(&args.facts, &args.unset)? };
            show::card(client, &client.set_subject(&args.id, &request).await?, format).await
        }
        SubjectVerb::History { id, limit, cursor } => {
            show::history(&client.subject_history(&id, limit, cursor.as_deref()).await?, format)
        }
        SubjectVerb::Lockout(args) => {
            let for_s = args.for_.map(|length| length.as_secs().max(1) as i64);
            let request = BackoffRequest { until: args.until, for_s, cause: args.cause };
            show::backoff(&args.id, &client.lock_out(&args.id, &args.process, &request).await?, format)
        }
        SubjectVerb::Release { id, process } => {
            let before = client.subject(&id).await?.backoffs;
            client.release_subject(&id, &process).await?;
            let processes = before.iter().map(|backoff| backoff.process.as_str());
            let others: Vec<&str> = processes.filter(|other| *other != process).collect();
            let object = json!({"subject": id, "process": process, "released": true});
            output::done(format, &released(&id, &process, &others), &object)?;
            Ok(Exit::Done)
        }
        SubjectVerb::Delete { id } => {
            client.delete_subject(&id).await?;
            output::done(
                format,
                &format!("Deleted {id}; its history is retained."),
                &json!({"id": id, "deleted": true}),
            )?;
            Ok(Exit::Done)
        }
        SubjectVerb::Credential { id } => {
            let credential = client.create_subject_credential(&id).await?;
            match format {
                Output::Json => output::json(&credential)?,
                Output::Table => output::line(&credential.token)?,
            }
            Ok(Exit::Done)
        }
        SubjectVerb::Report { id, facts: given } => {
            let facts = facts(&given, &[])?;
            client.report_facts(&id, &facts).await?;
            let sentence = format!("Reported {} of {id}.", output::many(facts.len(), "fact"));
            output::done(format, &sentence, &json!({"id": id, "reported": facts.keys().collect::<Vec<_>>()}))?;
            Ok(Exit::Done)
        }
    }
}

/// Describes what was released and which backoffs remain.
fn released(id: &str, process: &str, others: &[&str]) -> String {
    match process {
        "*" if !others.is_empty() => {
            let others = others.join(", ");
            format!(
                "Removed the lockout for every process of {id}. Backoffs remain for (use --process NAME): {others}."
            )
        }
        "*" => format!("Removed the lockout; every process can create jobs for {id}."),
        _ if others.contains(&"*") => {
            format!(
                "Released {process}, but {id} is still locked out for every process (release it without --process)."
            )
        }
        _ => format!("Released {process}; it can create jobs for {id}."),
    }
}

/// Parses `NAME=VALUE` facts. A value that is not JSON is stored as text.
fn facts(set: &[String], unset: &[String]) -> anyhow::Result<BTreeMap<String, Box<RawValue>>> {
    let mut facts = BTreeMap::new();
    for pair in set {
        let usage = || UsageError(format!("facts must be NAME=VALUE, not `{pair}`"));
        let (name, value) = pair.split_once('=').ok_or_else(usage)?;
        let value = match serde_json::from_str::<Box<RawValue>>(value) {
            Ok(json) => json,
            Err(_) => serde_json::value::to_raw_value(value)?,
        };
        facts.insert(name.to_owned(), value);
    }
    for name in unset {
        facts.insert(name.clone(), RawValue::from_string("null".into())?);
    }
    Ok(facts)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement W5.
    #[test]
    fn a_release_lists_the_backoffs_that_remain() {
        let text = |process: &str, others: &[&str]| released("box", process, others);
        assert_eq!(text("*", &[]), "Removed the lockout; every process can create jobs for box.");
        assert_eq!(text("install", &["patch"]), "Released install; it can create jobs for box.");
        assert!(
            text("*", &["install", "patch"]).ends_with("Backoffs remain for (use --process NAME): install, patch.")
        );
        assert!(text("install", &["*"]).contains("box is still locked out for every process"));
    }

    #[test]
    fn a_fact_value_that_is_not_json_is_text() {
        let given = ["cores=8", "host=db-1", "ok=true", "note=a=b"].map(str::to_owned);
        let facts = facts(&given, &["gone".into()]).expect("facts");
        let text: Vec<(&str, &str)> = facts.iter().map(|(name, value)| (name.as_str(), value.get())).collect();
        let expected = [("cores", "8"), ("gone", "null"), ("host", "\"db-1\""), ("note", "\"a=b\""), ("ok", "true")];
        assert_eq!(text, expected);
        assert!(super::facts(&["nothing".into()], &[]).is_err());
    }
}
