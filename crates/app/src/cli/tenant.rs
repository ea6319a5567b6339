//! `windlass tenant`: tenants are made and limited at the machine, beside a running server or without one (X6, Q12).

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use domain::Name;
use domain::limits::{PAGE_ITEMS, TENANTS};
use serde::Serialize;
use serde_json::json;
use store::Store;
use store::tenants::create::TenantCreated;
use store::tenants::grant_db_role::RoleGranted;
use store::tenants::list::Tenant;
use store::tenants::quota::Quota;
use wire::{Page, Timestamp};

use super::exit::{Exit, NotFound, UsageError};
use super::list;
use super::migrate::{DatabaseArgs, check_schema};
use super::output::{self, Output, cell, relative};
use super::value::rate;

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
    /// Limit what a tenant may use; what is not named stays as it is.
    Set(Box<SetArgs>),
    /// Let a role of the PostgreSQL database speak for a tenant in SQL: `windlass.enqueue(…)` then makes that tenant's jobs.
    GrantDbRole {
        #[command(flatten)]
        database: DatabaseArgs,
        tenant: String,
        role: String,
    },
}

#[derive(Args)]
pub(crate) struct SetArgs {
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
    /// Lift a limit, or put the weight back to one.
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<Setting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum Setting {
    WaitingJobs,
    JobsPerS,
    PayloadBytesPerS,
    Triggers,
    Weight,
}

impl SetArgs {
    /// The quota with what was named here changed.
    fn over(&self, mut quota: Quota) -> Quota {
        for setting in &self.unset {
            match setting {
                Setting::WaitingJobs => quota.waiting_jobs = None,
                Setting::JobsPerS => quota.jobs_per_s = None,
                Setting::PayloadBytesPerS => quota.payload_bytes_per_s = None,
                Setting::Triggers => quota.triggers = None,
                Setting::Weight => quota.weight = None,
            }
        }
        Quota {
            waiting_jobs: self.waiting_jobs.map(i64::from).or(quota.waiting_jobs),
            jobs_per_s: self.jobs_per_s.or(quota.jobs_per_s),
            payload_bytes_per_s: self.payload_bytes_per_s.or(quota.payload_bytes_per_s),
            triggers: self.triggers.map(i64::from).or(quota.triggers),
            weight: self.weight.map(i64::from).or(quota.weight),
        }
    }
}

/// A tenant with what it may use; where there is no number there is no limit.
#[derive(Serialize)]
struct TenantWithQuota {
    name: String,
    created_at: Timestamp,
    waiting_jobs: Option<i64>,
    jobs_per_s: Option<f64>,
    payload_bytes_per_s: Option<f64>,
    triggers: Option<i64>,
    weight: i64,
}

impl TenantWithQuota {
    fn new(tenant: &Tenant, quota: Quota) -> Self {
        Self {
            name: tenant.name.to_string(),
            created_at: Timestamp::from_microsecond(tenant.created_at.micros()).unwrap_or_default(),
            waiting_jobs: quota.waiting_jobs,
            jobs_per_s: quota.jobs_per_s,
            payload_bytes_per_s: quota.payload_bytes_per_s,
            triggers: quota.triggers,
            weight: quota.weight.unwrap_or(1),
        }
    }
}

pub(super) async fn run(verb: Verb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        Verb::Create { database, name } => create(&open(&database).await?, &name, format).await,
        Verb::Set(args) => set(&open(&args.database).await?, &args, format).await,
        Verb::List { database } => list(&open(&database).await?, format).await,
        Verb::GrantDbRole { database, tenant, role } => grant(&open(&database).await?, &tenant, role, format).await,
    }
}

async fn open(database: &DatabaseArgs) -> anyhow::Result<Store> {
    let store = database.open_existing().await?;
    check_schema(&store).await?;
    Ok(store)
}

fn name(text: &str) -> Result<Name, UsageError> {
    Name::new(text).map_err(|error| UsageError(format!("the tenant's name {error}")))
}

fn no_tenant(text: &str) -> NotFound {
    NotFound(format!("there is no tenant {text}: windlass tenant create {text}"))
}

async fn create(store: &Store, text: &str, format: Output) -> anyhow::Result<Exit> {
    let id = match store.create_tenant(name(text)?).await? {
        TenantCreated::Created(id) => id,
        TenantCreated::Exists(_) => bail!("there is a tenant {text} already"),
        TenantCreated::TooMany => bail!("there may be at most {TENANTS} tenants"),
    };
    match (format, store.tenant(id).await?) {
        (Output::Json, Some(tenant)) => output::json(&TenantWithQuota::new(&tenant, Quota::default()))?,
        _ => output::note(&format!(
            "The tenant {text} was made. Next: windlass token create --database … --tenant {text} …"
        )),
    }
    Ok(Exit::Done)
}

/// All of a tenant's quotas are stored at once, and a person means the named ones: so the present ones are read first.
async fn set(store: &Store, args: &SetArgs, format: Output) -> anyhow::Result<Exit> {
    let (text, name) = (&args.name, name(&args.name)?);
    let Some(id) = store.tenant_named(&name).await? else {
        return Err(no_tenant(text).into());
    };
    let quota = args.over(store.quota_of(id).await?);
    store.set_quota(name, quota, "machine").await?;
    match (format, store.tenant(id).await?) {
        (Output::Json, Some(tenant)) => output::json(&TenantWithQuota::new(&tenant, quota))?,
        _ => output::note(&format!("The quotas of {text} were set; every node keeps to them within a second.")),
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
    let quotas = store.quotas().await?;
    let quota = |tenant: &Tenant| quotas.get(&tenant.id).copied().unwrap_or_default();
    let items: Vec<_> = tenants.iter().map(|tenant| TenantWithQuota::new(tenant, quota(tenant))).collect();
    let header = ["NAME", "AGE", "WAITING JOBS", "JOBS/S", "BYTES/S", "TRIGGERS", "WEIGHT"];
    list::print(
        format,
        &Page { items, next_cursor: None, partial: false },
        "There are no tenants.",
        header,
        |tenant| {
            [
                cell(&tenant.name),
                cell(relative(tenant.created_at)),
                limit(tenant.waiting_jobs),
                limit(tenant.jobs_per_s),
                limit(tenant.payload_bytes_per_s),
                limit(tenant.triggers),
                cell(tenant.weight),
            ]
        },
    )?;
    Ok(Exit::Done)
}

fn limit(limit: Option<impl ToString>) -> comfy_table::Cell {
    cell(limit.map_or("none".into(), |limit| limit.to_string()))
}

async fn grant(store: &Store, tenant: &str, role: String, format: Output) -> anyhow::Result<Exit> {
    match store.grant_db_role(name(tenant)?, role.clone()).await? {
        RoleGranted::Granted => {
            let sentence = format!("The database role {role} now speaks for {tenant}: select windlass.enqueue(…)");
            output::done(format, &sentence, &json!({"tenant": tenant, "role": role, "granted": true}))?;
            Ok(Exit::Done)
        }
        RoleGranted::NoSuchTenant => Err(no_tenant(tenant).into()),
        RoleGranted::NoSuchRole => bail!("the database has no role {role}: create role {role} login"),
        RoleGranted::NotPostgres => Err(UsageError("SQLite has no roles: this is for PostgreSQL".into()).into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::typed;

    fn check(flags: &[&str], before: Quota, after: Quota) {
        assert_eq!(typed::<SetArgs>(&[&["small"], flags].concat()).over(before), after, "{flags:?}");
    }

    #[test]
    fn q12_a_limit_that_is_not_named_stays_and_one_is_lifted_by_name() {
        let before = Quota { waiting_jobs: Some(10), weight: Some(3), ..Quota::default() };
        check(&[], before, before);
        check(&["--triggers", "2"], before, Quota { triggers: Some(2), ..before });
        check(&["--waiting-jobs", "20"], before, Quota { waiting_jobs: Some(20), ..before });
        check(&["--unset", "waiting_jobs"], before, Quota { waiting_jobs: None, ..before });
        check(
            &["--unset", "weight", "--jobs-per-s", "0.5"],
            before,
            Quota { weight: None, jobs_per_s: Some(0.5), ..before },
        );
    }
}
