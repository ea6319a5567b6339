//! Groups the unresolved dead letters by what failed. The dashboard lists the groups.
//!
//! The newest `GROUPED_DEAD_LETTERS` rows are read without their payloads, and grouped here. The letters of a group are
//! those that a filter of the API selects, so that a group can be replayed or resolved with its filter.

use std::collections::HashMap;

use domain::limits::{DEAD_LETTER_GROUPS, GROUPED_DEAD_LETTERS};
use domain::{DeadLetterId, JobError, TenantId, Time, TriggerId};
use uuid::Uuid;

use crate::db::codec::error_from_json;
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Unresolved letters of one kind in one queue, or of one trigger, with one error code.
#[derive(Clone, Debug)]
pub struct DeadLetterGroup {
    pub source: String,
    pub queue: Option<String>,
    pub kind: Option<String>,
    /// `None` for the letters of jobs with a queue, whatever started the jobs.
    pub trigger: Option<TriggerId>,
    pub error_code: String,
    pub count: usize,
    pub oldest_at: Time,
    pub newest_at: Time,
    pub newest: DeadLetterId,
    /// The last error of the newest letter.
    pub last_error: JobError,
}

/// The groups, the largest first.
#[derive(Clone, Debug, Default)]
pub struct DeadLetterGroups {
    pub groups: Vec<DeadLetterGroup>,
    /// There are more letters than were read, or more groups than are returned.
    pub is_partial: bool,
}

impl Store {
    pub async fn group_dead_letters(&self, tenant: TenantId) -> Result<DeadLetterGroups, StoreError> {
        self.read(GroupDeadLetters { tenant }).await
    }
}

struct GroupDeadLetters {
    tenant: TenantId,
}

const NEWEST: Sql = Sql::both(&["select id, source, queue, kind, trigger_id, error_code, created_at from dead_letters
     where tenant = $1 and resolved_at is null order by id desc limit $2"]);
const LAST_ERROR: Sql = Sql::new(
    &["select id, last_error from dead_letters where id = $1"],
    "select id, last_error from dead_letters where id = any($1::uuid[])",
);

/// What the letters of a group have in common.
#[derive(Clone, PartialEq, Eq, Hash)]
struct GroupKey {
    source: String,
    queue: Option<String>,
    kind: Option<String>,
    trigger: Option<Uuid>,
    error_code: String,
}

struct GroupRow {
    key: GroupKey,
    count: usize,
    oldest_at: Time,
    newest_at: Time,
    newest: Uuid,
}

impl Operation for GroupDeadLetters {
    type Output = DeadLetterGroups;

    fn tenant(&self) -> Option<TenantId> {
        Some(self.tenant)
    }

    async fn run(&self, tx: &mut Tx<'_>) -> Result<DeadLetterGroups, StoreError> {
        let limit = Param::Int(GROUPED_DEAD_LETTERS as i64 + 1);
        let mut rows = tx.query(&NEWEST, &[Param::Int(self.tenant.0), limit]).await?;
        let mut is_partial = rows.len() > GROUPED_DEAD_LETTERS;
        rows.truncate(GROUPED_DEAD_LETTERS);
        let mut groups: Vec<GroupRow> = Vec::new();
        let mut by_key: HashMap<GroupKey, usize> = HashMap::new();
        for row in &rows {
            let queue = row.opt_text("queue")?;
            let trigger = if queue.is_none() { row.opt_uuid("trigger_id")? } else { None };
            let (source, kind, error_code) = (row.text("source")?, row.opt_text("kind")?, row.text("error_code")?);
            let key = GroupKey { source, queue, kind, trigger, error_code };
            let created_at = row.time("created_at")?;
            let at = *by_key.entry(key.clone()).or_insert(groups.len());
            match groups.get_mut(at) {
                Some(group) => {
                    group.count += 1;
                    group.oldest_at = group.oldest_at.min(created_at);
                    group.newest_at = group.newest_at.max(created_at);
                }
                // Rows come newest first.
                None => groups.push(GroupRow {
                    key,
                    count: 1,
                    oldest_at: created_at,
                    newest_at: created_at,
                    newest: row.uuid("id")?,
                }),
            }
        }
        groups.sort_by_key(|group| (std::cmp::Reverse(group.count), std::cmp::Reverse(group.newest)));
        is_partial |= groups.len() > DEAD_LETTER_GROUPS;
        groups.truncate(DEAD_LETTER_GROUPS);
        let newest = Column::uuids(groups.iter().map(|group| group.newest));
        let mut errors: HashMap<Uuid, JobError> = HashMap::new();
        for row in tx.query_each(&LAST_ERROR, &[newest], &[]).await? {
            errors.insert(row.uuid("id")?, error_from_json(&row.text("last_error")?)?);
        }
        let group = |group: GroupRow| {
            let GroupKey { source, queue, kind, trigger, error_code } = group.key;
            // A letter that was pruned between the two reads has no group any more.
            let last_error = errors.remove(&group.newest)?;
            Some(DeadLetterGroup {
                source,
                queue,
                kind,
                trigger: trigger.map(TriggerId::new),
                error_code,
                count: group.count,
                oldest_at: group.oldest_at,
                newest_at: group.newest_at,
                newest: DeadLetterId::new(group.newest),
                last_error,
            })
        };
        Ok(DeadLetterGroups { groups: groups.into_iter().filter_map(group).collect(), is_partial })
    }
}
