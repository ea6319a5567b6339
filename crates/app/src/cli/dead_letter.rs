//! `windlass dead-letter`: what failed for good, and what to do about it (T6–T9).

use clap::{Args, Subcommand, ValueEnum};
use client::{Client, DeadLetterPage};
use domain::limits::REPLAY_LETTERS;
use uuid::Uuid;
use wire::{DeadLetterFilter, DeadLetterView, ReplayManyRequest, ReplayRequest, ReplayView, Timestamp};

use super::exit::{Exit, UsageError};
use super::job::json_argument;
use super::list;
use super::output::{self, Details, Output, cell, many, moment, relative};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// List dead letters, newest first: those nobody has dealt with, unless told otherwise.
    List(ListArgs),
    /// Count dead letters: those nobody has dealt with, unless told otherwise.
    Count(WhichArgs),
    /// Show one with every attempt.
    Show { id: Uuid },
    /// Make new work of one, of several, or of all unresolved ones that match.
    Replay(ReplayArgs),
    /// Say that nothing more is to be done about one.
    Resolve {
        id: Uuid,
        #[arg(long, value_enum, default_value_t = Said::Ignored, value_name = "RESOLUTION")]
        resolution: Said,
        /// Why, for whoever wonders.
        #[arg(long)]
        note: Option<String>,
    },
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Said {
    Ignored,
    HandledByScript,
}

#[derive(Args)]
pub(crate) struct WhichArgs {
    /// Which: FIELD=VALUE with source, trigger_id, job_id, queue, kind, error_code, since or until.
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    matching: Vec<String>,
    /// Those that were dealt with, too.
    #[arg(long)]
    all: bool,
}

impl WhichArgs {
    /// What `resolved` must be; anything, when all are wanted.
    fn resolved(&self) -> Option<bool> {
        if self.all { None } else { Some(false) }
    }
}

#[derive(Args)]
pub(crate) struct ListArgs {
    #[command(flatten)]
    which: WhichArgs,
    /// Letters to list.
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
}

#[derive(Args)]
pub(crate) struct ReplayArgs {
    /// Letters by their ids.
    #[arg(required_unless_present = "matching", conflicts_with = "matching")]
    ids: Vec<Uuid>,
    /// All unresolved ones that match: FIELD=VALUE with source, trigger_id, job_id, queue, kind, error_code, since or until.
    #[arg(long = "where", value_name = "FIELD=VALUE")]
    matching: Vec<String>,
    /// Another payload, as JSON; for one letter only.
    #[arg(long, value_name = "JSON", conflicts_with = "matching")]
    payload: Option<String>,
    /// Only tell how many would be played again.
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(client: &Client, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::List(args) => list(client, args, format).await,
        Verb::Count(which) => {
            let count = client.count_dead_letters(&filter(&which.matching)?, which.resolved()).await?;
            match format {
                Output::Json => output::json(&count)?,
                Output::Table if count.capped => output::line(&format!("more than {}", count.count))?,
                Output::Table => output::line(&count.count.to_string())?,
            }
            Ok(Exit::Done)
        }
        Verb::Show { id } => show(&client.dead_letter(id).await?, format),
        Verb::Replay(args) => replay(client, args, format).await,
        Verb::Resolve { id, resolution, note } => {
            let resolution = match resolution {
                Said::Ignored => "ignored",
                Said::HandledByScript => "handled_by_script",
            };
            show(&client.resolve_dead_letter(id, resolution, note.as_deref()).await?, format)
        }
    }
}

fn filter(matching: &[String]) -> Result<DeadLetterFilter, UsageError> {
    let mut filter = DeadLetterFilter::default();
    for text in matching {
        let (field, value) =
            text.split_once('=').ok_or_else(|| UsageError(format!("--where takes FIELD=VALUE, not `{text}`")))?;
        let id = || value.parse::<Uuid>().map_err(|_| UsageError(format!("{field} must be an id, not `{value}`")));
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
                let known = "source, trigger_id, job_id, queue, kind, error_code, since or until";
                return Err(UsageError(format!("`{field}` is not known to --where; use {known}")));
            }
        }
    }
    Ok(filter)
}

async fn list(client: &Client, args: ListArgs, format: Output) -> anyhow::Result<Exit> {
    let ListArgs { which, limit } = args;
    let (filter, resolved) = (filter(&which.matching)?, which.resolved());
    let page = DeadLetterPage { filter, resolved, limit: Some(limit), ..Default::default() };
    let page = client.dead_letters(&page).await?;
    list::print(
        format,
        &page,
        "No dead letter matches.",
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
        output::note("There are more: raise --limit, or narrow it with --where.");
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
    details.text("payload", super::job::pretty(letter.payload.get()));
    details.print()?;
    Ok(Exit::Done)
}

async fn replay(client: &Client, args: ReplayArgs, format: Output) -> anyhow::Result<Exit> {
    if let ([id], false) = (args.ids.as_slice(), args.dry_run) {
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
        return Err(UsageError("--payload goes with one letter".into()).into());
    }
    let by_filter = args.ids.is_empty();
    let request = ReplayManyRequest {
        ids: (!by_filter).then_some(args.ids),
        filter: if by_filter { Some(filter(&args.matching)?) } else { None },
        dry_run: Some(args.dry_run),
    };
    let told = client.replay_dead_letters(&request).await?;
    match format {
        Output::Json => output::json(&told)?,
        Output::Table if told.dry_run => {
            output::line(&format!("{} would be replayed.", many(told.matched, "letter")))?;
        }
        Output::Table => {
            let rest = told.matched - told.replayed;
            let replayed = many(told.replayed, "letter");
            output::line(&format!("{replayed} replayed, {rest} left as they are."))?;
        }
    }
    if by_filter && told.matched >= REPLAY_LETTERS {
        output::note(&format!("One replay takes {REPLAY_LETTERS} letters, and more may match: do it again for those."));
    }
    Ok(Exit::Done)
}
