//! News for those who wait on this node, whoever brought it about: another node whose hint was lost, `windlass.enqueue` in
//! somebody's own transaction. One look serves all of them, however many they are. What nobody could take wakes nobody again:
//! a rate that time has filled is found by their own poll.

use std::collections::HashMap;

use domain::{Name, TenantId, WorkerId};

use crate::error::StoreError;
use crate::floors::Place;
use crate::hints::{Heads, Topic};
use crate::store::Store;
use crate::tx::{Column, Operation, Sql, Tx};

impl Store {
    /// Wakes whoever waits for what has come by now. Gives how many things that was.
    pub async fn wake_waiting(&self) -> Result<usize, StoreError> {
        let awaited = self.hints().awaited();
        if awaited.is_empty() {
            return Ok(0);
        }
        let queue = |topic: &Topic| match topic {
            Topic::Ready(tenant, queue) => Some((*tenant, queue.clone())),
            _ => None,
        };
        let queues: Vec<(TenantId, Name)> = awaited.iter().filter_map(queue).collect();
        let floors = self.floors().for_news(&queues);
        let Found { ready, mut there } = self.read(Look { awaited, queues, floors }).await?;
        there.extend(self.hints().news(ready));
        there.iter().for_each(|topic| self.hints().wake(topic));
        Ok(there.len())
    }
}

struct Look {
    awaited: Vec<Topic>,
    queues: Vec<(TenantId, Name)>,
    /// Behind which the jobs of each queue begin.
    floors: Vec<Place>,
}

struct Found {
    ready: HashMap<Topic, Heads>,
    there: Vec<Topic>,
}

// What a claim would see of these queues. Whether it may take it, it must find out itself.
const READY: Sql = Sql::new(
    &["select $1, $2, count(*), max(h.run_at) from (
           select (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null and j.parked is null
               and j.worker is null order by j.run_at, j.id limit 1) as run_at
           from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
           where l.tenant = $1 and l.queue = $2 and q.paused_at is null) h
       where h.run_at is not null and $3 is not null and $4 is not null having count(*) > 0"],
    "select n.tenant, n.queue, w.lanes, w.newest
     from unnest($1::bigint[], $2::text[], $3::timestamptz[], $4::uuid[]) as n(tenant, queue, run_at, id)
         cross join lateral (select count(*) as lanes, max(h.run_at) as newest
             from lanes l left join queues q on q.tenant = l.tenant and q.name = l.queue
                 cross join lateral (select j.run_at from jobs j where j.lane = l.lane and j.due_at is null
                     and j.parked is null and j.worker is null and (j.run_at, j.id) > (n.run_at, n.id)
                     order by j.run_at, j.id limit 1) h
             where l.tenant = n.tenant and l.queue = n.queue and q.paused_at is null) w
     where w.lanes > 0",
);
const CALLED: Sql = Sql::new(
    &["select $1 where exists (select 1 from revocations r where r.worker = $1)
           or not exists (select 1 from workers w where w.id = $1 and not w.draining and w.dead_at is null)"],
    "select n.worker from unnest($1::uuid[]) as n(worker) left join workers w on w.id = n.worker
         left join lateral (select r.job from revocations r where r.worker = n.worker limit 1) c on true
     where c.job is not null or w.id is null or w.draining or w.dead_at is not null",
);
const ENDED: Sql = Sql::new(
    &["select $1 where not exists (select 1 from jobs j where j.id = $1)"],
    "select n.job from unnest($1::uuid[]) as n(job) where not exists (select 1 from jobs j where j.id = n.job)",
);

impl Operation for Look {
    type Output = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Found, StoreError> {
        let (mut workers, mut jobs) = (Vec::new(), Vec::new());
        for topic in &self.awaited {
            match topic {
                Topic::Worker(worker) => workers.push(worker.uuid()),
                Topic::Ended(job) => jobs.push(*job),
                _ => {}
            }
        }
        let (mut ready, mut there) = (HashMap::new(), Vec::new());
        let queues = [
            Column::ints(self.queues.iter().map(|(tenant, _)| tenant.0)),
            Column::texts(self.queues.iter().map(|(_, queue)| queue.as_str())),
            Column::Time(self.floors.iter().map(|place| Some(place.run_at)).collect()),
            Column::uuids(self.floors.iter().map(|place| place.id)),
        ];
        for row in tx.query_each(&READY, &queues, &[]).await? {
            let topic = Topic::Ready(TenantId(row.int(0)?), Name::stored(&row.text(1)?));
            ready.insert(topic, Heads { lanes: row.int(2)?, newest: row.time(3)? });
        }
        for row in tx.query_each(&CALLED, &[Column::uuids(workers)], &[]).await? {
            there.push(Topic::Worker(WorkerId::new(row.uuid(0)?)));
        }
        for row in tx.query_each(&ENDED, &[Column::jobs(jobs)], &[]).await? {
            there.push(Topic::Ended(row.job(0)?));
        }
        Ok(Found { ready, there })
    }
}
