//! `windlass token`: makes, lists and revokes tokens (X7).
//!
//! With `--database` it works on the machine's own database, beside a running server or without one: that is how the first
//! token comes about. Without it, but with a token at hand, it asks the server. It makes no database: a token in one that
//! nobody serves opens nothing.

use clap::builder::PossibleValuesParser;
use clap::{Args, Subcommand, ValueEnum};
use client::{Client, ClientError};
use domain::{Name, Right, Role};
use serde_json::json;
use store::tenants::create::TenantCreated;
use store::{DatabaseUrl, Store};
use uuid::Uuid;
use wire::{Page, Problem, Serves, Timestamp, TokenRequest, TokenView};

use super::Connection;
use super::exit::{self, Exit, UsageError};
use super::list;
use super::migrate::{beside_a_server, check_schema, make_schema, open_existing};
use super::output::{self, Output, cell, relative, relative_maybe};

const DATABASE: &str = "sqlite:windlass.db";
const TENANT: &str = "default";

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Make a token and print it, this once.
    Create(Box<CreateArgs>),
    /// List the tokens of a tenant.
    List {
        #[command(flatten)]
        place: PlaceArgs,
        /// Whose.
        #[arg(long)]
        tenant: Option<String>,
    },
    /// End tokens, at once and on every node.
    Revoke {
        #[command(flatten)]
        place: PlaceArgs,
        #[arg(required = true)]
        id: Vec<Uuid>,
    },
}

/// Where the tokens are.
#[derive(Args)]
pub(crate) struct PlaceArgs {
    /// The machine's own database: `sqlite:PATH` or `postgres://…`. Without it a WINDLASS_TOKEN is used at the server.
    #[arg(long, env = "WINDLASS_DATABASE", hide_env_values = true)]
    database: Option<String>,
}

#[derive(Args)]
pub(crate) struct CreateArgs {
    #[command(flatten)]
    place: PlaceArgs,
    /// Who will use it.
    #[arg(long)]
    name: String,
    #[arg(long, value_enum)]
    role: RoleArg,
    /// Whose; `default` unless given. On the machine a tenant that does not exist is made.
    #[arg(long)]
    tenant: Option<String>,
    /// A queue it reaches; all, unless given.
    #[arg(long = "queue", value_name = "NAME")]
    queues: Vec<String>,
    /// A right beside those of the role; docs/RIGHTS.md says what each opens. May be given again.
    #[arg(long = "right", value_name = "RIGHT", value_parser = grantable())]
    rights: Vec<String>,
    /// A tenant whose work a worker of the tenant `system` takes, or `*` for all.
    #[arg(long = "serves", value_name = "TENANT")]
    serves: Vec<String>,
    /// When it ends, like 2027-01-31T00:00:00Z.
    #[arg(long, value_name = "TIME")]
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

/// The rights that may be granted singly, which the help then lists.
fn grantable() -> PossibleValuesParser {
    PossibleValuesParser::new(Right::GRANTABLE.map(Right::as_str))
}

/// Who is asked.
enum Place {
    Machine(Box<Store>),
    Server(Client),
}

impl PlaceArgs {
    async fn open(&self, connection: &Connection) -> anyhow::Result<Place> {
        if self.database.is_none() && connection.has_token() {
            return Ok(Place::Server(connection.client()?));
        }
        // Another database than that server's would do what was asked, to no avail.
        if self.database.is_none() && connection.names_a_server() {
            let ways = "a server is asked with one of its tokens in WINDLASS_TOKEN; without one, name its database with \
                        --database, on its own machine";
            return Err(UsageError(ways.into()).into());
        }
        let url = DatabaseUrl::parse(self.database.as_deref().unwrap_or(DATABASE))?;
        Ok(Place::Machine(Box::new(open_existing(&url, beside_a_server()).await?)))
    }

    /// The same for those who only look at what a database holds already.
    async fn open_made(&self, connection: &Connection) -> anyhow::Result<Place> {
        let place = self.open(connection).await?;
        if let Place::Machine(store) = &place {
            check_schema(store).await?;
        }
        Ok(place)
    }
}

/// The same words, and the same exit codes, whoever was asked.
fn refused(problem: Problem) -> ClientError {
    ClientError::Problem(Box::new(problem))
}

pub(super) async fn run(connection: &Connection, verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Create(args) => create(connection, *args, format).await,
        Verb::List { place, tenant } => list(&place.open_made(connection).await?, tenant, format).await,
        Verb::Revoke { place, id } => {
            let place = place.open_made(connection).await?;
            // One that is not there must not keep the others alive.
            let mut worst = Exit::Done;
            for id in id {
                match revoke(&place, id).await {
                    Ok(()) => {
                        output::done(format, &format!("Token {id} was revoked."), &json!({"id": id, "revoked": true}))?;
                    }
                    Err(error) => worst = exit::report_of(error, &format!("cannot revoke {id}")),
                }
            }
            Ok(worst)
        }
    }
}

async fn revoke(place: &Place, id: Uuid) -> Result<(), ClientError> {
    match place {
        Place::Machine(store) => server::machine::revoke_token(store, id).await.map_err(refused),
        Place::Server(client) => client.revoke_token(id).await,
    }
}

async fn create(connection: &Connection, args: CreateArgs, format: Output) -> anyhow::Result<Exit> {
    let place = args.place.open(connection).await?;
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
    let created = match &place {
        Place::Machine(store) => {
            // The first token may be made before the first start.
            make_schema(store).await?;
            let tenant = request.tenant.get_or_insert_with(|| TENANT.into());
            if let Ok(tenant) = Name::new(tenant)
                && let TenantCreated::Created(_) = store.create_tenant(tenant.clone()).await?
            {
                output::note(&format!("The tenant {tenant} was made."));
            }
            server::machine::create_token(store, request).await.map_err(refused)?
        }
        Place::Server(client) => client.create_token(&request).await?,
    };
    match format {
        Output::Json => output::json(&created)?,
        Output::Table => {
            output::line(&created.token)?;
            output::note("Keep it: it is shown this once. Programs find it in WINDLASS_TOKEN.");
        }
    }
    Ok(Exit::Done)
}

async fn list(place: &Place, tenant: Option<String>, format: Output) -> anyhow::Result<Exit> {
    let items = match place {
        Place::Machine(store) => {
            server::machine::list_tokens(store, tenant.as_deref().unwrap_or(TENANT)).await.map_err(refused)?
        }
        Place::Server(client) => from_server(client, tenant.as_deref()).await?,
    };
    let header = ["ID", "NAME", "ROLE", "STATE", "RIGHTS", "QUEUES", "CREATED", "EXPIRES", "LAST USE"];
    list::print(format, &Page { items, next_cursor: None, partial: false }, "There are no tokens.", header, |token| {
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
