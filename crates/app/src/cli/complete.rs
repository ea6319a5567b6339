//! Shell completion of names and ids that the server knows. The shell's script calls the binary with `COMPLETE` set.
//!
//! A completion must not delay the shell or print an error: connecting has a short timeout, and a failed request
//! offers nothing.

use std::ffi::OsStr;
use std::time::Duration;

use clap::{Arg, Command, CommandFactory, FromArgMatches};
use clap_complete::CompletionCandidate;
use clap_complete::engine::ArgValueCompleter;
use client::{Client, ClientError, JobFilter};
use domain::IdPart;
use wire::Page;

use super::{Cli, Connection};

/// A server that cannot be reached must not keep the shell waiting.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const TIMEOUT: Duration = Duration::from_secs(10);
/// Jobs that are offered before any digit is typed.
const JOBS: usize = 50;
/// Pages of a listing that are read for names.
const PAGES: usize = 4;

/// What the server completes for an argument.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Completed {
    Job,
    Queue,
    Kind,
    Trigger,
    Process,
    Pool,
    Runtime,
}

/// The command tree with completions attached. Only the shell's completion uses it.
pub(crate) fn command() -> Command {
    attach(Cli::command(), "")
}

fn attach(command: Command, noun: &str) -> Command {
    let noun = noun.to_owned();
    let command = command.mut_args(|arg| match completed(&noun, &arg) {
        Some(what) => arg.add(ArgValueCompleter::new(move |typed: &OsStr| candidates(what, typed))),
        None => arg,
    });
    let root = noun.is_empty();
    command.mut_subcommands(move |sub| {
        let noun = if root { sub.get_name().to_owned() } else { noun.clone() };
        attach(sub, &noun)
    })
}

/// Decides by the noun of the command and the name of the argument.
fn completed(noun: &str, arg: &Arg) -> Option<Completed> {
    match (noun, arg.get_id().as_str()) {
        ("job", "id") | (_, "job") => Some(Completed::Job),
        ("queue", "name") | (_, "queue" | "queues") => Some(Completed::Queue),
        ("trigger", "trigger") => Some(Completed::Trigger),
        ("process", "name") | (_, "process" | "excludes") => Some(Completed::Process),
        ("pool", "name") => Some(Completed::Pool),
        ("runtime", "name" | "runtime") => Some(Completed::Runtime),
        ("trigger", "kind") => None,
        ("job" | "work" | "process", "kind" | "kinds") => Some(Completed::Kind),
        _ => None,
    }
}

fn candidates(what: Completed, typed: &OsStr) -> Vec<CompletionCandidate> {
    let Some(typed) = typed.to_str() else { return Vec::new() };
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().enable_all().build() else { return Vec::new() };
    let found =
        runtime.block_on(async { tokio::time::timeout(TIMEOUT, fetch(&client()?, what, typed)).await.ok()?.ok() });
    found.unwrap_or_default()
}

/// The connection of the command line that is being completed: its own flags, then the variables.
fn client() -> Option<Client> {
    let typed = std::env::args_os().skip_while(|word| word != "--").skip(1);
    let global = Command::new("windlass").ignore_errors(true).disable_help_flag(true).disable_version_flag(true);
    let words = clap::Arg::new("words").num_args(0..).trailing_var_arg(false).allow_hyphen_values(false);
    let matches = <Connection as clap::Args>::augment_args(global).arg(words).try_get_matches_from(typed).ok()?;
    Connection::from_arg_matches(&matches).ok()?.client_with_connect_timeout(CONNECT_TIMEOUT).ok()
}

async fn fetch(client: &Client, what: Completed, typed: &str) -> Result<Vec<CompletionCandidate>, ClientError> {
    let names = match what {
        Completed::Job => return jobs(client, typed).await,
        Completed::Queue => names(async |cursor| client.queues(cursor).await, |queue| queue.name.clone()).await?,
        Completed::Trigger => {
            names(async |cursor| client.triggers(cursor).await, |trigger| trigger.name.clone()).await?
        }
        Completed::Process => {
            names(async |cursor| client.processes(cursor).await, |process| process.name.clone()).await?
        }
        Completed::Pool => names(async |cursor| client.pools(cursor).await, |pool| pool.name.clone()).await?,
        Completed::Runtime => {
            names(async |cursor| client.runtimes(cursor).await, |runtime| runtime.name.clone()).await?
        }
        Completed::Kind => kinds(client).await?,
    };
    Ok(names.into_iter().filter(|name| name.starts_with(typed)).map(CompletionCandidate::new).collect())
}

async fn names<T>(
    page: impl AsyncFn(Option<&str>) -> Result<Page<T>, ClientError>,
    name: impl Fn(&T) -> String,
) -> Result<Vec<String>, ClientError> {
    let mut found = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES {
        let page = page(cursor.as_deref()).await?;
        found.extend(page.items.iter().map(&name));
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    Ok(found)
}

/// The kinds of the newest jobs.
async fn kinds(client: &Client) -> Result<Vec<String>, ClientError> {
    let newest = client.jobs(&JobFilter { limit: Some(500), ..JobFilter::default() }).await?;
    let mut kinds: Vec<String> = newest.items.into_iter().map(|job| job.kind).collect();
    kinds.sort();
    kinds.dedup();
    Ok(kinds)
}

/// The newest jobs, or those that begin or end with the typed digits.
async fn jobs(client: &Client, typed: &str) -> Result<Vec<CompletionCandidate>, ClientError> {
    let newest = JobFilter { limit: Some(JOBS), ..JobFilter::default() };
    let mut found = if IdPart::parse(typed).is_ok() {
        let typed = Some(typed.to_owned());
        let mut found = client.jobs(&JobFilter { id_prefix: typed.clone(), ..newest.clone() }).await?.items;
        found.extend(client.jobs(&JobFilter { id_suffix: typed, ..newest }).await?.items);
        found
    } else {
        client.jobs(&newest).await?.items
    };
    found.dedup_by_key(|job| job.id);
    let offered = |id: &str| id.starts_with(typed) || id.ends_with(typed);
    let last = CompletionCandidate::new("@last").help(Some("the newest job that you enqueued".into()));
    let last = "@last".starts_with(typed).then_some(last);
    let jobs = found.into_iter().filter(|job| offered(&job.id.to_string()));
    let jobs = jobs.map(|job| {
        let help = format!("{} in {}, {}", job.kind, job.queue, job.state);
        CompletionCandidate::new(job.id.to_string()).help(Some(help.into()))
    });
    Ok(last.into_iter().chain(jobs).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &[&str], arg: &str, expected: Option<Completed>) {
        let mut command = Cli::command();
        command.build();
        let found = path.iter().try_fold(&command, |command, name| command.find_subcommand(name)).unwrap();
        let arg = found.get_arguments().find(|found| found.get_id() == arg).unwrap();
        assert_eq!(completed(path[0], arg), expected, "{path:?} {arg}");
    }

    #[test]
    fn the_server_completes_ids_and_names_by_noun_and_argument() {
        check(&["job", "show"], "id", Some(Completed::Job));
        check(&["job", "push"], "queue", Some(Completed::Queue));
        check(&["job", "list"], "kind", Some(Completed::Kind));
        check(&["queue", "pause"], "name", Some(Completed::Queue));
        check(&["trigger", "fire"], "trigger", Some(Completed::Trigger));
        check(&["trigger", "create"], "name", None);
        check(&["process", "show"], "name", Some(Completed::Process));
        check(&["worker", "remove"], "id", None);
        check(&["tenant", "create"], "name", None);
    }

    #[test]
    fn the_command_tree_with_completions_is_valid() {
        command().debug_assert();
    }
}
