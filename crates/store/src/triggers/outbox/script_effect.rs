//! Effects of a script. They are collected while the script runs and applied in the transaction that closes its row.
//!
//! A script that fails, or whose node crashes, therefore has no effect, and a repeated run applies its effects once.

use domain::{DeadLetterId, JobId, Resolution, TenantId};

use crate::db::effects::Effects;
use crate::db::tx::{Operation, Tx};
use crate::error::StoreError;
use crate::queue::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::triggers::cache::TriggerCache;
use crate::triggers::dead_letters::resolve::resolve;
use crate::triggers::events::{Event, emit};
use crate::triggers::kv::change::change;
use crate::triggers::kv::observed_keys::{ObservedKey, are_unchanged, lock_keys};
use crate::triggers::outbox::OutboxRow;

/// One effect of a script. The caller has validated it.
#[derive(Clone, Debug)]
pub enum ScriptEffect {
    /// Enqueues a job. The script has received this id, which does not apply if another job has the job's unique key.
    Enqueue {
        id: JobId,
        job: Box<NewJob>,
    },
    /// Sets a key, or deletes it if `value` is `None`.
    ChangeKv {
        collection: String,
        key: String,
        value: Option<Box<str>>,
        depth: i32,
    },
    Publish(Box<Event>),
    Resolve {
        letter: DeadLetterId,
        note: Option<String>,
    },
}

/// Locks the keys that a script read or changes until the end of the transaction. Returns true if everything it read is
/// still current. A script without effects needs no check: stale reads cannot do harm.
pub(crate) async fn reads_are_current(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    script_effects: &[ScriptEffect],
    reads: &[ObservedKey],
) -> Result<bool, StoreError> {
    if script_effects.is_empty() {
        return Ok(true);
    }
    let changed = script_effects.iter().filter_map(|script_effect| match script_effect {
        ScriptEffect::ChangeKv { collection, key, .. } => Some((collection.as_str(), key.as_str())),
        _ => None,
    });
    // Lock all keys in one call, which sorts them, so that two scripts with overlapping keys cannot deadlock.
    let keys: Vec<_> = reads.iter().map(|seen| (seen.collection.as_str(), seen.key.as_str())).chain(changed).collect();
    lock_keys(tx, tenant, &keys).await?;
    are_unchanged(tx, tenant, reads).await
}

/// Applies the effects in order. `lanes` are the lanes of the enqueued jobs. The caller must hold the locks on the keys.
pub(crate) async fn carry_out(
    tx: &mut Tx<'_>,
    row: &OutboxRow,
    script_effects: &[ScriptEffect],
    lanes: &[i64],
    triggers: &TriggerCache,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let (mut jobs, mut ids) = (Vec::new(), Vec::new());
    for script_effect in script_effects {
        match script_effect {
            ScriptEffect::Enqueue { id, job } => {
                jobs.push((**job).clone());
                ids.push(*id);
            }
            ScriptEffect::ChangeKv { collection, key, value, depth } => {
                let listeners = triggers.current(tx).await?;
                let changed = change(tx, &listeners, row.tenant, (collection, key), value.as_deref(), *depth).await?;
                effects.outbox |= changed.is_some_and(|changed| changed.has_matches);
            }
            ScriptEffect::Publish(event) => {
                let listeners = triggers.current(tx).await?;
                effects.outbox |= emit(tx, &listeners, std::slice::from_ref(&**event)).await? > 0;
            }
            // A letter that was resolved in the meantime is left as it is.
            ScriptEffect::Resolve { letter, note } => {
                let by = format!("trigger:{}", row.trigger);
                resolve(tx, row.tenant, *letter, Resolution::HandledByScript, &by, note.as_deref()).await?;
            }
        }
    }
    if jobs.is_empty() {
        return Ok(());
    }
    let request = EnqueueRequest::new(row.tenant, jobs, lanes.to_vec()).with_ids(ids);
    for reply in EnqueueBatch::one(request).run(tx).await? {
        let EnqueueReply::Accepted(jobs) = reply else { continue };
        effects.due |= jobs.iter().any(|job| job.run_at > job.created_at);
        effects.ready.extend(jobs.into_iter().map(|job| (row.tenant, job.queue)));
    }
    Ok(())
}
