//! Nodes that drive an engine: each says now and then that it is there and whether its engine is.

use std::collections::BTreeMap;

use domain::Time;
use domain::limits::NODE_BEAT_S;

use crate::codec::{from_json, to_json};
use crate::error::StoreError;
use crate::store::Store;
use crate::tx::{Operation, Param, Row, Sql, Tx};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineNode {
    pub name: String,
    pub labels: BTreeMap<String, String>,
    /// Why its engine cannot be reached.
    pub fault: Option<String>,
    pub seen_at: Time,
}

impl EngineNode {
    /// Silent for three beats: its runtimes are shown as unavailable.
    pub fn is_lost(&self, now: Time) -> bool {
        now.ms_since(self.seen_at) > 3 * NODE_BEAT_S * 1_000
    }
}

impl Store {
    pub async fn beat_engine_node(
        &self,
        name: &str,
        labels: BTreeMap<String, String>,
        fault: Option<String>,
    ) -> Result<(), StoreError> {
        self.write(Beat { name: name.to_owned(), labels: to_json(&labels), fault }).await
    }

    pub async fn engine_nodes(&self) -> Result<Vec<EngineNode>, StoreError> {
        self.read(List).await
    }
}

struct Beat {
    name: String,
    labels: String,
    fault: Option<String>,
}

const BEAT: Sql = Sql::both(&["insert into engine_nodes (name, labels, fault, seen_at) values ($1, $2, $3, $4)
     on conflict (name) do update set labels = excluded.labels, fault = excluded.fault, seen_at = excluded.seen_at"]);
const LIST: Sql = Sql::both(&["select name, labels, fault, seen_at from engine_nodes order by name"]);

impl Operation for Beat {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let now = Param::Time(tx.now());
        let params = [Param::Text(&self.name), Param::Json(&self.labels), Param::text(self.fault.as_deref()), now];
        tx.execute(&BEAT, &params).await.map(|_| ())
    }
}

fn node(row: &Row) -> Result<EngineNode, StoreError> {
    Ok(EngineNode {
        name: row.text(0)?,
        labels: from_json(&row.text(1)?)?,
        fault: row.opt_text(2)?,
        seen_at: row.time(3)?,
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
