//! `windlass subject`: what is known of a thing, what was done to it, and who may not touch it (W5, W6, W8).

mod show;

use std::collections::BTreeMap;
use std::time::Duration;

use clap::{Args, Subcommand};
use client::Client;
use jiff::Timestamp;
use serde_json::json;
use wire::{BackoffRequest, RawValue, SubjectRequest};

use super::exit::{Exit, UsageError};
use super::output::{self, Output};
use super::value::duration;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List subjects with what keeps processes off them.
    List {
        #[arg(long)]
        kind: Option<String>,
        /// The beginning of the id.
        #[arg(long)]
        prefix: Option<String>,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Show a subject as a maintenance card: facts, lockouts, work, and what happened lately.
    Show { id: String },
    /// Set facts, as name=value; a value that is no JSON is taken as text. Makes the subject if there is none.
    Set(SetArgs),
    /// Tell everything that was done to a subject, newest first; also after its deletion.
    History {
        id: String,
        #[arg(long, value_name = "N")]
        limit: Option<usize>,
        /// Where the page before ended.
        #[arg(long)]
        cursor: Option<String>,
    },
    /// Keep a process off a subject.
    Lockout(LockoutArgs),
    /// Lift what keeps a process off a subject: a lockout, or the backoff after a failure.
    Release {
        id: String,
        /// The process; without it, the lockout for every process is lifted and those of single processes stay.
        #[arg(long, default_value = "*")]
        process: String,
    },
    /// Delete a subject with its facts and lockouts; its history stays.
    Delete { id: String },
    /// Make a credential for the subject's own agent, which can set this subject's facts and nothing else.
    Credential { id: String },
    /// As the subject's own agent, say facts; the credential comes from WINDLASS_TOKEN.
    Report {
        id: String,
        #[arg(value_name = "NAME=VALUE", required = true)]
        facts: Vec<String>,
    },
}

#[derive(Args)]
pub(crate) struct SetArgs {
    id: String,
    #[arg(value_name = "NAME=VALUE")]
    facts: Vec<String>,
    /// What it is: a machine, a game, an image.
    #[arg(long)]
    kind: Option<String>,
    /// Take a fact away.
    #[arg(long, value_name = "NAME")]
    unset: Vec<String>,
}

#[derive(Args)]
pub(crate) struct LockoutArgs {
    id: String,
    /// The process; every process, unless named.
    #[arg(long, default_value = "*")]
    process: String,
    /// Why, for whoever comes next.
    #[arg(long)]
    cause: String,
    /// Until this time, in RFC 3339; without end, unless set.
    #[arg(long, value_name = "TIME")]
    until: Option<Timestamp>,
    /// For this long: 30m, 2h, 1d.
    #[arg(long = "for", value_name = "DURATION", value_parser = duration, conflicts_with = "until")]
    for_: Option<Duration>,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List { kind, prefix, cursor } => {
            show::list(&client.subjects(kind.as_deref(), prefix.as_deref(), cursor.as_deref()).await?, format)
        }
        Verb::Show { id } => show::card(client, &client.subject(&id).await?, format).await,
        Verb::Set(args) => {
            let request = SubjectRequest { kind: args.kind, facts: facts(&args.facts, &args.unset)? };
            show::card(client, &client.set_subject(&args.id, &request).await?, format).await
        }
        Verb::History { id, limit, cursor } => {
            show::history(&client.subject_history(&id, limit, cursor.as_deref()).await?, format)
        }
        Verb::Lockout(args) => {
            let for_s = args.for_.map(|length| length.as_secs().max(1) as i64);
            let request = BackoffRequest { until: args.until, for_s, cause: args.cause };
            show::backoff(&args.id, &client.lock_out(&args.id, &args.process, &request).await?, format)
        }
        Verb::Release { id, process } => {
            let before = client.subject(&id).await?.backoffs;
            client.let_in(&id, &process).await?;
            let held_off = before.iter().map(|backoff| backoff.process.as_str());
            let others: Vec<&str> = held_off.filter(|other| *other != process).collect();
            let object = json!({"subject": id, "process": process, "released": true});
            output::done(format, &released(&id, &process, &others), &object)?;
            Ok(Exit::Done)
        }
        Verb::Delete { id } => {
            client.delete_subject(&id).await?;
            output::done(
                format,
                &format!("{id} was deleted; its history stays."),
                &json!({"id": id, "deleted": true}),
            )?;
            Ok(Exit::Done)
        }
        Verb::Credential { id } => {
            let credential = client.make_subject_credential(&id).await?;
            match format {
                Output::Json => output::json(&credential)?,
                Output::Table => output::line(&credential.token)?,
            }
            Ok(Exit::Done)
        }
        Verb::Report { id, facts: said } => {
            let facts = facts(&said, &[])?;
            client.report_facts(&id, &facts).await?;
            let sentence = format!("{} of {id} reported.", output::many(facts.len(), "fact"));
            output::done(format, &sentence, &json!({"id": id, "reported": facts.keys().collect::<Vec<_>>()}))?;
            Ok(Exit::Done)
        }
    }
}

/// What was lifted, and what the others that are held off still keep from being done.
fn released(id: &str, process: &str, others: &[&str]) -> String {
    match process {
        "*" if !others.is_empty() => {
            let others = others.join(", ");
            format!("The lockout for every process was lifted; still held off (--process NAME): {others}.")
        }
        "*" => format!("Every process may work on {id} again."),
        _ if others.contains(&"*") => {
            format!("{process} was released; every process is still locked out of {id} (without --process).")
        }
        _ => format!("Process {process} may work on {id} again."),
    }
}

/// `name=value`, where a value that is no JSON is text.
fn facts(set: &[String], unset: &[String]) -> anyhow::Result<BTreeMap<String, Box<RawValue>>> {
    let mut facts = BTreeMap::new();
    for pair in set {
        let usage = || UsageError(format!("{pair} is not NAME=VALUE"));
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

    #[test]
    fn w5_a_release_says_what_it_did_not_lift() {
        let told = |process: &str, others: &[&str]| released("box", process, others);
        assert_eq!(told("*", &[]), "Every process may work on box again.");
        assert_eq!(told("install", &["patch"]), "Process install may work on box again.");
        assert!(told("*", &["install", "patch"]).ends_with("still held off (--process NAME): install, patch."));
        assert!(told("install", &["*"]).contains("still locked out of box"));
    }

    #[test]
    fn what_is_no_json_is_text() {
        let said = ["cores=8", "host=db-1", "ok=true", "note=a=b"].map(str::to_owned);
        let facts = facts(&said, &["gone".into()]).expect("facts");
        let told: Vec<(&str, &str)> = facts.iter().map(|(name, value)| (name.as_str(), value.get())).collect();
        let expected = [("cores", "8"), ("gone", "null"), ("host", "\"db-1\""), ("note", "\"a=b\""), ("ok", "true")];
        assert_eq!(told, expected);
        assert!(super::facts(&["nothing".into()], &[]).is_err());
    }
}
