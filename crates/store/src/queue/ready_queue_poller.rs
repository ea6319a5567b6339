//! Polls the database on behalf of all waiters of this node: for ready jobs, ended jobs and messages to workers.
//!
//! It finds changes that no notification announced: a notification of another node was lost, or an application called
//! `windlass.enqueue` in its own transaction. One query serves all waiters. A queue whose waiting lanes did not change
//! since the last poll is not announced again: no waiter could claim those jobs. When a rate limit refills, the
//! waiters' own poll finds the jobs.

use std::collections::HashMap;

use domain::{Name, TenantId, WorkerId};

use crate::db::notifier::{Topic, WaitingLanes};
use crate::db::tx::{Column, Operation, Sql, Tx};
use crate::error::StoreError;
use crate::queue::claim::fast_path::watermarks::JobCursor;
use crate::store::Store;

impl Store {
    /// Notifies the waiters whose topics are due. Returns the number of topics.
    pub async fn poll_ready_queues(&self) -> Result<usize, StoreError> {
        let topics_awaited = self.notifier().remote_topics();
        if topics_awaited.is_empty() {
            return Ok(0);
        }
        let queue = |topic: &Topic| match topic {
            Topic::Ready(tenant, queue) => Some((*tenant, queue.clone())),
            _ => None,
        };
        let queues: Vec<(TenantId, Name)> = topics_awaited.iter().filter_map(queue).collect();
        let watermarks = self.fast_path().watermarks().for_poll(&queues);
        let PollResult { ready, mut due } = self.read(PollTopics { topics_awaited, queues, watermarks }).await?;
        due.extend(self.notifier().changed_queues(ready));
        due.iter().for_each(|topic| self.notifier().notify_local(topic));
        Ok(due.len())
    }
}

struct PollTopics {
    topics_awaited: Vec<Topic>,
    queues: Vec<(TenantId, Name)>,
    /// Position in each queue after which the query looks for jobs.
    watermarks: Vec<JobCursor>,
}

struct PollResult {
    ready: HashMap<Topic, WaitingLanes>,
    /// Topics of workers to notify and of jobs that ended.
    due: Vec<Topic>,
}

// The lanes that a claim would find. The query ignores limits; the claim checks them.
const READY: Sql = Sql::new(
    &["select $1 as tenant, $2 as queue, count(*) as lanes, max(h.run_at) as newest from (
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
const WORKERS_TO_NOTIFY: Sql = Sql::new(
    &["select $1 as worker where exists (select 1 from revocations r where r.worker = $1)
           or not exists (select 1 from workers w where w.id = $1 and not w.draining and w.dead_at is null)"],
    "select n.worker from unnest($1::uuid[]) as n(worker) left join workers w on w.id = n.worker
         left join lateral (select r.job from revocations r where r.worker = n.worker limit 1) c on true
     where c.job is not null or w.id is null or w.draining or w.dead_at is not null",
);
const ENDED: Sql = Sql::new(
    &["select $1 as job where not exists (select 1 from jobs j where j.id = $1)"],
    "select n.job from unnest($1::uuid[]) as n(job) where not exists (select 1 from jobs j where j.id = n.job)",
);

impl Operation for PollTopics {
    type Output = PollResult;

    async fn run(&self, tx: &mut Tx<'_>) -> Result<PollResult, StoreError> {
        let (mut workers, mut jobs) = (Vec::new(), Vec::new());
        for topic in &self.topics_awaited {
            match topic {
                Topic::Worker(worker) => workers.push(worker.uuid()),
                Topic::Ended(job) => jobs.push(*job),
                _ => {}
            }
        }
        let (mut ready, mut due) = (HashMap::new(), Vec::new());
        let queues = [
            Column::ints(self.queues.iter().map(|(tenant, _)| tenant.0)),
            Column::texts(self.queues.iter().map(|(_, queue)| queue.as_str())),
            Column::Time(self.watermarks.iter().map(|cursor| Some(cursor.run_at)).collect()),
            Column::uuids(self.watermarks.iter().map(|cursor| cursor.id)),
        ];
        for row in tx.query_each(&READY, &queues, &[]).await? {
            let topic = Topic::Ready(TenantId(row.int("tenant")?), Name::stored(&row.text("queue")?));
            ready.insert(topic, WaitingLanes { lanes: row.int("lanes")?, newest: row.time("newest")? });
        }
        for row in tx.query_each(&WORKERS_TO_NOTIFY, &[Column::uuids(workers)], &[]).await? {
            due.push(Topic::Worker(WorkerId::new(row.uuid("worker")?)));
        }
        for row in tx.query_each(&ENDED, &[Column::jobs(jobs)], &[]).await? {
            due.push(Topic::Ended(row.job("job")?));
        }
        Ok(PollResult { ready, due })
    }
}
