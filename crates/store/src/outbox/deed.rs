//! What a script did: collected while it runs, carried out in the transaction that closes its row (T4, T11).
//!
//! A script that fails, or whose node dies, has done nothing; one that is run again does not do things twice.

use domain::{DeadLetterId, JobId, Resolution, TenantId};

use crate::dead_letters::resolve::resolve;
use crate::effects::Effects;
use crate::error::StoreError;
use crate::events::{Event, emit};
use crate::jobs::enqueue::{EnqueueBatch, EnqueueReply, EnqueueRequest, NewJob};
use crate::kv::change::change;
use crate::kv::seen::{Seen, are_as_seen, hold};
use crate::outbox::Taken;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Tx};

/// Everything in it has been checked.
#[derive(Clone, Debug)]
pub enum Deed {
    /// The script knows the job by this id, unless another one has its unique key.
    Enqueue {
        id: JobId,
        job: Box<NewJob>,
    },
    /// Without a value the key is deleted.
    Keep {
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

/// Holds the keys that a script read or changes until the end of the transaction, and says whether it read what is there.
/// One that does nothing may have seen what it saw.
pub(crate) async fn read_what_is_there(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    deeds: &[Deed],
    reads: &[Seen],
) -> Result<bool, StoreError> {
    if deeds.is_empty() {
        return Ok(true);
    }
    let changed = deeds.iter().filter_map(|deed| match deed {
        Deed::Keep { collection, key, .. } => Some((collection.as_str(), key.as_str())),
        _ => None,
    });
    // All at once: two scripts that change what the other read never wait for each other in a circle.
    let keys: Vec<_> = reads.iter().map(|seen| (seen.collection.as_str(), seen.key.as_str())).chain(changed).collect();
    hold(tx, tenant, &keys).await?;
    are_as_seen(tx, tenant, reads).await
}

/// Carries them out in their order; `lanes` are those of the jobs among them. The keys are held.
pub(crate) async fn carry_out(
    tx: &mut Tx<'_>,
    row: &Taken,
    deeds: &[Deed],
    lanes: &[i64],
    triggers: &TriggerCache,
    effects: &mut Effects,
) -> Result<(), StoreError> {
    let (mut jobs, mut ids) = (Vec::new(), Vec::new());
    for deed in deeds {
        match deed {
            Deed::Enqueue { id, job } => {
                jobs.push((**job).clone());
                ids.push(*id);
            }
            Deed::Keep { collection, key, value, depth } => {
                let listeners = triggers.current(tx).await?;
                let changed = change(tx, &listeners, row.tenant, (collection, key), value.as_deref(), *depth).await?;
                effects.outbox |= changed.is_some_and(|changed| changed.heard);
            }
            Deed::Publish(event) => {
                let listeners = triggers.current(tx).await?;
                effects.outbox |= emit(tx, &listeners, std::slice::from_ref(&**event)).await? > 0;
            }
            // Whoever was quicker has dealt with it: that is what was wanted.
            Deed::Resolve { letter, note } => {
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
