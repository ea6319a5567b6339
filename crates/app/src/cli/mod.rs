//! The command line: noun, then verb. This file is the tree of commands; each noun has a file of its own.

mod agent;
mod backup;
pub(crate) mod bench;
mod completions;
mod dead_letter;
mod delivery;
mod doctor;
pub(crate) mod drive;
pub(crate) mod exit;
mod failures;
mod history;
mod job;
mod kv;
mod list;
mod migrate;
mod node;
pub(crate) mod output;
mod pool;
mod process;
mod queue;
mod runtime;
mod secret;
pub(crate) mod serve;
mod signature;
mod subject;
mod tenant;
mod token;
mod topic;
mod trigger;
mod ttfs;
mod value;
mod verify;
mod work;
mod worker;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use client::Client;

use exit::{Exit, UsageError};
use output::Output;

/// A durable job engine: it takes work, runs it on the right worker, and never loses it.
#[derive(Parser)]
#[command(name = "windlass", version, arg_required_else_help = true, after_help = exit::HELP)]
pub(crate) struct Cli {
    /// How to print: for people, or for programs.
    #[arg(long, global = true, value_enum, default_value_t = Output::Table, value_name = "FORMAT")]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    // The commands that open a database themselves.
    /// Serve the API, with the engine that runs behind it.
    Serve(Box<serve::ServeArgs>),
    /// Drive this machine's Docker engine for servers on the same PostgreSQL database.
    Agent(Box<agent::AgentArgs>),
    /// Bring the database's schema up or down, or show where it stands.
    #[command(subcommand)]
    Migrate(migrate::Verb),
    /// Check every promise on a live or stopped database.
    Verify(migrate::DatabaseArgs),
    /// Look for what could go wrong: configuration, versions, disk, clocks.
    Doctor(doctor::DoctorArgs),
    /// Copy a SQLite database while it is in use, and check the copy.
    Backup(backup::BackupArgs),
    /// Put a copy back where there is no database, and check it.
    Restore(backup::RestoreArgs),
    /// Make and list tenants, and let roles of a PostgreSQL database speak for them.
    #[command(subcommand)]
    Tenant(tenant::Verb),
    /// Change the key that secrets are sealed with, or give up what a lost one sealed.
    #[command(subcommand)]
    Secret(secret::Verb),
    /// Make, list and revoke tokens: on this machine's database, or through a server.
    #[command(subcommand)]
    Token(token::Verb),
    /// Measure how fast this machine takes work in and runs it.
    Bench(bench::BenchArgs),

    // The commands that speak to a server over HTTP.
    /// Push, look at, cancel and retry jobs.
    #[command(subcommand)]
    Job(job::Verb),
    /// Look at queues, change their settings, pause and resume them.
    #[command(subcommand)]
    Queue(queue::Verb),
    /// Declare, start, stop and watch containers.
    #[command(subcommand)]
    Runtime(runtime::Verb),
    /// Look at the machines whose Docker engines run them.
    #[command(subcommand)]
    Node(node::Verb),
    /// Let runtimes take turns in a few slots, and see what that saves.
    #[command(subcommand)]
    Pool(pool::Verb),
    /// Look at webhooks and other requests that were sent, and send them again.
    #[command(subcommand)]
    Delivery(delivery::Verb),
    /// Look at subjects and their timelines, set facts, lock out and release.
    #[command(subcommand)]
    Subject(subject::Verb),
    /// Declare what is to be done to which subjects, and see how it goes.
    #[command(subcommand)]
    Process(process::Verb),
    /// See who did what to subjects, runtimes, queues, triggers and tokens.
    History(history::HistoryArgs),
    /// Look at workers.
    #[command(subcommand)]
    Worker(worker::Verb),
    /// Register, look at, try and fire triggers.
    #[command(subcommand)]
    Trigger(trigger::Verb),
    /// Publish on topics.
    #[command(subcommand)]
    Topic(topic::Verb),
    /// Read and write key-value collections.
    #[command(subcommand)]
    Kv(kv::Verb),
    /// Look at what failed for good, and play it again.
    #[command(subcommand)]
    DeadLetter(dead_letter::Verb),
    /// Look at known failures, name their causes, confirm and mute them.
    #[command(subcommand)]
    Signature(signature::Verb),
    /// Look at what fails, and run it again.
    #[command(subcommand)]
    Failures(failures::Verb),
    /// Report how long people wait for a first signal.
    #[command(subcommand)]
    Ttfs(ttfs::Verb),
    /// Run a program on each job of some queues.
    Work(work::WorkArgs),

    /// Print completions for a shell.
    Completions(completions::CompletionsArgs),
}

/// Runs one command to its end. An error is for `exit::report`.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Agent(args) => agent::run(*args).await,
        Command::Migrate(verb) => migrate::run(verb, cli.output).await,
        Command::Verify(database) => verify::run(&database, cli.output).await,
        Command::Doctor(args) => doctor::run(&args, cli.output).await,
        Command::Backup(args) => backup::back_up(&args, cli.output).await,
        Command::Restore(args) => backup::put_back(&args, cli.output).await,
        Command::Tenant(verb) => tenant::run(verb, cli.output).await,
        Command::Secret(verb) => secret::run(verb, cli.output).await,
        Command::Token(verb) => token::run(&cli.connection, verb, cli.output).await,
        Command::Bench(args) => bench::run(args, cli.output).await,
        Command::Job(verb) => job::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Queue(verb) => queue::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Runtime(verb) => runtime::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Node(verb) => node::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Pool(verb) => pool::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Delivery(verb) => delivery::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Subject(verb) => subject::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Process(verb) => process::run(&cli.connection.client()?, verb, cli.output).await,
        Command::History(args) => history::run(&cli.connection.client()?, args, cli.output).await,
        Command::Worker(verb) => worker::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Trigger(verb) => trigger::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Topic(verb) => topic::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Kv(verb) => kv::run(&cli.connection.client()?, verb, cli.output).await,
        Command::DeadLetter(verb) => dead_letter::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Signature(verb) => signature::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Failures(verb) => failures::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Ttfs(verb) => ttfs::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Work(args) => work::run(cli.connection.client()?, args).await,
        Command::Completions(args) => completions::run(&args),
    }
}

/// Where the server is and who asks.
#[derive(Args)]
pub(crate) struct Connection {
    /// The server's address; http://127.0.0.1:7717 unless given.
    #[arg(long, global = true, env = "WINDLASS_URL", hide_env_values = true)]
    url: Option<String>,
    /// The token. It is meant to come from the environment, where no process list shows it.
    #[arg(long, global = true, env = "WINDLASS_TOKEN", hide = true, hide_env_values = true)]
    token: Option<String>,
    /// Certificate authorities to trust beside the public ones, as PEM: for a server with a certificate of your own.
    #[arg(long, global = true, env = "WINDLASS_CA", value_name = "FILE")]
    ca: Option<PathBuf>,
}

const URL: &str = "http://127.0.0.1:7717";

impl Connection {
    /// Whether somebody said which server is meant.
    pub(crate) fn names_a_server(&self) -> bool {
        self.url.is_some()
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.as_ref().is_some_and(|token| !token.is_empty())
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        let mut builder = Client::builder(self.url.as_deref().unwrap_or(URL));
        if let Some(token) = self.token.as_deref().filter(|token| !token.is_empty()) {
            builder = builder.token(token);
        }
        if let Some(file) = &self.ca {
            let wrong = |error: std::io::Error| UsageError(format!("--ca {} cannot be read: {error}", file.display()));
            builder = builder.trust(std::fs::read(file).map_err(wrong)?);
        }
        Ok(builder.build()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// The arguments of a verb as somebody types them.
    pub(super) fn typed<A: Args>(words: &[&str]) -> A {
        let command = A::augment_args(clap::Command::new("windlass").no_binary_name(true));
        let matches = command.try_get_matches_from(words).expect("it is a command line");
        A::from_arg_matches(&matches).expect("clap has looked at it")
    }

    #[test]
    fn the_tree_of_commands_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_program_after_the_dashes_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["windlass", "work", "--queue", "q", "--", "sh", "-c", "exit 1", "--output"]);
        assert!(matches!(cli.unwrap().command, Command::Work(_)));
    }
}
