//! Records differences between the engine and the database: a container of this installation without a record, and a
//! record whose container is missing. Runtimes with an operation in flight are skipped. Called by the reconcile task of
//! each node.

use domain::runtimes::{
    HealthSource, HealthStatus, ImageRef, Observation, OperationKind, OperationSource, RuntimeSpec, RuntimeStatus,
};
use domain::{RuntimeName, TenantId, Time};

use crate::db::clock::new_uuid;
use crate::db::codec::to_json;
use crate::db::notifier::Topic;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::fleet::subjects;
use crate::fleet::timeline;
use crate::fleet::timeline::Entry;
use crate::runtimes::observe::Observe;
use crate::runtimes::request::INSERT;
use crate::runtimes::{OperationOutcome, codec, get};
use crate::store::Store;

/// A container of this installation, as reported by the engine.
#[derive(Clone, Debug)]
pub struct FoundContainer {
    pub tenant: TenantId,
    pub name: RuntimeName,
    pub container_id: String,
    pub image: String,
    pub running: bool,
    pub endpoint: Option<String>,
    pub state_path: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Adopted {
    Adopted,
    /// Nothing was changed: an operation is in flight, the record has another container, the tenant is unknown, or the
    /// image reference is invalid.
    Untouched,
}

impl Store {
    /// Binds a container to its record, and creates the record if there is none.
    pub async fn adopt_container(&self, node: &str, found: FoundContainer, why: &str) -> Result<Adopted, StoreError> {
        self.write(AdoptContainer { node: node.to_owned(), found, why: why.to_owned() }).await
    }

    /// Removes a missing container from its record, and records that it disappeared unless an operation stopped it.
    /// Returns false if the record names another container or an operation is in flight.
    pub async fn dispose_of_record(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        container_id: &str,
        why: &str,
    ) -> Result<bool, StoreError> {
        let seen = Observation {
            status: HealthStatus::ContainerDisappeared,
            source: HealthSource::Inspect,
            details: "there is no such container any more".into(),
            observed_at: self.clock().now(),
        };
        let (name, container_id, triggers) = (name.clone(), container_id.to_owned(), self.triggers_cache().clone());
        let disappearance = Observe { tenant, name, container_id, started_at: None, seen, triggers };
        let (disposed, has_outbox_rows) = self.write(UnbindContainer { disappearance, why: why.to_owned() }).await?;
        if has_outbox_rows {
            self.notifier().notify(Topic::Outbox);
        }
        Ok(disposed)
    }

    /// Logs the removal of a container of this installation that belonged to no runtime.
    pub async fn log_disposed(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        container_id: &str,
        why: &str,
    ) -> Result<(), StoreError> {
        let (name, container_id, why) = (name.clone(), container_id.to_owned(), why.to_owned());
        self.write(LogDisposal { tenant, name, container_id, why }).await
    }
}

const TENANT: Sql = Sql::both(&["select id from tenants where id = $1"]);
const INSERT_RUNTIME: Sql =
    Sql::both(&["insert into runtimes (tenant, name, spec, env, node, status, principal, created_at,
         updated_at)
     values ($1, $2, $3, $4, $5, $6, $7, $8, $8) on conflict do nothing"]);
const BIND: Sql = Sql::both(&["update runtimes set node = $3, container_id = $4, current_image = $5, endpoint = $6,
         state_path = $7, status = $8, started_at = coalesce(started_at, $9), removed_at = null, last_op_at = $9
     where tenant = $1 and name = $2"]);

struct AdoptContainer {
    node: String,
    found: FoundContainer,
    why: String,
}

impl Operation for AdoptContainer {
    type Output = Adopted;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Adopted, StoreError> {
        let FoundContainer { tenant, name, container_id, image, running, endpoint, state_path } = &self.found;
        if tx.query_opt(&TENANT, &[Param::Int(tenant.0)]).await?.is_none() {
            return Ok(Adopted::Untouched);
        }
        let now = tx.now();
        let id = [Param::Int(tenant.0), Param::Text(name.as_str())];
        match get::lock(tx, *tenant, name.as_str()).await? {
            Some(runtime) if runtime.in_flight.is_some() || runtime.container_id.is_some() => {
                return Ok(Adopted::Untouched);
            }
            Some(_) => {}
            None => {
                let Ok(image) = ImageRef::new(image) else { return Ok(Adopted::Untouched) };
                let (spec, env) = codec::write(&RuntimeSpec::of(image));
                let params = [
                    id[0],
                    id[1],
                    Param::Json(&spec),
                    Param::Json(&env),
                    Param::Text(&self.node),
                    Param::Text(RuntimeStatus::Removed.as_str()),
                    Param::Text("reconcile"),
                    Param::Time(now),
                ];
                tx.execute(&INSERT_RUNTIME, &params).await?;
                subjects::insert_missing(tx, *tenant, &[&name.subject()]).await?;
            }
        }
        let status = if *running { RuntimeStatus::Running } else { RuntimeStatus::Stopped };
        let params = [
            id[0],
            id[1],
            Param::Text(&self.node),
            Param::Text(container_id),
            Param::Text(image),
            Param::text(endpoint.as_deref()),
            Param::Text(state_path),
            Param::Text(status.as_str()),
            Param::Time(now),
        ];
        tx.execute(&BIND, &params).await?;
        log_decision(tx, *tenant, name, OperationKind::ReconcileAdopt, container_id, &self.why).await?;
        Ok(Adopted::Adopted)
    }
}

struct UnbindContainer {
    disappearance: Observe,
    why: String,
}

// The health remains, because it says how the container ended.
const UNBIND: Sql = Sql::both(&["update runtimes set status = 'removed', container_id = null, endpoint = null,
         removed_at = $3, last_op_at = $3
     where tenant = $1 and name = $2"]);

impl Operation for UnbindContainer {
    const READS_TRIGGER_VERSION: bool = true;
    /// Whether the record was changed, and whether a trigger receives the event.
    type Output = (bool, bool);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.disappearance.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, bool), StoreError> {
        let Observe { tenant, name, container_id, .. } = &self.disappearance;
        let Some(runtime) = get::lock(tx, *tenant, name.as_str()).await? else { return Ok((false, false)) };
        if runtime.in_flight.is_some() || runtime.container_id.as_deref() != Some(container_id.as_str()) {
            return Ok((false, false));
        }
        // Must run first, while the record still names the container.
        let (_, has_outbox_rows) = self.disappearance.record(tx, &runtime).await?;
        let now = Param::Time(tx.now());
        tx.execute(&UNBIND, &[Param::Int(tenant.0), Param::Text(name.as_str()), now]).await?;
        log_decision(tx, *tenant, name, OperationKind::ReconcileDispose, container_id, &self.why).await?;
        Ok((true, has_outbox_rows))
    }
}

struct LogDisposal {
    tenant: TenantId,
    name: RuntimeName,
    container_id: String,
    why: String,
}

impl Operation for LogDisposal {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let kind = OperationKind::ReconcileDispose;
        log_decision(tx, self.tenant, &self.name, kind, &self.container_id, &self.why).await
    }
}

/// Logs a decision and its reason in the operation log and on the subject's timeline.
async fn log_decision(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    name: &RuntimeName,
    kind: OperationKind,
    container_id: &str,
    why: &str,
) -> Result<(), StoreError> {
    let now: Time = tx.now();
    let id = new_uuid(now);
    let params = [
        Param::Uuid(id),
        Param::Int(tenant.0),
        Param::Text(name.as_str()),
        Param::Text(kind.as_str()),
        Param::Text(OperationSource::AutoReconcile.as_str()),
        Param::Text(why),
        Param::Text("reconcile"),
        Param::Null,
        Param::Text(container_id),
        Param::Text(OperationOutcome::Success.as_str()),
        Param::Null,
        Param::Null,
        Param::Time(now),
        Param::Time(now),
        Param::Time(now),
        Param::Uuid(id),
        Param::Null,
        Param::Null,
    ];
    tx.execute(&INSERT, &params).await?;
    let subject = name.subject();
    let detail = to_json(&serde_json::json!({"operation": id, "why": why, "container_id": container_id}));
    let entry = Entry {
        runtime: Some(name.as_str()),
        actor: Some("reconcile"),
        detail: Some(detail),
        ..Entry::of_subject(tenant, &subject, kind.as_str())
    };
    timeline::write(tx, &[entry]).await
}
