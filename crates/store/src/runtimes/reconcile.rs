//! Writes down what was found on an engine and nobody knew: a container of ours without a record, a record without its
//! container (R5). What is in flight is left to whoever does it.

use domain::runtime::{
    HealthSource, HealthStatus, ImageRef, Observation, OperationKind, OperationSource, RuntimeSpec, RuntimeStatus,
};
use domain::{RuntimeName, TenantId, Time};

use crate::clock::new_uuid;
use crate::codec::to_json;
use crate::error::StoreError;
use crate::hints::Topic;
use crate::runtimes::observe::Observe;
use crate::runtimes::request::INSERT;
use crate::runtimes::{Outcome, codec, get};
use crate::store::Store;
use crate::subjects;
use crate::timeline::{self, Entry};
use crate::tx::{Operation, Param, Sql, Tx};

/// A container of this installation, as the engine tells of it.
#[derive(Clone, Debug)]
pub struct Found {
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
    /// An operation is under way, or the record has a container of its own, or the tenant is unknown.
    LeftAlone,
}

impl Store {
    /// Binds a container to its record, which is made where there is none.
    pub async fn adopt_container(&self, node: &str, found: Found, why: &str) -> Result<Adopted, StoreError> {
        self.write(Adopt { node: node.to_owned(), found, why: why.to_owned() }).await
    }

    /// Takes the container off a record that names one which is gone, and says that it has disappeared, unless it was we who
    /// stopped it. Whether that was so.
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
        let gone = Observe { tenant, name, container_id, started_at: None, seen, triggers };
        let (disposed, heard) = self.write(Dispose { gone, why: why.to_owned() }).await?;
        if heard {
            self.hints().tell(Topic::Outbox);
        }
        Ok(disposed)
    }

    /// A container of ours that belongs to nothing was removed.
    pub async fn log_disposed(
        &self,
        tenant: TenantId,
        name: &RuntimeName,
        container_id: &str,
        why: &str,
    ) -> Result<(), StoreError> {
        let (name, container_id, why) = (name.clone(), container_id.to_owned(), why.to_owned());
        self.write(Note { tenant, name, container_id, why }).await
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

struct Adopt {
    node: String,
    found: Found,
    why: String,
}

impl Operation for Adopt {
    type Output = Adopted;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Adopted, StoreError> {
        let Found { tenant, name, container_id, image, running, endpoint, state_path } = &self.found;
        if tx.query_opt(&TENANT, &[Param::Int(tenant.0)]).await?.is_none() {
            return Ok(Adopted::LeftAlone);
        }
        let now = tx.now();
        let id = [Param::Int(tenant.0), Param::Text(name.as_str())];
        match get::lock(tx, *tenant, name.as_str()).await? {
            Some(runtime) if runtime.in_flight.is_some() || runtime.container_id.is_some() => {
                return Ok(Adopted::LeftAlone);
            }
            Some(_) => {}
            None => {
                let Ok(image) = ImageRef::new(image) else { return Ok(Adopted::LeftAlone) };
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
                subjects::make(tx, *tenant, &[&name.subject()]).await?;
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
        write_down(tx, *tenant, name, OperationKind::ReconcileAdopt, container_id, &self.why).await?;
        Ok(Adopted::Adopted)
    }
}

struct Dispose {
    gone: Observe,
    why: String,
}

// The health stays: it says how the container went.
const UNBIND: Sql = Sql::both(&["update runtimes set status = 'removed', container_id = null, endpoint = null,
         removed_at = $3, last_op_at = $3
     where tenant = $1 and name = $2"]);

impl Operation for Dispose {
    const WATCHES_TRIGGERS: bool = true;
    /// Whether it was disposed of, and whether a trigger heard that its container is gone.
    type Output = (bool, bool);

    fn tenant(&self) -> Option<TenantId> {
        Some(self.gone.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(bool, bool), StoreError> {
        let Observe { tenant, name, container_id, .. } = &self.gone;
        let Some(runtime) = get::lock(tx, *tenant, name.as_str()).await? else { return Ok((false, false)) };
        if runtime.in_flight.is_some() || runtime.container_id.as_deref() != Some(container_id.as_str()) {
            return Ok((false, false));
        }
        // First, while the record still names the container that is spoken of.
        let (_, heard) = self.gone.note(tx, &runtime).await?;
        let now = Param::Time(tx.now());
        tx.execute(&UNBIND, &[Param::Int(tenant.0), Param::Text(name.as_str()), now]).await?;
        write_down(tx, *tenant, name, OperationKind::ReconcileDispose, container_id, &self.why).await?;
        Ok((true, heard))
    }
}

struct Note {
    tenant: TenantId,
    name: RuntimeName,
    container_id: String,
    why: String,
}

impl Operation for Note {
    type Output = ();

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let kind = OperationKind::ReconcileDispose;
        write_down(tx, self.tenant, &self.name, kind, &self.container_id, &self.why).await
    }
}

/// The decision and its reason, in the log of operations and on the subject's timeline.
async fn write_down(
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
        Param::Text(Outcome::Success.as_str()),
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
