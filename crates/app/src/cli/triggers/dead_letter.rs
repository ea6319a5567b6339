//! `windlass dead-letter`: shows, replays and resolves dead letters.

use clap::{Args, Subcommand, ValueEnum};
use client::{Client, DeadLetterPage};
use domain::limits::REPLAY_DEAD_LETTERS;
use uuid::Uuid;
use wire::{DeadLetterFilter, DeadLetterView, ReplayManyRequest, ReplayRequest, ReplayView, Timestamp};

use crate::cli::exit::{Exit, UsageError};
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::output;
use crate::cli::output::{Details, Output, cell, many, moment, relative};
use crate::cli::queue::job::json_argument;

#[derive(Subcommand)]
pub(crate) enum DeadLetterVerb {
    /// List dead letters, newest first; only unresolved ones unless --all is given
    List(DeadLetterListArgs),
    /// Count dead letters; only unresolved ones unless --all is given
    Count(DeadLetterFilterArgs),
    /// Show a dead letter with every attempt
    Show { id: IdArgument },
    /// Replay one dead letter, several, or all unresolved ones that match
    Replay(DeadLetterReplayArgs),
    /// Resolve a dead letter without replaying it
    Resolve {
        id: IdArgument,
        #[arg(long, value_enum, default_value_t = ResolutionArg::Ignored, value_name = "RESOLUTION")]
        resolution: ResolutionArg,
        /// Reason for the resolution
        #[arg(long)]
        note: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum ResolutionArg {
    Ignored,
    HandledByScript,
}

#[derive(Args)]
pub(crate) struct DeadLetterFilterArgs {
    /// Filter: FIELD=VALUE with source, trigger_id, job_id, queue, kind, error_code, since or until; may be repeated
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    matching: Vec<String>,
    /// Include resolved dead letters
    #[arg(long)]
    all: bool,
}

impl DeadLetterFilterArgs {
    /// The required value of `resolved`; `None` for any.
    fn resolved(&self) -> Option<bool> {
        if self.all { None } else { Some(false) }
    }
}

#[derive(Args)]
pub(crate) struct DeadLetterListArgs {
    #[command(flatten)]
    which: DeadLetterFilterArgs,
    /// Maximum number of dead letters
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
}

#[derive(Args)]
pub(crate) struct DeadLetterReplayArgs {
    /// Dead letters to replay
    #[arg(required_unless_present = "matching", conflicts_with = "matching")]
    ids: Vec<IdArgument>,
    /// Replay all unresolved ones that match: FIELD=VALUE, as for `list`; may be repeated
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    matching: Vec<String>,
    /// Replace the payload, as JSON; only with a single dead letter
    #[arg(long, value_name = "JSON", conflicts_with = "matching")]
    payload: Option<String>,
    /// Show how many would be replayed without replaying them
    #[arg(long)]
    dry_run: bool,
}

pub(crate) async fn run(client: &Client, verb: DeadLetterVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        DeadLetterVerb::List(args) => list(client, args, format).await,
        DeadLetterVerb::Count(which) => {
            let count = client.count_dead_letters(&filter(&which.matching)?, which.resolved()).await?;
            match format {
                Output::Json => output::json(&count)?,
                Output::Table if count.capped => output::line(&format!("more than {}", count.count))?,
                Output::Table => output::line(&count.count.to_string())?,
            }
            Ok(Exit::Done)
        }
        DeadLetterVerb::Show { id } => show(&client.dead_letter(id.dead_letter(client).await?).await?, format),
        DeadLetterVerb::Replay(args) => replay(client, args, format).await,
        DeadLetterVerb::Resolve { id, resolution, note } => {
            let resolution = match resolution {
                ResolutionArg::Ignored => "ignored",
                ResolutionArg::HandledByScript => "handled_by_script",
            };
            let id = id.dead_letter(client).await?;
            show(&client.resolve_dead_letter(id, resolution, note.as_deref()).await?, format)
        }
    }
}

fn filter(matching: &[String]) -> Result<DeadLetterFilter, UsageError> {
    let mut filter = DeadLetterFilter::default();
    for text in matching {
        let (field, value) =
            text.split_once('=').ok_or_else(|| UsageError(format!("--where must be FIELD=VALUE, not `{text}`")))?;
        let id = || value.parse::<Uuid>().map_err(|_| UsageError(format!("{field} must be a UUID, not `{value}`")));
        let time = || {
            let wrong = |_| UsageError(format!("{field} must be a time like 2026-01-31T12:00:00Z, not `{value}`"));
            value.parse::<Timestamp>().map_err(wrong)
        };
        match field {
            "source" => filter.source = Some(value.into()),
            "trigger_id" => filter.trigger_id = Some(id()?),
            "job_id" => filter.job_id = Some(id()?),
            "queue" => filter.queue = Some(value.into()),
            "kind" => filter.kind = Some(value.into()),
            "error_code" => filter.error_code = Some(value.into()),
            "since" => filter.since = Some(time()?),
            "until" => filter.until = Some(time()?),
            _ => {
                let fields = "source, trigger_id, job_id, queue, kind, error_code, since or until";
                return Err(UsageError(format!("--where does not support `{field}`; use {fields}")));
            }
        }
    }
    Ok(filter)
}

async fn list(client: &Client, args: DeadLetterListArgs, format: Output) -> anyhow::Result<Exit> {
    let DeadLetterListArgs { which, limit } = args;
    let (filter, resolved) = (filter(&which.matching)?, which.resolved());
    let page = DeadLetterPage { filter, resolved, limit: Some(limit), ..Default::default() };
    let page = client.dead_letters(&page).await?;
    list::print(
        format,
        &page,
        "No dead letters match.",
        ["ID", "SOURCE", "QUEUE", "KIND", "ATTEMPTS", "CREATED", "RESOLUTION", "ERROR"],
        |letter| {
            [
                cell(letter.id),
                cell(&letter.source),
                cell(letter.queue.as_deref().unwrap_or_default()),
                cell(letter.kind.as_deref().unwrap_or_default()),
                cell(letter.attempt_count),
                cell(relative(letter.created_at)),
                cell(letter.resolution.as_deref().unwrap_or("open")),
                cell(error(letter)),
            ]
        },
    )?;
    if format == Output::Table && page.next_cursor.is_some() {
        output::note("More results: raise --limit, or filter with --where.");
    }
    Ok(Exit::Done)
}

fn error(letter: &DeadLetterView) -> String {
    match letter.last_error.message.trim() {
        "" => letter.last_error.code.clone(),
        message => format!("{}: {message}", letter.last_error.code),
    }
}

fn show(letter: &DeadLetterView, format: Output) -> anyhow::Result<Exit> {
    if format == Output::Json {
        output::json(letter)?;
        return Ok(Exit::Done);
    }
    let mut details = Details::new();
    details
        .text("dead letter", letter.id)
        .text("resolution", letter.resolution.as_deref().unwrap_or("open"))
        .maybe("resolved by", letter.resolved_by.as_ref())
        .maybe("resolved", letter.resolved_at.map(moment))
        .maybe("note", letter.note.as_ref())
        .maybe("replayed as", letter.replayed_as)
        .text("source", format!("{} {}", letter.source, letter.op))
        .text("event", letter.event_id)
        .maybe("trigger", letter.trigger_id)
        .maybe("job", letter.job_id)
        .maybe("queue", letter.queue.as_ref())
        .maybe("kind", letter.kind.as_ref())
        .text("created", moment(letter.created_at));
    for (number, attempt) in letter.attempts.iter().enumerate() {
        let text = format!("{}  {}: {}", moment(attempt.at), attempt.error.code, attempt.error.message);
        details.text(&format!("attempt {}", number + 1), text.trim_end_matches([':', ' ']));
    }
    details.text("payload", crate::cli::queue::job::pretty(letter.payload.get()));
    details.print()?;
    Ok(Exit::Done)
}

async fn replay(client: &Client, args: DeadLetterReplayArgs, format: Output) -> anyhow::Result<Exit> {
    let mut ids = Vec::with_capacity(args.ids.len());
    for id in &args.ids {
        ids.push(id.dead_letter(client).await?);
    }
    if let ([id], false) = (ids.as_slice(), args.dry_run) {
        let payload = args.payload.as_deref().map(|text| json_argument("--payload", text)).transpose()?;
        let replayed = client.replay_dead_letter(*id, &ReplayRequest { payload }).await?;
        match (format, replayed) {
            (Output::Json, replayed) => output::json(&replayed)?,
            (Output::Table, ReplayView { job_id, event_id, delivery_id }) => {
                if let Some(id) = job_id.or(event_id).or(delivery_id) {
                    output::line(&id.to_string())?;
                }
            }
        }
        return Ok(Exit::Done);
    }
    if args.payload.is_some() {
        return Err(UsageError("--payload requires exactly one dead letter".into()).into());
    }
    let by_filter = ids.is_empty();
    let request = ReplayManyRequest {
        ids: (!by_filter).then_some(ids),
        filter: if by_filter { Some(filter(&args.matching)?) } else { None },
        dry_run: Some(args.dry_run),
    };
    let result = client.replay_dead_letters(&request).await?;
    match format {
        Output::Json => output::json(&result)?,
        Output::Table if result.dry_run => {
            output::line(&format!("{} would be replayed.", many(result.matched, "dead letter")))?;
        }
        Output::Table => {
            let rest = result.matched - result.replayed;
            let replayed = many(result.replayed, "dead letter");
            output::line(&format!("{replayed} replayed, {rest} unchanged."))?;
        }
    }
    if by_filter && result.matched >= REPLAY_DEAD_LETTERS {
        output::note(&format!(
            "One replay is limited to {REPLAY_DEAD_LETTERS} dead letters; more may match. Repeat the command for those."
        ));
    }
    Ok(Exit::Done)
}
