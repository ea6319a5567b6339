//! The remaining capacity of queues with a concurrency limit or a rate limit.

use std::collections::BTreeMap;

use domain::{Name, QueueSettings, TenantId};

use super::ClaimedJob;
use super::fill::ClaimBuilder;
use super::lane_heads::WaitingLane;
use crate::db::tx::{Param, Sql, Tx};
use crate::error::StoreError;
use crate::queue::holds;

pub(super) fn is_limited(settings: &QueueSettings) -> bool {
    settings.concurrency.is_some() || settings.rate_per_s.is_some()
}

impl ClaimBuilder {
    /// Loads the remaining capacity of the limited queues. Their scopes stay locked until the commit.
    pub(super) async fn load_capacity(&mut self, tx: &mut Tx<'_>, heads: &[WaitingLane]) -> Result<(), StoreError> {
        let limited: BTreeMap<&Name, &QueueSettings> = heads
            .iter()
            .filter(|head| is_limited(&head.settings))
            .map(|head| (&head.lane.queue, &head.settings))
            .collect();
        if limited.is_empty() {
            return Ok(());
        }
        let scopes: BTreeMap<String, &Name> = limited.keys().map(|queue| (holds::queue_scope(queue), *queue)).collect();
        let holders = holds::lock_and_count(tx, self.tenant, &scopes.keys().map(String::as_str).collect()).await?;
        for (scope, queue) in scopes {
            let settings = limited[queue];
            let running = holders.get(&scope).copied().unwrap_or(0);
            let slots = settings.concurrency.map_or(usize::MAX, |limit| limit.saturating_sub(running) as usize);
            let tokens = match settings.rate_per_s {
                Some(rate) => tokens(tx, self.tenant, queue, rate).await?,
                None => usize::MAX,
            };
            self.capacity.insert(queue.clone(), slots.min(tokens));
        }
        Ok(())
    }
}

/// Maximum difference between the clocks of two concurrent transactions that refill one bucket.
const OVERTAKEN_MS: i64 = 10_000;
const RATE: Sql = Sql::both(&["select tokens, at from rates where tenant = $1 and queue = $2"]);
const SET_RATE: Sql = Sql::both(&["insert into rates (tenant, queue, tokens, at) values ($1, $2, $3, $4)
     on conflict (tenant, queue) do update set tokens = excluded.tokens, at = excluded.at"]);
const SPEND: Sql = Sql::both(&["update rates set tokens = tokens - $3 where tenant = $1 and queue = $2"]);

/// Refills the token bucket of a queue and returns its whole tokens. The bucket holds the tokens of one second, at least one.
async fn tokens(tx: &mut Tx<'_>, tenant: TenantId, queue: &Name, rate: f64) -> Result<usize, StoreError> {
    let now = tx.now();
    let key = [Param::Int(tenant.0), Param::Text(queue.as_str())];
    let full = rate.max(1.0);
    let (tokens, at) = match tx.query_opt(&RATE, &key).await? {
        None => (full, now),
        Some(row) => {
            let last = row.time("at")?;
            // In microseconds: many workers claim within one millisecond.
            let elapsed_s = (now.micros() - last.micros()).max(0) as f64 / 1_000_000.0;
            let tokens = (row.opt_real("tokens")?.unwrap_or(full) + elapsed_s * rate).min(full);
            // A transaction that began before a faster one must not refill the same interval again. A larger difference
            // means that the clock was set back.
            (tokens, if (0..OVERTAKEN_MS).contains(&last.ms_since(now)) { last } else { now })
        }
    };
    tx.execute(&SET_RATE, &[key[0], key[1], Param::Real(tokens), Param::Time(at)]).await?;
    Ok(tokens.floor().max(0.0) as usize)
}

/// Removes the tokens of the claimed jobs from the buckets of their queues.
pub(super) async fn spend_tokens(
    tx: &mut Tx<'_>,
    tenant: TenantId,
    jobs: &[ClaimedJob],
    capacity: &BTreeMap<Name, usize>,
) -> Result<(), StoreError> {
    for queue in capacity.keys() {
        let spent = jobs.iter().filter(|job| job.queue == *queue).count() as f64;
        if spent > 0.0 {
            tx.execute(&SPEND, &[Param::Int(tenant.0), Param::Text(queue.as_str()), Param::Real(spent)]).await?;
        }
    }
    Ok(())
}
