//! `windlass tenant`: tenants are made at the machine, beside a running server or without one (X6).

use anyhow::bail;
use clap::Subcommand;
use domain::Name;
use domain::limits::{PAGE_ITEMS, TENANTS};
use store::Store;
use store::tenants::create::TenantCreated;
use store::tenants::grant_db_role::RoleGranted;
use store::tenants::list::Tenant;
use wire::{Page, TenantView, Timestamp};

use super::exit::{Exit, UsageError};
use super::migrate::DatabaseArgs;
use super::output::{self, Listing, Output, cell, relative};

#[derive(Subcommand)]
pub(crate) enum Verb {
    /// Make a tenant.
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
    },
    /// List tenants.
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Let a role of the PostgreSQL database speak for a tenant in SQL: `windlass.enqueue(…)` then makes that tenant's jobs.
    GrantDbRole {
        #[command(flatten)]
        database: DatabaseArgs,
        tenant: String,
        role: String,
    },
}

pub(super) async fn run(verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Create { database, name } => create(&open(&database).await?, &name, format).await,
        Verb::List { database } => list(&open(&database).await?, format).await,
        Verb::GrantDbRole { database, tenant, role } => grant(&open(&database).await?, &tenant, role).await,
    }
}

async fn open(database: &DatabaseArgs) -> anyhow::Result<Store> {
    let store = database.open().await?;
    store.migrate_up().await?;
    Ok(store)
}

fn name(text: &str) -> Result<Name, UsageError> {
    Name::new(text).map_err(|error| UsageError(format!("the tenant's name {error}")))
}

async fn create(store: &Store, text: &str, format: Output) -> anyhow::Result<Exit> {
    let id = match store.create_tenant(name(text)?).await? {
        TenantCreated::Created(id) => id,
        TenantCreated::Exists(_) => bail!("there is a tenant {text} already"),
        TenantCreated::TooMany => bail!("there may be at most {TENANTS} tenants"),
    };
    match (format, store.tenant(id).await?) {
        (Output::Json, Some(tenant)) => output::json(&view(tenant))?,
        _ => output::note(&format!("The tenant {text} was made. Next: windlass token create --tenant {text} …")),
    }
    Ok(Exit::Done)
}

async fn list(store: &Store, format: Output) -> anyhow::Result<Exit> {
    let mut tenants: Vec<Tenant> = Vec::new();
    loop {
        let after = tenants.last().map(|last| last.name.clone());
        let more = store.list_tenants(after, PAGE_ITEMS).await?;
        if more.is_empty() {
            break;
        }
        tenants.extend(more);
    }
    let items: Vec<TenantView> = tenants.into_iter().map(view).collect();
    if format == Output::Json {
        output::json(&Page { items, next_cursor: None, partial: false })?;
        return Ok(Exit::Done);
    }
    let mut listing = Listing::new(&["NAME", "AGE"]);
    items.iter().for_each(|tenant| listing.row([cell(&tenant.name), cell(relative(tenant.created_at))]));
    listing.print()?;
    Ok(Exit::Done)
}

fn view(tenant: Tenant) -> TenantView {
    let created_at = Timestamp::from_microsecond(tenant.created_at.micros()).unwrap_or_default();
    TenantView { name: tenant.name.to_string(), created_at }
}

async fn grant(store: &Store, tenant: &str, role: String) -> anyhow::Result<Exit> {
    match store.grant_db_role(name(tenant)?, role.clone()).await? {
        RoleGranted::Granted => {
            output::note(&format!("The database role {role} now speaks for {tenant}: select windlass.enqueue(…)"));
            Ok(Exit::Done)
        }
        RoleGranted::NoSuchTenant => bail!("there is no tenant {tenant}: windlass tenant create {tenant}"),
        RoleGranted::NoSuchRole => bail!("the database has no role {role}: create role {role} login"),
        RoleGranted::NotPostgres => Err(UsageError("SQLite has no roles: this is for PostgreSQL".into()).into()),
    }
}
