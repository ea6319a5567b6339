//! `windlass tenant`: creates tenants and sets quotas. Opens the database directly, also while a server is running.

use anyhow::bail;
use clap::{Args, Subcommand, ValueEnum};
use domain::Name;
use domain::limits::{PAGE_ITEMS, TENANTS};
use serde::Serialize;
use serde_json::json;
use store::Store;
use store::access::tenants::create::TenantCreated;
use store::access::tenants::delete::TenantDeleted;
use store::access::tenants::grant_db_role::RoleGranted;
use store::access::tenants::list::Tenant;
use store::access::tenants::quota::Quota;
use wire::{Page, Timestamp};

use crate::cli::exit::{Exit, NotFound, UsageError};
use crate::cli::list;
use crate::cli::migrate::{DatabaseArgs, check_schema};
use crate::cli::output;
use crate::cli::output::{Output, cell, relative};
use crate::cli::value::rate;

#[derive(Subcommand)]
pub(crate) enum TenantVerb {
    /// Create a tenant
    Create {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
    },
    /// List tenants with their quotas
    List {
        #[command(flatten)]
        database: DatabaseArgs,
    },
    /// Set quotas of a tenant; quotas that are not given keep their values
    Set(Box<TenantSetArgs>),
    /// Delete a tenant with everything it owns, also while servers run. If it is interrupted, run it again
    Delete {
        #[command(flatten)]
        database: DatabaseArgs,
        name: String,
        /// Confirm the loss of data
        #[arg(long)]
        yes: bool,
    },
    /// Map a PostgreSQL role to a tenant, so that `windlass.enqueue(…)` called by the role enqueues jobs of that tenant
    GrantDbRole {
        #[command(flatten)]
        database: DatabaseArgs,
        tenant: String,
        role: String,
    },
}

#[derive(Args)]
pub(crate) struct TenantSetArgs {
    #[command(flatten)]
    database: DatabaseArgs,
    name: String,
    /// Maximum number of scheduled and queued jobs
    #[arg(long, value_name = "N")]
    waiting_jobs: Option<u32>,
    /// Maximum number of jobs enqueued per second, on each node
    #[arg(long, value_name = "N", value_parser = rate)]
    jobs_per_s: Option<f64>,
    /// Maximum bytes of payload enqueued per second, on each node
    #[arg(long, value_name = "N", value_parser = rate)]
    payload_bytes_per_s: Option<f64>,
    /// Maximum number of triggers
    #[arg(long, value_name = "N")]
    triggers: Option<u32>,
    /// Maximum number of time-to-first-signal events recorded per minute, on each node
    #[arg(long, value_name = "N")]
    ttfs_events_per_min: Option<u32>,
    /// Jobs per turn that a worker of several tenants claims for this tenant, 1 to 100 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=100))]
    weight: Option<u32>,
    /// Remove a quota, or reset the weight to 1; may be repeated
    #[arg(long, value_enum, value_name = "SETTING")]
    unset: Vec<TenantSetting>,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
pub(crate) enum TenantSetting {
    WaitingJobs,
    JobsPerS,
    PayloadBytesPerS,
    Triggers,
    TtfsEventsPerMin,
    Weight,
}

impl TenantSetArgs {
    /// Returns the quota with the given settings changed.
    fn apply(&self, mut quota: Quota) -> Quota {
        for setting in &self.unset {
            match setting {
                TenantSetting::WaitingJobs => quota.waiting_jobs = None,
                TenantSetting::JobsPerS => quota.jobs_per_s = None,
                TenantSetting::PayloadBytesPerS => quota.payload_bytes_per_s = None,
                TenantSetting::Triggers => quota.triggers = None,
                TenantSetting::TtfsEventsPerMin => quota.ttfs_events_per_min = None,
                TenantSetting::Weight => quota.weight = None,
            }
        }
        Quota {
            waiting_jobs: self.waiting_jobs.map(i64::from).or(quota.waiting_jobs),
            jobs_per_s: self.jobs_per_s.or(quota.jobs_per_s),
            payload_bytes_per_s: self.payload_bytes_per_s.or(quota.payload_bytes_per_s),
            triggers: self.triggers.map(i64::from).or(quota.triggers),
            ttfs_events_per_min: self.ttfs_events_per_min.map(i64::from).or(quota.ttfs_events_per_min),
            weight: self.weight.map(i64::from).or(quota.weight),
        }
    }
}

/// A tenant with its quota. `None` means no limit.
#[derive(Serialize)]
struct TenantWithQuota {
    name: String,
    created_at: Timestamp,
    waiting_jobs: Option<i64>,
    jobs_per_s: Option<f64>,
    payload_bytes_per_s: Option<f64>,
    triggers: Option<i64>,
    ttfs_events_per_min: Option<i64>,
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
            ttfs_events_per_min: quota.ttfs_events_per_min,
            weight: quota.weight.unwrap_or(1),
        }
    }
}

pub(crate) async fn run(verb: TenantVerb, format: Output) -> anyhow::Result<Exit> {
    match verb {
        TenantVerb::Create { database, name } => create(&open(&database).await?, &name, format).await,
        TenantVerb::Set(args) => set(&open(&args.database).await?, &args, format).await,
        TenantVerb::List { database } => list(&open(&database).await?, format).await,
        TenantVerb::Delete { database, name, yes } => delete(&open(&database).await?, &name, yes, format).await,
        TenantVerb::GrantDbRole { database, tenant, role } => {
            grant(&open(&database).await?, &tenant, role, format).await
        }
    }
}

async fn open(database: &DatabaseArgs) -> anyhow::Result<Store> {
    let store = database.open_existing().await?;
    check_schema(&store).await?;
    Ok(store)
}

fn name(text: &str) -> Result<Name, UsageError> {
    Name::new(text).map_err(|error| UsageError(format!("tenant name {error}")))
}

fn no_tenant(text: &str) -> NotFound {
    NotFound(format!("no tenant {text}; create it with `windlass tenant create {text}`"))
}

async fn create(store: &Store, text: &str, format: Output) -> anyhow::Result<Exit> {
    let id = match store.create_tenant(name(text)?).await? {
        TenantCreated::Created(id) => id,
        TenantCreated::Exists(_) => bail!("tenant {text} already exists"),
        TenantCreated::TooMany => bail!("cannot create more than {TENANTS} tenants"),
    };
    match (format, store.tenant(id).await?) {
        (Output::Json, Some(tenant)) => output::json(&TenantWithQuota::new(&tenant, Quota::default()))?,
        _ => output::note(&format!(
            "Created tenant {text}. Create a token for it with `windlass token create --database … --tenant {text} …`."
        )),
    }
    Ok(Exit::Done)
}

async fn delete(store: &Store, text: &str, is_confirmed: bool, format: Output) -> anyhow::Result<Exit> {
    let name = name(text)?;
    if !is_confirmed {
        let what = format!("everything that tenant {text} owns will be lost; pass --yes to confirm");
        return Err(UsageError(what).into());
    }
    let progress = |table: &str, rows: u64| output::note(&format!("{table}: {rows} rows deleted"));
    match store.delete_tenant(name, "machine", progress).await? {
        TenantDeleted::Deleted { rows } => {
            let sentence =
                format!("Deleted tenant {text} with {rows} rows. Its large artifacts are deleted within two hours.");
            output::done(format, &sentence, &json!({"tenant": text, "deleted": true, "rows": rows}))?;
            Ok(Exit::Done)
        }
        TenantDeleted::NotFound => Err(NotFound(format!("no tenant {text}")).into()),
        TenantDeleted::BuiltIn => bail!("tenant {text} is part of every installation and cannot be deleted"),
        TenantDeleted::HasContainers(names) => bail!(
            "runtimes of tenant {text} have containers: {}; delete them first with `windlass runtime delete`",
            names.join(", ")
        ),
    }
}

// The store replaces all quotas at once, so read the current ones first and change only those that were given.
async fn set(store: &Store, args: &TenantSetArgs, format: Output) -> anyhow::Result<Exit> {
    let (text, name) = (&args.name, name(&args.name)?);
    let Some(id) = store.tenant_named(&name).await? else {
        return Err(no_tenant(text).into());
    };
    let quota = args.apply(store.quota_of(id).await?);
    store.set_quota(name, quota, "machine").await?;
    match (format, store.tenant(id).await?) {
        (Output::Json, Some(tenant)) => output::json(&TenantWithQuota::new(&tenant, quota))?,
        _ => output::note(&format!("Set the quotas of {text}. Every node enforces them within one second.")),
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
    let header = ["NAME", "AGE", "WAITING JOBS", "JOBS/S", "BYTES/S", "TRIGGERS", "TTFS/MIN", "WEIGHT"];
    list::print(format, &Page { items, next_cursor: None, partial: false }, "No tenants.", header, |tenant| {
        [
            cell(&tenant.name),
            cell(relative(tenant.created_at)),
            limit(tenant.waiting_jobs),
            limit(tenant.jobs_per_s),
            limit(tenant.payload_bytes_per_s),
            limit(tenant.triggers),
            limit(tenant.ttfs_events_per_min),
            cell(tenant.weight),
        ]
    })?;
    Ok(Exit::Done)
}

fn limit(limit: Option<impl ToString>) -> comfy_table::Cell {
    cell(limit.map_or("none".into(), |limit| limit.to_string()))
}

async fn grant(store: &Store, tenant: &str, role: String, format: Output) -> anyhow::Result<Exit> {
    match store.grant_db_role(name(tenant)?, role.clone()).await? {
        RoleGranted::Granted => {
            let sentence = format!("Mapped role {role} to tenant {tenant}: select windlass.enqueue(…)");
            output::done(format, &sentence, &json!({"tenant": tenant, "role": role, "granted": true}))?;
            Ok(Exit::Done)
        }
        RoleGranted::NoSuchTenant => Err(no_tenant(tenant).into()),
        RoleGranted::NoSuchRole => bail!("no database role {role}; create it with `create role {role} login`"),
        RoleGranted::NotPostgres => {
            Err(UsageError("database roles need PostgreSQL; this database is SQLite".into()).into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::tests::parse_args;

    fn check(flags: &[&str], before: Quota, after: Quota) {
        assert_eq!(parse_args::<TenantSetArgs>(&[&["small"], flags].concat()).apply(before), after, "{flags:?}");
    }

    /// Requirement Q12.
    #[test]
    fn an_unnamed_limit_is_unchanged_and_unset_removes_one() {
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
