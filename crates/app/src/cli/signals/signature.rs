//! `windlass signature`: manages failure signatures and their outcomes.

use clap::{Args, Subcommand};
use client::Client;
use jiff::Timestamp;
use serde_json::json;
use wire::{MatchRequest, SignatureOutcome, SignaturePattern, SignatureRequest, SignatureUpdate, SignatureView};

use crate::cli::exit::Exit;
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Output, cell, relative_maybe};
use crate::cli::value::{finite, time};

#[derive(Subcommand)]
pub(crate) enum SignatureVerb {
    /// List signatures, newest first
    List,
    /// Show a signature
    Show { id: IdArgument },
    /// Create a signature and print its id
    Create(Box<SignatureCreateArgs>),
    /// Change the cause, confidence or pattern of a signature
    Set(Box<SignatureSetArgs>),
    /// Confirm a learned signature
    Confirm { id: IdArgument },
    /// Stop a signature from matching and predicting
    Mute { id: IdArgument },
    /// Let a muted signature match and predict again
    Unmute { id: IdArgument },
    /// Mark the cause as fixed: the next matching failure is a recurrence
    Fixed { id: IdArgument },
    /// Merge a signature into another one with the same cause
    Merge {
        id: IdArgument,
        /// Signature to retain
        #[arg(long)]
        into: IdArgument,
    },
    /// Delete a signature
    Delete { id: IdArgument },
    /// Find the most specific signature that matches a failure
    Match(SignaturePatternArgs),
}

#[derive(Args)]
pub(crate) struct SignaturePatternArgs {
    #[arg(long)]
    phase: Option<String>,
    #[arg(long)]
    error_code: Option<String>,
    #[arg(long)]
    kind: Option<String>,
    /// Subject or image; for a signature, a regular expression that matches it
    #[arg(long, alias = "image")]
    subject: Option<String>,
}

#[derive(Args)]
pub(crate) struct SignatureOutcomeArgs {
    /// Likely cause
    #[arg(long, value_name = "TEXT")]
    cause: Option<String>,
    /// Suggested action
    #[arg(long, value_name = "TEXT")]
    action: Option<String>,
    /// URL of documentation
    #[arg(long, value_name = "URL")]
    remediation_url: Option<String>,
    /// Median time to repair (p50)
    #[arg(long, value_name = "SECONDS", value_parser = finite)]
    mttr_p50: Option<f64>,
    /// 95th percentile of the time to repair (p95)
    #[arg(long, value_name = "SECONDS", value_parser = finite)]
    mttr_p95: Option<f64>,
}

#[derive(Args)]
pub(crate) struct SignatureCreateArgs {
    #[command(flatten)]
    pattern: SignaturePatternArgs,
    #[command(flatten)]
    outcome: SignatureOutcomeArgs,
    /// Confidence from 0 to 1 [default: 0.5]
    #[arg(long, value_parser = finite)]
    confidence: Option<f64>,
    /// Expiry time of the signature [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_at: Option<Timestamp>,
}

#[derive(Args)]
pub(crate) struct SignatureSetArgs {
    id: IdArgument,
    #[command(flatten)]
    pattern: SignaturePatternArgs,
    #[command(flatten)]
    outcome: SignatureOutcomeArgs,
    #[arg(long, value_parser = finite)]
    confidence: Option<f64>,
    #[arg(long)]
    enabled: Option<bool>,
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_at: Option<Timestamp>,
}

pub(crate) async fn run(client: &Client, verb: SignatureVerb, format: Output) -> anyhow::Result<Exit> {
    let (id, change) = match verb {
        SignatureVerb::List => return list(client, format).await,
        SignatureVerb::Show { id } => return shown(&client.signature(id.signature(client).await?).await?, format),
        SignatureVerb::Create(args) => {
            let request = SignatureRequest {
                pattern: pattern(args.pattern),
                outcome: merged(SignatureOutcome::default(), args.outcome),
                confidence: args.confidence,
                expires_at: args.expires_at,
            };
            let created = client.create_signature(&request).await?;
            match format {
                Output::Json => output::json(&created)?,
                Output::Table => output::line(&created.id.to_string())?,
            }
            return Ok(Exit::Done);
        }
        SignatureVerb::Set(args) => {
            let before = client.signature(args.id.signature(client).await?).await?;
            let pattern = changed(before.pattern, args.pattern);
            let (outcome, confidence) = (Some(merged(before.outcome, args.outcome)), args.confidence);
            let (enabled, expires_at) = (args.enabled, args.expires_at);
            (args.id, SignatureUpdate { pattern, outcome, confidence, enabled, expires_at, ..Default::default() })
        }
        SignatureVerb::Confirm { id } => (id, SignatureUpdate { confirmed: Some(true), ..Default::default() }),
        SignatureVerb::Mute { id } => (id, SignatureUpdate { muted: Some(true), ..Default::default() }),
        SignatureVerb::Unmute { id } => (id, SignatureUpdate { muted: Some(false), ..Default::default() }),
        SignatureVerb::Fixed { id } => (id, SignatureUpdate { fixed: Some(true), ..Default::default() }),
        SignatureVerb::Merge { id, into } => {
            let (id, into) = (id.signature(client).await?, into.signature(client).await?);
            return shown(&client.merge_signature(id, into).await?, format);
        }
        SignatureVerb::Delete { id } => {
            let id = id.signature(client).await?;
            client.delete_signature(id).await?;
            output::done(format, &format!("Signature {id} was deleted."), &json!({"id": id, "deleted": true}))?;
            return Ok(Exit::Done);
        }
        SignatureVerb::Match(args) => return find(client, args, format).await,
    };
    shown(&client.update_signature(id.signature(client).await?, &change).await?, format)
}

fn pattern(args: SignaturePatternArgs) -> SignaturePattern {
    SignaturePattern { phase: args.phase, error_code: args.error_code, kind: args.kind, subject_pattern: args.subject }
}

/// Returns the pattern with the given parts changed; `None` if no part is given.
fn changed(before: SignaturePattern, args: SignaturePatternArgs) -> Option<SignaturePattern> {
    let given = pattern(args);
    let has_any = given != SignaturePattern::default();
    has_any.then(|| SignaturePattern {
        phase: given.phase.or(before.phase),
        error_code: given.error_code.or(before.error_code),
        kind: given.kind.or(before.kind),
        subject_pattern: given.subject_pattern.or(before.subject_pattern),
    })
}

/// Returns the outcome with the given parts changed.
fn merged(before: SignatureOutcome, args: SignatureOutcomeArgs) -> SignatureOutcome {
    SignatureOutcome {
        likely_cause: args.cause.or(before.likely_cause),
        mttr_p50_seconds: args.mttr_p50.or(before.mttr_p50_seconds),
        mttr_p95_seconds: args.mttr_p95.or(before.mttr_p95_seconds),
        suggested_action: args.action.or(before.suggested_action),
        remediation_url: args.remediation_url.or(before.remediation_url),
    }
}

async fn find(client: &Client, args: SignaturePatternArgs, format: Output) -> anyhow::Result<Exit> {
    let SignaturePatternArgs { phase, error_code, kind, subject } = args;
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
        "No signatures. Three similar failures propose one.",
        ["ID", "STATUS", "CONFIDENCE", "SAMPLES", "LAST", "MATCHES", "CAUSE"],
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
        .maybe("documentation", outcome.remediation_url.as_ref())
        .maybe("time to repair (p50)", outcome.mttr_p50_seconds.map(seconds))
        .maybe("time to repair (p95)", outcome.mttr_p95_seconds.map(seconds));
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
        .maybe("fixed", signature.fixed_at.map(output::moment))
        .maybe("recurred", signature.recurred_at.map(output::moment))
        .maybe("expires", signature.expires_at.map(output::moment));
    describe(&mut details, &signature.outcome);
    details.print()?;
    Ok(Exit::Done)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Requirement S7.
    #[test]
    fn an_unnamed_part_of_a_signature_pattern_is_unchanged() {
        let args = |kind: Option<&str>| SignaturePatternArgs {
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
