//! A node takes an operation up: on the runtime's own node it begins, if there is a slot for it; an operation whose runtime
//! has no node yet gets one here, or is told why there is none.

use domain::runtime::placement::Nowhere;
use domain::runtime::{OperationCode, OperationKind, RuntimeStatus};
use domain::{JobId, TenantId};
use uuid::Uuid;

use crate::error::StoreError;
use crate::runtimes::request::asked_for;
use crate::runtimes::{Logged, Outcome, Runtime, get, known, logged, place};
use crate::secrets::Purpose;
use crate::store::Store;
use crate::tx::{Operation, Param, Sql, Tx};

/// What a claimed job of the queue turned out to be.
#[derive(Debug)]
pub enum Begun {
    Go(Box<Logged>, Box<Runtime>),
    /// There is no place for the runtime now. The operation is to be tried again.
    Nowhere(Box<Logged>, Nowhere),
    /// What is sealed in its environment does not open here.
    Unopened(Box<Logged>, String),
    /// It is another node's to do; the job waits for that one once it is given back.
    Elsewhere,
    /// One that was asked for after it is done: what was said last holds, and this one is not to be done any more.
    Overtaken(Box<Logged>, OperationKind),
    /// It ended before; only its job does not know.
    Over(Option<OperationCode>, Outcome),
    /// No operation stands behind the job, or its runtime is gone.
    Nothing,
}

impl Store {
    pub async fn begin_operation(&self, tenant: TenantId, job: JobId, node: &str) -> Result<Begun, StoreError> {
        let begun = self.write(Begin { tenant, job, node: node.to_owned() }).await?;
        Ok(match begun {
            Looked::At(Begun::Go(line, mut runtime)) if line.kind.brings_up() => {
                match self.open_environment(&mut runtime).await {
                    Ok(()) => Begun::Go(line, runtime),
                    Err(StoreError::Unusable(why)) => Begun::Unopened(line, why),
                    Err(error) => return Err(error),
                }
            }
            Looked::At(begun) => begun,
            Looked::For { line, node } => {
                let lane = self.lane_of_node(tenant, &node).await?;
                if self.write(HandOver { tenant, line, job, node, lane }).await? {
                    self.announce(&asked_for(tenant));
                }
                Begun::Elsewhere
            }
        })
    }

    /// Whoever starts the container needs what everyone else sees sealed.
    async fn open_environment(&self, runtime: &mut Runtime) -> Result<(), StoreError> {
        let Runtime { tenant, name, spec, .. } = runtime;
        for value in spec.env.values_mut() {
            *value = self.open_sealed(*tenant, Purpose::Environment { runtime: name.as_str() }, value).await?;
        }
        Ok(())
    }
}

struct Begin {
    tenant: TenantId,
    job: JobId,
    node: String,
}

enum Looked {
    At(Begun),
    /// This node should do it.
    For {
        line: Uuid,
        node: String,
    },
}

const OF_JOB: Sql =
    Sql::both(&["select id, tenant, runtime, kind, source, source_ref, actor, image_ref, container_id,
         outcome, error_code, error_message, requested_at, started_at, finished_at, correlation_id, job
     from operations where job = $1 and tenant = $2 order by id desc limit 1"]);
const BEGIN: Sql =
    Sql::both(&["update operations set started_at = coalesce(started_at, $2), node = coalesce(node, $3)
     where id = $1 and finished_at is null"]);

// Every try has a line of its own and the correlation of the first, so operations are told apart by that, and are in the
// order in which they were asked for.
const DONE_LATER: Sql = Sql::both(&["select kind from operations
     where tenant = $1 and runtime = $2 and id > $3 and correlation_id > $3 and outcome = 'success' and job is not null
     order by id desc limit 1"]);

impl Operation for Begin {
    type Output = Looked;

    // No tenant: whoever asks for a slot counts everybody's runtimes.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Looked, StoreError> {
        let row = tx.query_opt(&OF_JOB, &[Param::from(self.job), Param::Int(self.tenant.0)]).await?;
        let Some(mut line) = row.as_ref().map(logged).transpose()? else { return Ok(Looked::At(Begun::Nothing)) };
        if let Some(outcome) = line.outcome {
            return Ok(Looked::At(Begun::Over(line.error_code, outcome)));
        }
        if line.kind.brings_up() {
            place::lock(tx).await?;
        }
        let Some(runtime) = get::lock(tx, self.tenant, line.runtime.as_str()).await? else {
            return Ok(Looked::At(Begun::Nothing));
        };
        let is_here = runtime.node.as_ref().is_none_or(|node| *node == self.node);
        if is_here && let Some(later) = done_later(tx, &line).await? {
            return Ok(Looked::At(Begun::Overtaken(Box::new(line), later)));
        }
        let place = match &runtime.node {
            Some(node) if *node != self.node => Ok(node.clone()),
            Some(node) if line.kind.brings_up() && runtime.status != RuntimeStatus::Running => {
                place::has_room(tx, &runtime, node).await?.map(|()| node.clone())
            }
            None if line.kind.brings_up() => place::find(tx, &runtime, None).await?,
            // What has no container is stopped and removed wherever one is asked to.
            _ => Ok(self.node.clone()),
        };
        match place {
            Err(nowhere) => Ok(Looked::At(Begun::Nowhere(Box::new(line), nowhere))),
            Ok(node) if node != self.node => Ok(Looked::For { line: line.id, node }),
            Ok(node) => {
                if runtime.node.is_none() && line.kind.brings_up() {
                    place::bind(tx, &runtime, &node).await?;
                }
                let params = [Param::Uuid(line.id), Param::Time(tx.now()), Param::Text(&node)];
                tx.execute(&BEGIN, &params).await?;
                line.started_at = line.started_at.or(Some(tx.now()));
                Ok(Looked::At(Begun::Go(Box::new(line), Box::new(runtime))))
            }
        }
    }
}

/// What was asked for after this operation and is done.
async fn done_later(tx: &mut Tx<'_>, line: &Logged) -> Result<Option<OperationKind>, StoreError> {
    let params = [Param::Int(line.tenant.0), Param::Text(line.runtime.as_str()), Param::Uuid(line.correlation_id)];
    let row = tx.query_opt(&DONE_LATER, &params).await?;
    row.map(|row| known("operation", row.text(0)?, OperationKind::parse)).transpose()
}

/// Gives an operation to the node that should do it, while its job is in our hands.
struct HandOver {
    tenant: TenantId,
    line: Uuid,
    job: JobId,
    node: String,
    lane: i64,
}

const OPEN: Sql = Sql::both(&["select runtime from operations where id = $1 and finished_at is null"]);
const GIVE: Sql = Sql::both(&["update operations set node = $2 where id = $1 and finished_at is null"]);
pub(super) const TO_LANE: Sql =
    Sql::both(&["update jobs set lane = $2, version = version + 1, updated_at = $3 where id = $1"]);

impl Operation for HandOver {
    /// Whether it holds; if not, whoever takes the job next looks again.
    type Output = bool;

    // No tenant, as above.

    async fn run(&self, tx: &mut Tx<'_>) -> Result<bool, StoreError> {
        place::lock(tx).await?;
        let Some(row) = tx.query_opt(&OPEN, &[Param::Uuid(self.line)]).await? else { return Ok(false) };
        let Some(runtime) = get::lock(tx, self.tenant, &row.text(0)?).await? else { return Ok(false) };
        match &runtime.node {
            Some(node) if *node != self.node => return Ok(false),
            Some(_) => {}
            None => match place::find(tx, &runtime, Some(&self.node)).await? {
                Ok(node) => place::bind(tx, &runtime, &node).await?,
                Err(_) => return Ok(false),
            },
        }
        tx.execute(&GIVE, &[Param::Uuid(self.line), Param::Text(&self.node)]).await?;
        tx.execute(&TO_LANE, &[Param::from(self.job), Param::Int(self.lane), Param::Time(tx.now())]).await?;
        Ok(true)
    }
}
