//! Claims: lanes by the claim order, jobs oldest first, holds or parking.

use std::collections::BTreeMap;

use domain::queue::claim::next_lanes;
use domain::queue::job::Event;
use domain::{Affinity, Epoch, JobState, LaneHead, Name};

use super::{Model, ModelJob, worker_id};

/// The properties that a worker selects by. Jobs with the same properties are in one lane.
type Lane = (Name, Name, Affinity, bool, i32);

struct Head {
    lane: Lane,
    head: LaneHead,
}

impl Model {
    /// Returns (job, epoch, attempt), in order. `None`: no such worker. `Some(None)`: its lease has expired.
    pub fn claim(&mut self, worker: usize, max: usize, affinity: Affinity) -> Option<Option<Vec<(usize, Epoch, i32)>>> {
        if !self.alive(worker)? {
            return Some(None);
        }
        if self.workers[worker].draining {
            self.touch(worker);
            return Some(Some(Vec::new()));
        }
        self.claims += 1;
        let loaded = affinity.clone().or_else(|| self.workers[worker].affinity.clone());
        let (taken, held) = self.claim_jobs(worker, max, &loaded);
        if taken.is_empty() {
            self.touch(worker);
            return Some(Some(taken));
        }
        self.renew(worker);
        let swapped = taken.iter().any(|(job, _, _)| self.jobs[*job].new.affinity.is_some());
        let now_held = if swapped { held } else { affinity };
        let row = &mut self.workers[worker];
        row.affinity = now_held.or(row.affinity.take());
        Some(Some(taken))
    }

    fn claim_jobs(&mut self, worker: usize, max: usize, loaded: &Affinity) -> (Vec<(usize, Epoch, i32)>, Affinity) {
        let mut held = loaded.clone();
        let mut heads = self.heads(worker);
        let mut capacity = self.capacity();
        let mut taken: Vec<(usize, Epoch, i32)> = Vec::new();
        while taken.len() < max {
            heads.retain(|head| capacity.get(&head.lane.0).is_none_or(|capacity| *capacity > 0));
            let lanes: Vec<LaneHead> = heads.iter().map(|head| head.head.clone()).collect();
            let Some(choice) = next_lanes(&lanes, &held, self.now) else { break };
            if choice.swap && taken.iter().any(|(job, _, _)| self.jobs[*job].new.affinity.is_some()) {
                break;
            }
            let (chosen, rest): (Vec<Head>, Vec<Head>) =
                heads.into_iter().partition(|head| choice.lanes.contains(&head.head.lane));
            let before = taken.len();
            let more = self.claim_from((worker, loaded), &chosen, max, &mut capacity, &mut taken);
            if taken.len() > before {
                let queue = self.jobs[taken[before].0].new.queue.clone();
                let counts = &mut self.queue(&queue).counts;
                counts.swaps_made += i64::from(choice.swap);
                counts.swaps_avoided += if choice.passed_over { (taken.len() - before) as i64 } else { 0 };
                held = choice.affinity;
            }
            heads = rest;
            if more {
                heads.extend(chosen);
            }
        }
        (taken, held)
    }

    /// The oldest job of each lane that the worker serves, in lane order.
    fn heads(&self, worker: usize) -> Vec<Head> {
        let row = &self.workers[worker];
        let mut oldest: BTreeMap<Lane, (usize, &ModelJob)> = BTreeMap::new();
        for (number, job) in self.jobs.iter().enumerate().filter(|(_, job)| job.can_run()) {
            let new = &job.new;
            let queue = self.queues.get(&new.queue);
            let serves = row.queues.contains(&new.queue)
                && row.kinds.as_ref().is_none_or(|kinds| kinds.contains(&new.kind))
                && match (&row.affinities, &new.affinity) {
                    (Some(affinities), Some(affinity)) => affinities.contains(affinity),
                    _ => true,
                };
            if !serves || queue.is_some_and(|queue| queue.paused) {
                continue;
            }
            let best = oldest.entry(job.lane()).or_insert((number, job));
            if job.waiting_since() < best.1.waiting_since() {
                *best = (number, job);
            }
        }
        let head = |(number, (lane, (order, job))): (usize, (Lane, (usize, &ModelJob)))| {
            let starvation_ms = self.queues.get(&lane.0).map(|queue| queue.settings.starvation_ms());
            let head = LaneHead {
                lane: number as i64,
                priority: lane.4,
                affinity: lane.2.clone(),
                waiting_since: job.waiting_since(),
                order: order as u128,
                starvation_ms: starvation_ms.unwrap_or_else(|| domain::QueueSettings::default().starvation_ms()),
            };
            Head { lane, head }
        };
        oldest.into_iter().enumerate().map(head).collect()
    }

    /// Free slots of the queues with a concurrency limit.
    fn capacity(&self) -> BTreeMap<Name, usize> {
        let limited = self.queues.iter().filter_map(|(name, queue)| Some((name, queue.settings.concurrency?)));
        limited
            .map(|(name, limit)| {
                (name.clone(), (limit as usize).saturating_sub(self.holders(&format!("queue {name}"))))
            })
            .collect()
    }

    fn holders(&self, scope: &str) -> usize {
        self.holds.iter().filter(|(held, _, _)| held == scope).count()
    }

    /// Claims jobs, oldest first. Jobs that do not get their holds are parked. Returns true if there may be more jobs.
    fn claim_from(
        &mut self,
        (worker, loaded): (usize, &Affinity),
        chosen: &[Head],
        max: usize,
        capacity: &mut BTreeMap<Name, usize>,
        taken: &mut Vec<(usize, Epoch, i32)>,
    ) -> bool {
        let want = max - taken.len();
        let scan = if chosen.iter().any(|head| head.lane.3) { usize::MAX } else { want };
        let mut waiting: Vec<usize> = (0..self.jobs.len())
            .filter(|number| self.jobs[*number].can_run())
            .filter(|number| chosen.iter().any(|head| head.lane == self.jobs[*number].lane()))
            .collect();
        waiting.sort_by_key(|number| (self.jobs[*number].waiting_since(), *number));
        waiting.truncate(scan);
        let mut more = waiting.len() == scan;
        for number in waiting {
            if taken.len() == max {
                break;
            }
            let queue = self.jobs[number].new.queue.clone();
            if capacity.get(&queue) == Some(&0) {
                continue;
            }
            if let Some(scope) = self.active_backoff(number) {
                self.jobs[number].parked = Some(scope);
                more = true;
                continue;
            }
            let mut scopes = self.required_holds(number);
            let full = |(scope, limit): &&(String, usize)| self.holders(scope) >= *limit;
            if let Some((scope, _)) = scopes.iter().find(full) {
                self.jobs[number].parked = Some(scope.clone());
                more = true;
                continue;
            }
            if let Some(capacity) = capacity.get_mut(&queue) {
                *capacity -= 1;
                scopes.push((format!("queue {queue}"), 0));
            }
            taken.push(self.claim_job(number, (worker, loaded), scopes));
        }
        more
    }

    /// The scopes that a job must hold, each with the maximum number of holders.
    fn required_holds(&self, number: usize) -> Vec<(String, usize)> {
        let new = &self.jobs[number].new;
        let Some(extras) = new.extras.as_ref() else { return Vec::new() };
        let per_key = self.queues.get(&new.queue).map_or(1, |queue| queue.settings.per_key_limit()) as usize;
        let process = extras.process.as_ref().unwrap_or(&new.kind);
        let subject = extras.subject.as_ref().map(|subject| (format!("subject {process} {subject}"), 1));
        let key = extras.concurrency_key.as_ref().map(|key| (format!("key {} {key}", new.queue), per_key));
        subject.into_iter().chain(key).collect()
    }

    fn claim_job(
        &mut self,
        number: usize,
        (worker, loaded): (usize, &Affinity),
        scopes: Vec<(String, usize)>,
    ) -> (usize, Epoch, i32) {
        let affinity = &self.jobs[number].new.affinity;
        let event = Event::Claim { worker: worker_id(worker), loads: affinity.is_some() && affinity != loaded };
        let after = self.jobs[number].job.apply(event, self.now).expect("a waiting job can be claimed");
        let (epoch, attempt, state) = (after.epoch, after.attempt, after.job_state());
        self.set(number, after);
        self.holds.extend(scopes.into_iter().map(|(scope, _)| (scope, number, epoch)));
        let new = &self.jobs[number].new;
        let settings = self.queues.get(&new.queue).map(|queue| &queue.settings);
        let timeout_s = new.extras.as_ref().and_then(|extras| extras.timeout_s);
        let timeout_s = timeout_s.or_else(|| settings.and_then(|settings| settings.timeout_s_for(&new.kind)));
        let (claim, now) = (self.claims, self.now);
        let job = &mut self.jobs[number];
        job.claim = Some(claim);
        job.times_out_at = timeout_s.map(|seconds| now.plus_s(seconds));
        job.record("started", Some(worker), None);
        self.notify(number, JobState::Queued, state);
        (number, epoch, attempt)
    }
}

impl ModelJob {
    fn can_run(&self) -> bool {
        self.job.job_state() == JobState::Queued && self.parked.is_none()
    }

    fn lane(&self) -> Lane {
        let new = &self.new;
        (new.queue.clone(), new.kind.clone(), new.affinity.clone(), self.is_guarded(), new.priority)
    }
}
