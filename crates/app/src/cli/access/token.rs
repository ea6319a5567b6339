//! `windlass token`: creates, lists and revokes tokens.
//!
//! With `--database` it opens the database directly, also while a server is running; this is how the first token is
//! created. Without it, and with a token in WINDLASS_TOKEN, it calls the server. It never creates a SQLite file: a
//! token in a database without a server would be useless.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use client::{Client, ClientError};
use domain::{Name, Right, Role};
use serde_json::json;
use store::access::tenants::create::TenantCreated;
use store::access::tokens::create::random_token;
use store::{DatabaseUrl, Store};
use uuid::Uuid;
use wire::{Page, Problem, Serves, Timestamp, TokenRequest, TokenView};

use crate::cli::Connection;
use crate::cli::exit;
use crate::cli::exit::{Exit, UsageError};
use crate::cli::id_argument::IdArgument;
use crate::cli::list;
use crate::cli::migrate::{check_schema, make_schema, open_existing, shared};
use crate::cli::output;
use crate::cli::output::{Output, cell, relative, relative_maybe};
use crate::cli::value::time;

const DATABASE: &str = "sqlite:windlass.db";
const TENANT: &str = "default";

#[derive(Subcommand)]
pub(crate) enum TokenVerb {
    /// Create a token and print it. It cannot be shown again
    Create(Box<TokenCreateArgs>),
    /// Print a random token without creating it, for `windlass serve --bootstrap-token-file`
    Generate,
    /// List the tokens of a tenant
    List {
        #[command(flatten)]
        backend: TokenBackendArgs,
        /// Tenant of the tokens
        #[arg(long)]
        tenant: Option<String>,
    },
    /// Revoke tokens, immediately and on every node
    Revoke {
        #[command(flatten)]
        backend: TokenBackendArgs,
        #[arg(required = true)]
        id: Vec<IdArgument>,
    },
}

/// Where the tokens are stored.
#[derive(Args)]
pub(crate) struct TokenBackendArgs {
    /// Open this database: `sqlite:PATH` or `postgres://…`. Without it, WINDLASS_TOKEN is used to call the server
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true)]
    database: Option<String>,
}

#[derive(Args)]
pub(crate) struct TokenCreateArgs {
    #[command(flatten)]
    backend: TokenBackendArgs,
    /// Principal that uses the token
    #[arg(long)]
    name: String,
    #[arg(long, value_enum)]
    role: RoleArg,
    /// Tenant of the token; with --database, a missing tenant is created [default: default]
    #[arg(long)]
    tenant: Option<String>,
    /// Restrict the token to this queue; may be repeated [default: all queues]
    #[arg(long = "queue", value_name = "NAME")]
    queues: Vec<String>,
    /// Grant a right in addition to those of the role (see docs/reference/rights.md); may be repeated
    #[arg(long = "right", value_name = "RIGHT", value_parser = grantable())]
    rights: Vec<String>,
    /// Tenant that a worker of the tenant `system` claims jobs of, or `*` for all; may be repeated
    #[arg(long = "serves", value_name = "TENANT")]
    serves: Vec<String>,
    /// Expiry time, for example 2027-01-31T00:00:00Z [default: never]
    #[arg(long, value_name = "TIME", value_parser = time)]
    expires_at: Option<Timestamp>,
}

#[derive(Clone, Copy, ValueEnum)]
pub(crate) enum RoleArg {
    Admin,
    Operator,
    Producer,
    Worker,
    Viewer,
}

impl RoleArg {
    fn role(self) -> Role {
        match self {
            RoleArg::Admin => Role::Admin,
            RoleArg::Operator => Role::Operator,
            RoleArg::Producer => Role::Producer,
            RoleArg::Worker => Role::Worker,
            RoleArg::Viewer => Role::Viewer,
        }
    }
}

/// The rights that can be granted individually; clap lists them in the help.
fn grantable() -> PossibleValuesParser {
    PossibleValuesParser::new(Right::GRANTABLE.map(Right::as_str))
}

/// Where a command runs.
enum TokenBackend {
    Database(Box<Store>),
    Server(Client),
}

impl TokenBackendArgs {
    async fn open(&self, connection: &Connection) -> anyhow::Result<TokenBackend> {
        if self.database.is_none() && connection.has_token() {
            return Ok(TokenBackend::Server(connection.client()?));
        }
        // A default database would not be the one of the given server.
        if self.database.is_none() && connection.names_a_server() {
            let ways = "to call the server, set WINDLASS_TOKEN to one of its tokens; to open its database directly, run this \
                        on the server's machine with --database";
            return Err(UsageError(ways.into()).into());
        }
        let url = DatabaseUrl::parse(self.database.as_deref().unwrap_or(DATABASE))?;
        Ok(TokenBackend::Database(Box::new(open_existing(&url, shared()).await?)))
    }

    /// Like `open`, but returns an error if the database lacks this version's schema.
    async fn open_with_schema(&self, connection: &Connection) -> anyhow::Result<TokenBackend> {
        let backend = self.open(connection).await?;
        if let TokenBackend::Database(store) = &backend {
            check_schema(store).await?;
        }
        Ok(backend)
    }
}

/// Wraps a problem as the error that the client would return, so that messages and exit codes are the same.
fn refused(problem: Problem) -> ClientError {
    ClientError::Problem(Box::new(problem))
}

pub(crate) async fn run(connection: &Connection, verb: TokenVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        TokenVerb::Create(args) => create(connection, *args, format).await,
        TokenVerb::Generate => {
            output::line(random_token().as_str())?;
            Ok(Exit::Done)
        }
        TokenVerb::List { backend, tenant } => list(&backend.open_with_schema(connection).await?, tenant, format).await,
        TokenVerb::Revoke { backend, id } => {
            let backend = backend.open_with_schema(connection).await?;
            // An unknown id must not prevent the revocation of the others.
            let mut worst = Exit::Done;
            for id in id {
                match revoke(&backend, &id).await {
                    Ok(id) => {
                        output::done(format, &format!("Revoked token {id}."), &json!({"id": id, "revoked": true}))?;
                    }
                    Err(error) => worst = exit::report_of(error, &format!("cannot revoke {id}")),
                }
            }
            Ok(worst)
        }
    }
}

async fn revoke(backend: &TokenBackend, id: &IdArgument) -> anyhow::Result<Uuid> {
    let tokens = async |_: Option<&str>| {
        let items = match backend {
            TokenBackend::Database(store) => {
                server::access::local_admin::list_tokens(store, TENANT).await.map_err(refused)?
            }
            TokenBackend::Server(client) => from_server(client, None).await?,
        };
        Ok(Page { items, next_cursor: None, partial: false })
    };
    let id = id.search("token", tokens, |token: &TokenView| (token.id, token.name.clone())).await?;
    match backend {
        TokenBackend::Database(store) => server::access::local_admin::revoke_token(store, id).await.map_err(refused)?,
        TokenBackend::Server(client) => client.revoke_token(id).await?,
    }
    Ok(id)
}

async fn create(connection: &Connection, args: TokenCreateArgs, format: Output) -> anyhow::Result<Exit> {
    let backend = args.backend.open(connection).await?;
    let serves = match args.serves.as_slice() {
        [] => None,
        [star] if star == "*" => Some(Serves::Everyone(star.clone())),
        tenants => Some(Serves::Tenants(tenants.to_vec())),
    };
    let mut request = TokenRequest {
        name: args.name,
        role: args.role.role().to_string(),
        tenant: args.tenant,
        queues: Some(args.queues).filter(|queues| !queues.is_empty()),
        rights: Some(args.rights).filter(|rights| !rights.is_empty()),
        serves,
        expires_at: args.expires_at,
    };
    let created = match &backend {
        TokenBackend::Database(store) => {
            // The first token may be created before the server's first start.
            make_schema(store).await?;
            let tenant = request.tenant.get_or_insert_with(|| TENANT.into());
            if let Ok(tenant) = Name::new(tenant)
                && let TenantCreated::Created(_) = store.create_tenant(tenant.clone()).await?
            {
                output::note(&format!("Created tenant {tenant}."));
            }
            server::access::local_admin::create_token(store, request).await.map_err(refused)?
        }
        TokenBackend::Server(client) => client.create_token(&request).await?,
    };
    match format {
        Output::Json => output::json(&created)?,
        Output::Table => {
            output::line(&created.token)?;
            output::note("Store the token now: it cannot be shown again. Programs read it from WINDLASS_TOKEN.");
        }
    }
    Ok(Exit::Done)
}

async fn list(backend: &TokenBackend, tenant: Option<String>, format: Output) -> anyhow::Result<Exit> {
    let items = match backend {
        TokenBackend::Database(store) => {
            server::access::local_admin::list_tokens(store, tenant.as_deref().unwrap_or(TENANT))
                .await
                .map_err(refused)?
        }
        TokenBackend::Server(client) => from_server(client, tenant.as_deref()).await?,
    };
    let header = ["ID", "NAME", "ROLE", "STATE", "RIGHTS", "QUEUES", "CREATED", "EXPIRES", "LAST USE"];
    list::print(format, &Page { items, next_cursor: None, partial: false }, "No tokens.", header, |token| {
        [
            cell(token.id),
            cell(&token.name),
            cell(&token.role),
            output::state(&token.state),
            cell(token.rights.join(", ")),
            cell(token.queues.as_ref().map_or("all".into(), |queues| queues.join(", "))),
            cell(relative(token.created_at)),
            cell(token.expires_at.map_or("never".into(), output::moment)),
            cell(relative_maybe(token.last_used_at)),
        ]
    })?;
    Ok(Exit::Done)
}

async fn from_server(client: &Client, tenant: Option<&str>) -> Result<Vec<TokenView>, ClientError> {
    Ok(list::every_page(async |cursor| client.tokens(tenant, cursor).await).await?.items)
}
