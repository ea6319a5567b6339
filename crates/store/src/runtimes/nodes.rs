//! Nodes that drive an engine: each says now and then that it is there, what it has to offer, and whether its engine is well.

use std::collections::BTreeMap;

use domain::Time;
use domain::limits::NODE_BEAT_S;

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::runtimes::place;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

/// What a node has for runtimes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeOffer {
    pub labels: BTreeMap<String, String>,
    /// Runtimes that it takes at once; no bound, when `None`.
    pub slots: Option<i64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNode {
    pub name: String,
    pub offer: NodeOffer,
    /// Why its engine cannot be reached.
    pub fault: Option<String>,
    pub seen_at: Time,
}

/// How long a node may be silent before it is taken for lost: three beats.
pub const LOST_AFTER_S: i64 = 3 * NODE_BEAT_S;

impl EngineNode {
    /// Silent for three beats: its runtimes are shown as unavailable.
    pub fn is_lost(&self, now: Time) -> bool {
        now.ms_since(self.seen_at) > LOST_AFTER_S * 1_000
    }
}

impl Store {
    pub async fn beat_engine_node(
        &self,
        name: &str,
        offer: NodeOffer,
        fault: Option<String>,
    ) -> Result<(), StoreError> {
        self.write(Beat { name: name.to_owned(), labels: to_json(&offer.labels), slots: offer.slots, fault }).await
    }

    /// By name.
    pub async fn engine_nodes(&self) -> Result<Vec<EngineNode>, StoreError> {
        self.read(List).await
    }

    /// By name, each with the number of its slots that are taken.
    pub async fn engine_nodes_with_load(&self) -> Result<Vec<(EngineNode, i64)>, StoreError> {
        self.read(WithLoad).await
    }
}

struct Beat {
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

impl Operation for Beat {
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
        name: row.text(0)?,
        offer: NodeOffer { labels: from_json(&row.text(1)?)?, slots: row.opt_int(2)? },
        fault: row.opt_text(3)?,
        seen_at: row.time(4)?,
    })
}

/// Reads them within a transaction.
pub(super) async fn all(tx: &mut Tx<'_>) -> Result<Vec<EngineNode>, StoreError> {
    tx.query(&LIST, &[]).await?.iter().map(node).collect()
}

struct List;

impl Operation for List {
    type Output = Vec<EngineNode>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Vec<EngineNode>, StoreError> {
        all(tx).await
    }
}

struct WithLoad;

impl Operation for WithLoad {
    type Output = Vec<(EngineNode, i64)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        let taken = place::taken(tx, place::Counted::Begun, None).await?;
        let load = |node: EngineNode| {
            let taken = taken.get(&node.name).copied().unwrap_or(0);
            (node, taken)
        };
        Ok(all(tx).await?.into_iter().map(load).collect())
    }
}
