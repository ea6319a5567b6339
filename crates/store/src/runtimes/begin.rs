//! Begins an operation on a node that has claimed its job. On the runtime's own node the operation begins if a slot is
//! free. A runtime without a node is placed first. Called by the runtime worker of each node.

use domain::runtimes::placement::PlacementError;
use domain::runtimes::{OperationCode, OperationKind, RuntimeStatus};
use domain::{JobId, TenantId};
use uuid::Uuid;

use crate::access::secrets::Purpose;
use crate::db::tx::{Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::request::operation_requested;
use crate::runtimes::{OperationOutcome, OperationRecord, Runtime, get, operation_record, parsed, place};
use crate::store::Store;

/// What to do with a claimed operation job.
#[derive(Debug)]
pub enum BeginOutcome {
    /// Run the operation on this node.
    Proceed(Box<OperationRecord>, Box<Runtime>),
    /// No node can take the runtime now. The operation must be retried later.
    Unplaceable(Box<OperationRecord>, PlacementError),
    /// This node cannot decrypt the secrets in the runtime's environment.
    SecretsUnreadable(Box<OperationRecord>, String),
    /// Another node must run the operation. The job waits for that node once it is released.
    OtherNode,
    /// An operation requested later is already done. The last request wins, so this one must not run any more.
    Superseded(Box<OperationRecord>, OperationKind),
    /// The operation ended before, but its job was not settled.
    AlreadyEnded(Option<OperationCode>, OperationOutcome),
    /// The job belongs to no operation, or its runtime was deleted.
    NotFound,
}

impl Store {
    /// Begins the operation of a job that `node` has claimed, and decrypts its environment.
    pub async fn begin_operation(&self, tenant: TenantId, job: JobId, node: &str) -> Result<BeginOutcome, StoreError> {
        let assignment = self.write(BeginOperation { tenant, job, node: node.to_owned() }).await?;
        Ok(match assignment {
            Assignment::Here(BeginOutcome::Proceed(operation, mut runtime)) if operation.kind.brings_up() => {
                match self.open_environment(&mut runtime).await {
                    Ok(()) => BeginOutcome::Proceed(operation, runtime),
                    Err(StoreError::Unusable(why)) => BeginOutcome::SecretsUnreadable(operation, why),
                    Err(error) => return Err(error),
                }
            }
            Assignment::Here(outcome) => outcome,
            Assignment::To { operation, node } => {
                let lane = self.lane_of_node(tenant, &node).await?;
                if self.write(ReassignOperation { tenant, operation, job, node, lane }).await? {
                    self.announce(&operation_requested(tenant));
                }
                BeginOutcome::OtherNode
            }
        })
    }

    /// Decrypts the environment. Only the node that starts the container gets plain values.
    async fn open_environment(&self, runtime: &mut Runtime) -> Result<(), StoreError> {
        let Runtime { tenant, name, spec, .. } = runtime;
        for value in spec.env.values_mut() {
            *value = self.open_sealed(*tenant, Purpose::Environment { runtime: name.as_str() }, value).await?;
        }
        Ok(())
    }
}

struct BeginOperation {
    tenant: TenantId,
    job: JobId,
    node: String,
}

/// Where an operation runs.
enum Assignment {
    /// On this node, or nowhere.
    Here(BeginOutcome),
    /// On another node, which must get the job.
    To { operation: Uuid, node: String },
}

const OF_JOB: Sql =
    Sql::both(&["select id, tenant, runtime, kind, source, source_ref, actor, image_ref, container_id,
         outcome, error_code, error_message, requested_at, started_at, finished_at, correlation_id, job
     from operations where job = $1 and tenant = $2 order by id desc limit 1"]);
const BEGIN: Sql =
    Sql::both(&["update operations set started_at = coalesce(started_at, $2), node = coalesce(node, $3)
     where id = $1 and finished_at is null"]);

// Every attempt has its own row and the correlation id of the first attempt. So operations are distinguished by the
// correlation id, which is a UUIDv7 and sorts them in the order of their requests.
const LATER_SUCCESS: Sql = Sql::both(&["select kind from operations
     where tenant = $1 and runtime = $2 and id > $3 and correlation_id > $3 and outcome = 'success' and job is not null
     order by id desc limit 1"]);

impl Operation for BeginOperation {
    type Output = Assignment;

    // No tenant, because the slots of a node are shared by the runtimes of all tenants.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Assignment, StoreError> {
        let row = tx.query_opt(&OF_JOB, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        let Some(mut operation) = row.as_ref().map(operation_record).transpose()? else {
            return Ok(Assignment::Here(BeginOutcome::NotFound));
        };
        if let Some(outcome) = operation.outcome {
            return Ok(Assignment::Here(BeginOutcome::AlreadyEnded(operation.error_code, outcome)));
        }
        if operation.kind.brings_up() {
            place::lock(tx).await?;
        }
        let Some(runtime) = get::lock(tx, self.tenant, operation.runtime.as_str()).await? else {
            return Ok(Assignment::Here(BeginOutcome::NotFound));
        };
        let is_local = runtime.node.as_ref().is_none_or(|node| *node == self.node);
        if is_local && let Some(later) = later_success(tx, &operation).await? {
            return Ok(Assignment::Here(BeginOutcome::Superseded(Box::new(operation), later)));
        }
        let placement = match &runtime.node {
            Some(node) if *node != self.node => Ok(node.clone()),
            Some(node) if operation.kind.brings_up() && runtime.status != RuntimeStatus::Running => {
                place::has_free_slot(tx, &runtime, node).await?.map(|()| node.clone())
            }
            None if operation.kind.brings_up() => place::find(tx, &runtime, None).await?,
            // A runtime without a container can be stopped or removed on any node.
            _ => Ok(self.node.clone()),
        };
        match placement {
            Err(error) => Ok(Assignment::Here(BeginOutcome::Unplaceable(Box::new(operation), error))),
            Ok(node) if node != self.node => Ok(Assignment::To { operation: operation.id, node }),
            Ok(node) => {
                if runtime.node.is_none() && operation.kind.brings_up() {
                    place::bind(tx, &runtime, &node).await?;
                }
                let params = [Param::Uuid(operation.id), Param::Time(tx.now()), Param::Text(&node)];
                tx.execute(&BEGIN, &params).await?;
                operation.started_at = operation.started_at.or(Some(tx.now()));
                Ok(Assignment::Here(BeginOutcome::Proceed(Box::new(operation), Box::new(runtime))))
            }
        }
    }
}

/// Returns the kind of a successful operation that was requested after this one.
async fn later_success(tx: &mut Tx<'_>, operation: &OperationRecord) -> Result<Option<OperationKind>, StoreError> {
    let params = [
        Param::Int(operation.tenant.0),
        Param::Text(operation.runtime.as_str()),
        Param::Uuid(operation.correlation_id),
    ];
    let row = tx.query_opt(&LATER_SUCCESS, &params).await?;
    row.map(|row| parsed("operation", row.text("kind")?, OperationKind::parse)).transpose()
}

/// Moves an operation and its job to the node that must run it, while this node holds the job's claim.
struct ReassignOperation {
    tenant: TenantId,
    operation: Uuid,
    job: JobId,
    node: String,
    lane: i64,
}

const OPEN: Sql = Sql::both(&["select runtime from operations where id = $1 and finished_at is null"]);
const ASSIGN: Sql = Sql::both(&["update operations set node = $2 where id = $1 and finished_at is null"]);
pub(super) const TO_LANE: Sql =
    Sql::both(&["update jobs set lane = $2, version = version + 1, updated_at = $3 where id = $1"]);

impl Operation for ReassignOperation {
    /// False if the placement is no longer valid; the next node that claims the job tries again.
    type Output = bool;

    // No tenant, for the same reason as above.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        place::lock(tx).await?;
        let Some(row) = tx.query_opt(&OPEN, &[Param::Uuid(self.operation)]).await? else { return Ok(false) };
        let Some(runtime) = get::lock(tx, self.tenant, &row.text("runtime")?).await? else { return Ok(false) };
        match &runtime.node {
            Some(node) if *node != self.node => return Ok(false),
            Some(_) => {}
            None => match place::find(tx, &runtime, Some(&self.node)).await? {
                Ok(node) => place::bind(tx, &runtime, &node).await?,
                Err(_) => return Ok(false),
            },
        }
        tx.execute(&ASSIGN, &[Param::Uuid(self.operation), Param::Text(&self.node)]).await?;
        tx.execute(&TO_LANE, &[Param::from(self.job), Param::Int(self.lane), Param::Time(tx.now())]).await?;
        Ok(true)
    }
}
