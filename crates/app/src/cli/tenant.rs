//! `windlass tenant`: tenants are made at the machine, beside a running server or without one (X6).

use anyhow::bail;
use clap::Subcommand;
use domain::Name;
use domain::limits::{PAGE_ITEMS, TENANTS};
use store::Store;
use store::tenants::create::TenantCreated;
use store::tenants::grant_db_role::RoleGranted;
use store::tenants::list::Tenant;
use store::tenants::quota::Quota;
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
    /// Limit what a tenant may use; what is not named has no limit.
    Set {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
        /// Jobs that may be scheduled or queued at once.
        #[arg(long, value_name = "N")]
        waiting_jobs: Option<u32>,
        /// Jobs that may come in in a second, on each node.
        #[arg(long, value_name = "N", value_parser = rate)]
        jobs_per_s: Option<f64>,
        /// Bytes of payload that may come in in a second, on each node.
        #[arg(long, value_name = "N", value_parser = rate)]
        payload_bytes_per_s: Option<f64>,
        /// Triggers that it may have.
        #[arg(long, value_name = "N")]
        triggers: Option<u32>,
        /// Jobs it gets in its turn from a worker that serves several tenants, 1 to 100; the others get one.
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
        weight: Option<u32>,
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
        Verb::Set { database, name: text, waiting_jobs, jobs_per_s, payload_bytes_per_s, triggers, weight } => {
            let quota = Quota {
                waiting_jobs: waiting_jobs.map(i64::from),
                jobs_per_s,
                payload_bytes_per_s,
                triggers: triggers.map(i64::from),
                weight: weight.map(i64::from),
            };
            if !open(&database).await?.set_quota(name(&text)?, quota, "machine").await? {
                bail!("there is no tenant {text}: windlass tenant create {text}");
            }
            output::note(&format!("The quotas of {text} were set; every node keeps to them within a second."));
            Ok(Exit::Done)
        }
        Verb::List { database } => list(&open(&database).await?, format).await,
        Verb::GrantDbRole { database, tenant, role } => grant(&open(&database).await?, &tenant, role).await,
    }
}

/// A rate of nothing would be a lock, which a quota is not.
fn rate(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(rate) if rate.is_finite() && rate > 0.0 => Ok(rate),
        _ => Err("must be a number above 0".into()),
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
