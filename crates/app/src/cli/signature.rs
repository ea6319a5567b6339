//! `windlass signature`: what known failures look like, and what is known of them (S6, S7).

use clap::{Args, Subcommand};
use client::Client;
use jiff::Timestamp;
use serde_json::json;
use uuid::Uuid;
use wire::{MatchRequest, SignatureOutcome, SignaturePattern, SignatureRequest, SignatureUpdate, SignatureView};

use super::exit::Exit;
use super::list;
use super::output::{self, Details, Output, cell, relative_maybe};
use super::value::finite;

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List signatures, newest first.
    List,
    /// Show a signature.
    Show { id: Uuid },
    /// Write a signature and print its id.
    Create(Box<CreateArgs>),
    /// Name the cause of a signature, say how sure it is, or change what it matches.
    Set(Box<SetArgs>),
    /// Agree with a signature that was learnt.
    Confirm { id: Uuid },
    /// Keep a signature from matching and foretelling.
    Mute { id: Uuid },
    /// Let it match and foretell again.
    Unmute { id: Uuid },
    /// Say that the cause is mended: the next such failure is a recurrence.
    Fixed { id: Uuid },
    /// Make two signatures of one cause one.
    Merge {
        id: Uuid,
        /// The signature that stays.
        #[arg(long)]
        into: Uuid,
    },
    /// Forget a signature.
    Delete { id: Uuid },
    /// Find the signature that tells most of a failure.
    Match(PatternArgs),
}

#[derive(Args)]
pub(crate) struct PatternArgs {
    #[arg(long)]
    phase: Option<String>,
    #[arg(long)]
    error_code: Option<String>,
    #[arg(long)]
    kind: Option<String>,
    /// The subject or image; for a signature, a regular expression over it.
    #[arg(long, alias = "image")]
    subject: Option<String>,
}

#[derive(Args)]
pub(crate) struct OutcomeArgs {
    /// What is usually behind it.
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
    /// What to do about it.
    #[arg(long, value_name = "TEXT")]
    action: Option<String>,
    /// Where to read more.
    #[arg(long, value_name = "URL")]
    remediation_url: Option<String>,
    /// In how many seconds half of such failures clear.
    #[arg(long, value_name = "SECONDS", value_parser = finite)]
    mttr_p50: Option<f64>,
    /// In how many seconds 95 in 100 clear.
    #[arg(long, value_name = "SECONDS", value_parser = finite)]
    mttr_p95: Option<f64>,
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    pattern: PatternArgs,
    #[command(flatten)]
    outcome: OutcomeArgs,
    /// How sure it is, from 0 to 1.
    #[arg(long, value_parser = finite)]
    confidence: Option<f64>,
    /// Until when it counts.
    #[arg(long, value_name = "TIME")]
    expires_at: Option<Timestamp>,
}

#[derive(Args)]
pub(crate) struct SetArgs {
    id: Uuid,
    #[command(flatten)]
    pattern: PatternArgs,
    #[command(flatten)]
    outcome: OutcomeArgs,
    #[arg(long, value_parser = finite)]
    confidence: Option<f64>,
    #[arg(long)]
    enabled: Option<bool>,
    #[arg(long, value_name = "TIME")]
    expires_at: Option<Timestamp>,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    let (id, change) = match verb {
        Verb::List => return list(client, format).await,
        Verb::Show { id } => return shown(&client.signature(id).await?, format),
        Verb::Create(args) => {
            let request = SignatureRequest {
                pattern: pattern(args.pattern),
                outcome: merged(SignatureOutcome::default(), args.outcome),
                confidence: args.confidence,
                expires_at: args.expires_at,
            };
            let made = client.make_signature(&request).await?;
            match format {
                Output::Json => output::json(&made)?,
                Output::Table => output::line(&made.id.to_string())?,
            }
            return Ok(Exit::Done);
        }
        Verb::Set(args) => {
            let before = client.signature(args.id).await?;
            let pattern = changed(before.pattern, args.pattern);
            let (outcome, confidence) = (Some(merged(before.outcome, args.outcome)), args.confidence);
            let (enabled, expires_at) = (args.enabled, args.expires_at);
            (args.id, SignatureUpdate { pattern, outcome, confidence, enabled, expires_at, ..Default::default() })
        }
        Verb::Confirm { id } => (id, SignatureUpdate { confirmed: Some(true), ..Default::default() }),
        Verb::Mute { id } => (id, SignatureUpdate { muted: Some(true), ..Default::default() }),
        Verb::Unmute { id } => (id, SignatureUpdate { muted: Some(false), ..Default::default() }),
        Verb::Fixed { id } => (id, SignatureUpdate { fixed: Some(true), ..Default::default() }),
        Verb::Merge { id, into } => return shown(&client.merge_signature(id, into).await?, format),
        Verb::Delete { id } => {
            client.delete_signature(id).await?;
            output::done(format, &format!("Signature {id} was deleted."), &json!({"id": id, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        Verb::Match(args) => return find(client, args, format).await,
    };
    shown(&client.change_signature(id, &change).await?, format)
}

fn pattern(args: PatternArgs) -> SignaturePattern {
    SignaturePattern { phase: args.phase, error_code: args.error_code, kind: args.kind, subject_pattern: args.subject }
}

/// What is named replaces what it matched before; `None` where nothing is named.
fn changed(before: SignaturePattern, args: PatternArgs) -> Option<SignaturePattern> {
    let named = pattern(args);
    let is_named = named != SignaturePattern::default();
    is_named.then(|| SignaturePattern {
        phase: named.phase.or(before.phase),
        error_code: named.error_code.or(before.error_code),
        kind: named.kind.or(before.kind),
        subject_pattern: named.subject_pattern.or(before.subject_pattern),
    })
}

/// What is named replaces what was known.
fn merged(before: SignatureOutcome, args: OutcomeArgs) -> SignatureOutcome {
    SignatureOutcome {
        likely_cause: args.cause.or(before.likely_cause),
        mttr_p50_seconds: args.mttr_p50.or(before.mttr_p50_seconds),
        mttr_p95_seconds: args.mttr_p95.or(before.mttr_p95_seconds),
        suggested_action: args.action.or(before.suggested_action),
        remediation_url: args.remediation_url.or(before.remediation_url),
    }
}

async fn find(client: &Client, args: PatternArgs, format: Output) -> anyhow::Result<Exit> {
    let PatternArgs { phase, error_code, kind, subject } = args;
    let found = client.match_signature(&MatchRequest { phase, error_code, kind, subject }).await?;
    match (found, format) {
        (None, Output::Json) => output::line("null")?,
        (None, Output::Table) => output::note("No signature matches."),
        (Some(found), Output::Json) => output::json(&found)?,
        (Some(found), Output::Table) => {
            let mut details = Details::new();
            details.text("signature", found.signature_id).text("confidence", percent(found.confidence));
            describe(&mut details, &found.outcome);
            details.print()?;
        }
    }
    Ok(Exit::Done)
}

async fn list(client: &Client, format: Output) -> anyhow::Result<Exit> {
    let page = list::every_page(async |cursor| client.signatures(cursor).await).await?;
    list::print(
        format,
        &page,
        "There are no signatures yet. Three failures alike propose one.",
        ["ID", "STATUS", "SURE", "SAMPLES", "LAST", "MATCHES", "CAUSE"],
        |signature| {
            [
                cell(signature.id),
                cell(status(signature)),
                cell(percent(signature.confidence)),
                cell(signature.sample_count),
                cell(relative_maybe(signature.last_match_at)),
                cell(matches(&signature.pattern)),
                cell(signature.outcome.likely_cause.as_deref().unwrap_or_default()),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn status(signature: &SignatureView) -> String {
    match (signature.recurred_at.is_some(), signature.muted, signature.enabled) {
        (true, ..) => "recurred".into(),
        (_, true, _) => "muted".into(),
        (_, _, false) => "disabled".into(),
        _ => signature.status.clone(),
    }
}

fn percent(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

fn matches(pattern: &SignaturePattern) -> String {
    let parts = [
        ("kind", &pattern.kind),
        ("phase", &pattern.phase),
        ("code", &pattern.error_code),
        ("subject", &pattern.subject_pattern),
    ];
    let parts = parts.iter().filter_map(|(name, part)| part.as_ref().map(|part| format!("{name} {part}")));
    parts.collect::<Vec<_>>().join(", ")
}

fn describe(details: &mut Details, outcome: &SignatureOutcome) {
    let seconds = |seconds: f64| format!("{seconds:.0} s");
    details
        .maybe("cause", outcome.likely_cause.as_ref())
        .maybe("action", outcome.suggested_action.as_ref())
        .maybe("read more", outcome.remediation_url.as_ref())
        .maybe("clears in", outcome.mttr_p50_seconds.map(seconds))
        .maybe("at most", outcome.mttr_p95_seconds.map(seconds));
}

fn shown(signature: &SignatureView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(signature)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("id", signature.id)
        .text("status", status(signature))
        .text("matches", matches(&signature.pattern))
        .text("confidence", percent(signature.confidence))
        .text("samples", signature.sample_count)
        .maybe("last match", signature.last_match_at.map(output::moment))
        .maybe("mended", signature.fixed_at.map(output::moment))
        .maybe("recurred", signature.recurred_at.map(output::moment))
        .maybe("expires", signature.expires_at.map(output::moment));
    describe(&mut details, &signature.outcome);
    details.print()?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn s7_what_is_not_named_of_a_pattern_stays() {
        let args = |kind: Option<&str>| PatternArgs {
            phase: None,
            error_code: None,
            kind: kind.map(Into::into),
            subject: None,
        };
        let before = SignaturePattern { phase: Some("fetch".into()), ..SignaturePattern::default() };
        assert_eq!(changed(before.clone(), args(None)), None);
        let after = SignaturePattern { kind: Some("scan".into()), ..before.clone() };
        assert_eq!(changed(before, args(Some("scan"))), Some(after));
    }
}
