//! The command tree, noun then verb. Each noun has a file of its own.

pub(crate) mod access;
mod backup;
pub(crate) mod bench;
pub(crate) mod complete;
mod completions;
mod doctor;
pub(crate) mod drive;
mod examples;
pub(crate) mod exit;
pub(crate) mod fleet;
pub(crate) mod id_argument;
mod list;
mod man;
mod mcp;
mod migrate;
pub(crate) mod output;
mod ping;
pub(crate) mod queue;
mod reference;
pub(crate) mod runtimes;
pub(crate) mod serve;
pub(crate) mod setup;
pub(crate) mod signals;
mod top;
pub(crate) mod triggers;
mod value;
mod verify;
pub(crate) mod workflows;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand};
use client::{Client, ClientBuilder};

use exit::{Exit, UsageError};
use output::Output;

/// Heading of the options that every command accepts.
const GLOBAL: &str = "Global options";

/// A durable job queue with leased fleet work, triggers and container runtimes
#[derive(Parser)]
#[command(name = "windlass", version, arg_required_else_help = true, after_help = exit::HELP)]
pub(crate) struct Cli {
    /// Output format: `table` for people, `json` for programs
    #[arg(long, global = true, value_enum, default_value_t = Output::Table, value_name = "FORMAT", help_heading = GLOBAL)]
    pub(crate) output: Output,
    #[command(flatten)]
    pub(crate) connection: Connection,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    // Commands that open a database.
    /// Run the server: API, dashboard and engine
    Serve(Box<serve::ServeArgs>),
    /// Manage this machine's Docker engine for servers on the same PostgreSQL database
    Agent(Box<crate::cli::runtimes::agent::AgentArgs>),
    /// Run or revert database migrations
    #[command(subcommand)]
    Migrate(migrate::MigrateVerb),
    /// Check all data invariants of a database, also while a server is running
    Verify(migrate::DatabaseArgs),
    /// Check configuration, versions, disk and clocks for problems
    Doctor(doctor::DoctorArgs),
    /// Copy a SQLite database, also while it is in use, and verify the copy
    Backup(backup::BackupArgs),
    /// Restore a backup to a path without a database, and verify it
    Restore(backup::RestoreArgs),
    /// Create, limit and list tenants, and map PostgreSQL roles to them
    #[command(subcommand)]
    Tenant(crate::cli::access::tenant::TenantVerb),
    /// Rotate the key that encrypts secrets, or discard secrets after its loss
    #[command(subcommand)]
    Secret(crate::cli::access::secret::SecretVerb),
    /// Create, list and revoke tokens, in a database or through a server
    #[command(subcommand)]
    Token(crate::cli::access::token::TokenVerb),
    /// Measure throughput and latency on this machine
    Bench(bench::BenchArgs),

    // Commands that call a server over HTTP.
    /// Check that a server is ready
    Ping(ping::PingArgs),
    /// Push, show, cancel and retry jobs
    #[command(subcommand)]
    Job(crate::cli::queue::job::JobVerb),
    /// Start, show, watch, cancel and retry runs of jobs with dependencies
    #[command(subcommand)]
    Run(crate::cli::workflows::run::RunVerb),
    /// Show, configure, pause and resume queues
    #[command(subcommand)]
    Queue(crate::cli::queue::queues::QueueVerb),
    /// Declare, start, stop and inspect container runtimes
    #[command(subcommand)]
    Runtime(crate::cli::runtimes::runtime::RuntimeVerb),
    /// List the nodes with Docker engines for runtimes
    #[command(subcommand)]
    Node(crate::cli::runtimes::node::NodeVerb),
    /// Share a number of slots among runtimes
    #[command(subcommand)]
    Pool(crate::cli::runtimes::pool::PoolVerb),
    /// Show and repeat outgoing webhooks and HTTP requests
    #[command(subcommand)]
    Delivery(crate::cli::triggers::delivery::DeliveryVerb),
    /// Show subjects and their history, set facts, lock out and release
    #[command(subcommand)]
    Subject(crate::cli::fleet::subject::SubjectVerb),
    /// Declare processes, which create jobs for eligible subjects
    #[command(subcommand)]
    Process(crate::cli::fleet::process::ProcessVerb),
    /// Show changes to subjects, runtimes, queues, triggers and tokens
    History(crate::cli::access::history::HistoryArgs),
    /// List and remove workers
    #[command(subcommand)]
    Worker(crate::cli::queue::worker::WorkerVerb),
    /// Create, show, test and fire triggers
    #[command(subcommand)]
    Trigger(crate::cli::triggers::trigger::TriggerVerb),
    /// Publish messages on topics
    #[command(subcommand)]
    Topic(crate::cli::triggers::topic::TopicVerb),
    /// Read and write key-value collections
    #[command(subcommand)]
    Kv(crate::cli::triggers::kv::KvVerb),
    /// Show, replay and resolve dead letters
    #[command(subcommand)]
    DeadLetter(crate::cli::triggers::dead_letter::DeadLetterVerb),
    /// Manage failure signatures: causes, confirmation, muting
    #[command(subcommand)]
    Signature(crate::cli::signals::signature::SignatureVerb),
    /// Show failure groups and replay their jobs
    #[command(subcommand)]
    Failures(crate::cli::signals::failures::FailureVerb),
    /// Report the time to first signal (TTFS)
    #[command(subcommand)]
    Ttfs(crate::cli::signals::ttfs::TtfsVerb),
    /// Create, change and remove queues, triggers, processes, pools, runtimes and tokens as a file declares them
    Apply(setup::ApplyArgs),
    /// Write a file for `apply` with what the server has
    Export(setup::ExportArgs),
    /// Serve the Model Context Protocol (MCP), so that an assistant can work with jobs
    Mcp(mcp::McpArgs),
    /// Show queues, workers and jobs live in the terminal
    Top(top::TopArgs),
    /// Run a program as a worker of one or more queues
    Work(crate::cli::queue::work::WorkArgs),

    /// Print a shell completion script
    Completions(completions::CompletionsArgs),
    /// Write manual pages to a directory
    #[command(hide = true)]
    Man(man::ManArgs),
    /// Print a page of the reference documentation as Markdown
    #[command(hide = true)]
    Reference(reference::ReferenceArgs),
}

/// The command tree with examples in its help.
pub(crate) fn command() -> clap::Command {
    examples::attach(<Cli as clap::CommandFactory>::command())
}

/// Runs one command. The caller passes an error to `exit::report`.
pub(crate) async fn run(cli: Cli) -> anyhow::Result<Exit> {
    let address = cli.connection.address();
    execute(cli).await.map_err(|error| exit::with_address(error, &address))
}

async fn execute(cli: Cli) -> anyhow::Result<Exit> {
    match cli.command {
        Command::Serve(args) => serve::run(*args).await,
        Command::Agent(args) => crate::cli::runtimes::agent::run(*args).await,
        Command::Migrate(verb) => migrate::run(verb, cli.output).await,
        Command::Verify(database) => verify::run(&database, cli.output).await,
        Command::Doctor(args) => doctor::run(&args, cli.output).await,
        Command::Backup(args) => backup::back_up(&args, cli.output).await,
        Command::Restore(args) => backup::put_back(&args, cli.output).await,
        Command::Tenant(verb) => crate::cli::access::tenant::run(verb, cli.output).await,
        Command::Secret(verb) => crate::cli::access::secret::run(verb, cli.output).await,
        Command::Token(verb) => crate::cli::access::token::run(&cli.connection, verb, cli.output).await,
        Command::Bench(args) => bench::run(args, cli.output).await,
        Command::Ping(args) => ping::run(&cli.connection.client()?, &args, cli.output).await,
        Command::Job(verb) => crate::cli::queue::job::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Run(verb) => crate::cli::workflows::run::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Queue(verb) => crate::cli::queue::queues::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Runtime(verb) => crate::cli::runtimes::runtime::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Node(verb) => crate::cli::runtimes::node::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Pool(verb) => crate::cli::runtimes::pool::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Delivery(verb) => {
            crate::cli::triggers::delivery::run(&cli.connection.client()?, verb, cli.output).await
        }
        Command::Subject(verb) => crate::cli::fleet::subject::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Process(verb) => crate::cli::fleet::process::run(&cli.connection.client()?, verb, cli.output).await,
        Command::History(args) => crate::cli::access::history::run(&cli.connection.client()?, args, cli.output).await,
        Command::Worker(verb) => crate::cli::queue::worker::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Trigger(verb) => crate::cli::triggers::trigger::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Topic(verb) => crate::cli::triggers::topic::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Kv(verb) => crate::cli::triggers::kv::run(&cli.connection.client()?, verb, cli.output).await,
        Command::DeadLetter(verb) => {
            crate::cli::triggers::dead_letter::run(&cli.connection.client()?, verb, cli.output).await
        }
        Command::Signature(verb) => {
            crate::cli::signals::signature::run(&cli.connection.client()?, verb, cli.output).await
        }
        Command::Failures(verb) => {
            crate::cli::signals::failures::run(&cli.connection.client()?, verb, cli.output).await
        }
        Command::Ttfs(verb) => crate::cli::signals::ttfs::run(&cli.connection.client()?, verb, cli.output).await,
        Command::Apply(args) => setup::apply(&cli.connection.client()?, args, cli.output).await,
        Command::Export(args) => setup::export(&cli.connection.client()?, args, cli.output).await,
        Command::Mcp(args) => mcp::run(&cli.connection, args).await,
        Command::Top(args) => top::run(&cli.connection.client()?, args, cli.output).await,
        Command::Work(args) => crate::cli::queue::work::run(cli.connection.client()?, args).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
        Command::Reference(args) => reference::run(&args),
    }
}

/// The server's address and credentials.
#[derive(Args, Clone)]
pub(crate) struct Connection {
    /// Address of the server [default: http://127.0.0.1:7717]
    #[arg(long, global = true, env = "WINDLASS_URL", hide_env_values = true, help_heading = GLOBAL)]
    url: Option<String>,
    /// Token. Set WINDLASS_TOKEN instead: a flag is visible in process listings
    #[arg(long, global = true, env = "WINDLASS_TOKEN", hide = true, hide_env_values = true, help_heading = GLOBAL)]
    token: Option<String>,
    /// File with the token, for example a mounted secret
    #[arg(long, global = true, env = "WINDLASS_TOKEN_FILE", value_name = "FILE", help_heading = GLOBAL)]
    token_file: Option<PathBuf>,
    /// Additional certificate authorities to trust, as PEM, for a server with a private certificate
    #[arg(long, global = true, env = "WINDLASS_CA", value_name = "FILE", help_heading = GLOBAL)]
    ca: Option<PathBuf>,
}

const URL: &str = "http://127.0.0.1:7717";

impl Connection {
    /// True if the user named a server.
    pub(crate) fn names_a_server(&self) -> bool {
        self.url.is_some()
    }

    pub(crate) fn has_token(&self) -> bool {
        self.token.as_ref().is_some_and(|token| !token.is_empty()) || self.token_file.is_some()
    }

    /// The token of the flag, else the content of the file.
    fn token(&self) -> Result<Option<String>, UsageError> {
        let given = self.token.clone().filter(|token| !token.is_empty());
        let (None, Some(file)) = (&given, &self.token_file) else { return Ok(given) };
        let text = std::fs::read_to_string(file)
            .map_err(|error| UsageError(format!("cannot read --token-file {}: {error}", file.display())))?;
        Ok(Some(text.trim().to_owned()))
    }

    fn url(&self) -> &str {
        self.url.as_deref().unwrap_or(URL)
    }

    /// The server's scheme, host and port for messages, without a user name and password.
    fn address(&self) -> String {
        let (scheme, rest) = self.url().split_once("://").unwrap_or(("http", self.url()));
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let host = authority.rsplit('@').next().unwrap_or_default();
        format!("{scheme}://{host}")
    }

    /// Returns an error that shows the URL as it must be written. The client would read `host:7717` as a scheme.
    fn check_url(&self) -> Result<(), UsageError> {
        let url = self.url();
        match url.split_once("://") {
            Some(("http" | "https", rest)) if !rest.is_empty() => Ok(()),
            Some(("http" | "https", _)) => Err(UsageError(format!("--url {url} names no server; use {URL}"))),
            Some((scheme, _)) => {
                Err(UsageError(format!("--url has the scheme {scheme}; it must start with http:// or https://")))
            }
            None if url.starts_with(':') => {
                Err(UsageError(format!("--url {url} names no host; use http://127.0.0.1{url}")))
            }
            // A user name and a password must not appear in a message.
            None if url.contains('@') => {
                Err(UsageError("--url has no scheme; it must start with http:// or https://".into()))
            }
            None => Err(UsageError(format!("--url {url} has no scheme; use http://{url}"))),
        }
    }

    pub(crate) fn client(&self) -> anyhow::Result<Client> {
        self.client_with_token(self.token()?)
    }

    /// A client with another token than that of the command line.
    pub(crate) fn client_with_token(&self, token: Option<String>) -> anyhow::Result<Client> {
        Ok(self.builder(token)?.build()?)
    }

    /// A client that gives up early if the server cannot be reached.
    pub(crate) fn client_with_connect_timeout(&self, connect_timeout: Duration) -> anyhow::Result<Client> {
        Ok(self.builder(self.token()?)?.connect_timeout(connect_timeout).build()?)
    }

    fn builder(&self, token: Option<String>) -> anyhow::Result<ClientBuilder> {
        self.check_url()?;
        let mut builder = Client::builder(self.url());
        if let Some(token) = token {
            builder = builder.token(token);
        }
        if let Some(file) = &self.ca {
            let wrong = |error: std::io::Error| UsageError(format!("cannot read --ca {}: {error}", file.display()));
            builder = builder.trust(std::fs::read(file).map_err(wrong)?);
        }
        Ok(builder)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Parses a verb's arguments as typed on a command line.
    pub(super) fn parse_args<A: Args>(words: &[&str]) -> A {
        let command = A::augment_args(clap::Command::new("windlass").no_binary_name(true));
        let matches = command.try_get_matches_from(words).expect("it is a command line");
        A::from_arg_matches(&matches).expect("clap has validated it")
    }

    #[test]
    fn an_address_in_a_message_has_no_password() {
        let address =
            |url: &str| Connection { url: Some(url.into()), token: None, token_file: None, ca: None }.address();
        assert_eq!(address("https://me:s3cret@jobs.example:8443/path?x#y"), "https://jobs.example:8443");
        assert_eq!(address("http://127.0.0.1:7717"), "http://127.0.0.1:7717");
    }

    #[test]
    fn a_url_without_a_scheme_is_shown_as_it_must_be_written() {
        let check = |url: &str| {
            let connection = Connection { url: Some(url.into()), token: None, token_file: None, ca: None };
            connection.check_url().map_err(|error| error.to_string())
        };
        assert_eq!(check("http://127.0.0.1:7717"), Ok(()));
        assert_eq!(
            check("jobs.example:7717").unwrap_err(),
            "--url jobs.example:7717 has no scheme; use http://jobs.example:7717"
        );
        assert_eq!(check(":7717").unwrap_err(), "--url :7717 names no host; use http://127.0.0.1:7717");
        assert!(check("ftp://x").unwrap_err().contains("the scheme ftp"));
        assert!(check("http://").unwrap_err().contains("names no server"));
        assert!(!check("me:s3cret@host").unwrap_err().contains("s3cret"));
    }

    #[test]
    fn the_command_tree_is_valid() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_program_after_the_dashes_keeps_its_own_flags() {
        let cli = Cli::try_parse_from(["windlass", "work", "--queue", "q", "--", "sh", "-c", "exit 1", "--output"]);
        assert!(matches!(cli.unwrap().command, Command::Work(_)));
    }
}
