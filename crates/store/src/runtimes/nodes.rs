//! Nodes that drive a container engine. Each sends heartbeats with its labels, its slots and the fault of its engine,
//! if any.

use std::collections::BTreeMap;

use domain::Time;
use domain::limits::NODE_HEARTBEAT_S;

use crate::db::codec::{from_json, to_json};
use crate::db::tx::{Operation, Param, Row, Sql, Tx};
use crate::error::StoreError;
use crate::runtimes::place;
use crate::store::Store;

/// What a node offers to runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOffer {
    pub labels: BTreeMap<String, String>,
    /// Maximum number of runtimes at a time; unlimited if `None`.
    pub slots: Option<i64>,
}

/// A node that drives an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNode {
    pub name: String,
    pub offer: NodeOffer,
    /// Why its engine cannot be reached; `None` if it can.
    pub fault: Option<String>,
    pub seen_at: Time,
}

/// A node without a heartbeat for this long is lost: three heartbeats.
pub const LOST_AFTER_S: i64 = 3 * NODE_HEARTBEAT_S;

impl EngineNode {
    /// True if the node has missed three heartbeats. Its runtimes are then shown as unavailable.
    pub fn is_lost(&self, now: Time) -> bool {
        now.ms_since(self.seen_at) > LOST_AFTER_S * 1_000
    }
}

impl Store {
    /// Records a heartbeat of a node.
    pub async fn beat_engine_node(
        &self,
        name: &str,
        offer: NodeOffer,
        fault: Option<String>,
    ) -> Result<(), StoreError> {
        self.write(RecordNodeHeartbeat {
            name: name.to_owned(),
            labels: to_json(&offer.labels),
            slots: offer.slots,
            fault,
        })
        .await
    }

    /// Returns all nodes, ordered by name.
    pub async fn engine_nodes(&self) -> Result<Vec<EngineNode>, StoreError> {
        self.read(ListNodes).await
    }

    /// Returns all nodes ordered by name, each with the number of its used slots.
    pub async fn engine_nodes_with_load(&self) -> Result<Vec<(EngineNode, i64)>, StoreError> {
        self.read(ListNodesWithLoad).await
    }
}

struct RecordNodeHeartbeat {
    name: String,
    labels: String,
    slots: Option<i64>,
    fault: Option<String>,
}

const BEAT: Sql =
    Sql::both(&["insert into engine_nodes (name, labels, slots, fault, seen_at) values ($1, $2, $3, $4, $5)
     on conflict (name) do update set labels = excluded.labels, slots = excluded.slots, fault = excluded.fault,
         seen_at = excluded.seen_at"]);
const LIST: Sql = Sql::both(&["select name, labels, slots, fault, seen_at from engine_nodes order by name"]);

impl Operation for RecordNodeHeartbeat {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let params = [
            Param::Text(&self.name),
            Param::Json(&self.labels),
            Param::int(self.slots),
            Param::text(self.fault.as_deref()),
            Param::Time(tx.now()),
        ];
        tx.execute(&BEAT, &params).await.map(|_| ())
    }
}

fn node(row: &Row) -> Result<EngineNode, StoreError> {
    Ok(EngineNode {
        name: row.text("name")?,
        offer: NodeOffer { labels: from_json(&row.text("labels")?)?, slots: row.opt_int("slots")? },
        fault: row.opt_text("fault")?,
        seen_at: row.time("seen_at")?,
    })
}

/// Reads all nodes within a transaction, ordered by name.
pub(super) async fn all(tx: &mut Tx<'_>) -> Result<Vec<EngineNode>, StoreError> {
    tx.query(&LIST, &[]).await?.iter().map(node).collect()
}

struct ListNodes;

impl Operation for ListNodes {
    type Output = Vec<EngineNode>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EngineNode>, StoreError> {
        all(tx).await
    }
}

struct ListNodesWithLoad;

impl Operation for ListNodesWithLoad {
    type Output = Vec<(EngineNode, i64)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let used = place::used_slots(tx, place::SlotUse::Started, None).await?;
        let load = |node: EngineNode| {
            let used = used.get(&node.name).copied().unwrap_or(0);
            (node, used)
        };
        Ok(all(tx).await?.into_iter().map(load).collect())
    }
}
