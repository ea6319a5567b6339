//! In-process notifications, relayed to other nodes by LISTEN/NOTIFY on PostgreSQL.
//!
//! A notification is a hint: the subscriber must query the database, and must also poll from time to time, because a
//! notification can be lost.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use domain::{JobId, JobState, Name, TenantId, Time, WorkerId};
use tokio::sync::{Notify, broadcast, watch};

/// What a notification is about.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// The queue may have a runnable job.
    Ready(TenantId, Name),
    /// The job has ended.
    Ended(JobId),
    /// The worker has a cancel or a drain to deliver.
    Worker(WorkerId),
    /// A scheduled job may be due earlier than the promoter expects.
    Due,
    /// A delivery may be due. Any node can send it, so only this node is notified.
    Deliveries,
    /// A subject may be eligible, now or earlier than the process scan expects.
    Scan,
    /// The outbox may have a new row.
    Outbox,
    /// The remaining jobs of a run must be canceled.
    StoppingRuns,
    /// A batch may continue.
    Batches,
    /// An operation on a runtime was requested, or a runtime has changed.
    Runtimes,
}

/// The waiting jobs of a queue: the number of lanes with a job, and the newest `run_at` among their first jobs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WaitingLanes {
    pub(crate) lanes: i64,
    pub(crate) newest: Time,
}

/// A change of a job, for signal streams. It says enough to skip the changes that a stream does not follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct JobChange {
    pub tenant: TenantId,
    /// `None`: the lane is not known here.
    pub lane: Option<i64>,
    pub job: JobId,
    /// The new state, if the change is one of state.
    pub to: Option<JobState>,
}

/// Sends notifications to subscribers. Clones share their subscribers.
#[derive(Clone, Default)]
pub struct Notifier {
    shared: Arc<Shared>,
}

/// Capacity of the channel of job changes. A receiver that lags behind by more must re-read all jobs that it follows.
const CHANGES_CAPACITY: usize = 4_096;

struct Shared {
    subscribers: Mutex<HashMap<Topic, Vec<Arc<Notify>>>>,
    /// Topics to send to other nodes.
    outgoing: Mutex<BTreeSet<Topic>>,
    has_outgoing: Notify,
    /// True while a LISTEN/NOTIFY task sends outgoing topics to other nodes. False on a single node.
    is_sending: AtomicBool,
    /// True while notifications of other nodes are received.
    is_listening: AtomicBool,
    /// The result of the last poll of the subscribed queues.
    last_poll: Mutex<HashMap<Topic, WaitingLanes>>,
    /// Jobs that this node changed, for signal streams.
    changes: broadcast::Sender<JobChange>,
    /// Wakes streams that only report that something has changed, by tenant.
    tenants: Mutex<HashMap<TenantId, watch::Sender<()>>>,
    has_tenants: AtomicBool,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            subscribers: Mutex::default(),
            outgoing: Mutex::default(),
            has_outgoing: Notify::new(),
            is_sending: AtomicBool::new(false),
            is_listening: AtomicBool::new(false),
            last_poll: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES_CAPACITY),
            tenants: Mutex::default(),
            has_tenants: AtomicBool::new(false),
        }
    }
}

impl Notifier {
    /// Subscribes to topics. Subscribe before the query: a change committed between the two would otherwise wait for a
    /// full poll interval.
    pub fn subscribe(&self, topics: impl IntoIterator<Item = Topic>) -> Subscription {
        let wake = Arc::new(Notify::new());
        let topics: Vec<Topic> = topics.into_iter().collect();
        let mut subscribers = self.shared.subscribers.lock().expect("lock poisoned");
        for topic in &topics {
            subscribers.entry(topic.clone()).or_default().push(wake.clone());
        }
        Subscription { shared: self.shared.clone(), topics, wake }
    }

    /// Notifies the subscribers of this node and, for topics that other nodes wait for, those of the other nodes.
    pub(crate) fn notify(&self, topic: Topic) {
        self.notify_local(&topic);
        if let Topic::Ready(tenant, _) = &topic {
            self.notify_tenant_changed(*tenant);
        }
        let is_sending = self.shared.is_sending.load(Ordering::Relaxed);
        if is_sending && matches!(topic, Topic::Ready(..) | Topic::Worker(_)) {
            let mut outgoing = self.shared.outgoing.lock().expect("lock poisoned");
            if outgoing.insert(topic) && outgoing.len() == 1 {
                self.shared.has_outgoing.notify_one();
            }
        }
    }

    /// True while this node receives the notifications of other nodes. Otherwise it finds their changes by polling.
    pub fn is_listening(&self) -> bool {
        self.shared.is_listening.load(Ordering::Relaxed)
    }

    pub(crate) fn set_listening(&self, is_listening: bool) {
        self.shared.is_listening.store(is_listening, Ordering::Relaxed);
    }

    /// Returns the subscribed topics that a change on another node can concern.
    pub(crate) fn remote_topics(&self) -> Vec<Topic> {
        let subscribers = self.shared.subscribers.lock().expect("lock poisoned");
        let is_remote = |topic: &&Topic| matches!(topic, Topic::Ready(..) | Topic::Worker(_) | Topic::Ended(_));
        subscribers.keys().filter(is_remote).cloned().collect()
    }

    /// Returns the queues whose waiting jobs differ from the last poll. If the same jobs still wait, no subscriber
    /// could claim them, and the transaction that frees capacity for them sends a notification. While notifications of
    /// other nodes are not received, all queues are returned.
    pub(crate) fn changed_queues(&self, found: HashMap<Topic, WaitingLanes>) -> Vec<Topic> {
        let mut last = self.shared.last_poll.lock().expect("lock poisoned");
        let has_changed =
            |(topic, lanes): &(&Topic, &WaitingLanes)| !self.is_listening() || last.get(*topic) != Some(*lanes);
        let changed = found.iter().filter(has_changed).map(|(topic, _)| topic.clone()).collect();
        *last = found;
        changed
    }

    /// Notifies this node that another delivery may be due.
    pub fn deliveries_changed(&self) {
        self.notify_local(&Topic::Deliveries);
    }

    /// Notifies this node that a runtime has changed or an operation is done.
    pub fn runtimes_changed(&self) {
        self.notify_local(&Topic::Runtimes);
    }

    /// Returns a receiver of the jobs that this node changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<JobChange> {
        self.shared.changes.subscribe()
    }

    /// Returns a receiver that is woken when this node changes a job of the tenant, without saying which one.
    pub fn tenant_changes(&self, tenant: TenantId) -> watch::Receiver<()> {
        let mut tenants = self.shared.tenants.lock().expect("lock poisoned");
        tenants.retain(|_, sender| sender.receiver_count() > 0);
        let receiver = tenants.entry(tenant).or_insert_with(|| watch::Sender::new(())).subscribe();
        self.shared.has_tenants.store(true, Ordering::Relaxed);
        receiver
    }

    /// Notifies the signal streams of this node. Costs almost nothing while there are none.
    pub(crate) fn notify_jobs_changed(&self, changes: &[JobChange]) {
        if self.shared.changes.receiver_count() > 0 {
            for change in changes {
                let _no_receiver = self.shared.changes.send(*change);
            }
        }
        for of_tenant in changes.chunk_by(|one, next| one.tenant == next.tenant) {
            self.notify_tenant_changed(of_tenant[0].tenant);
        }
    }

    fn notify_tenant_changed(&self, tenant: TenantId) {
        if !self.shared.has_tenants.load(Ordering::Relaxed) {
            return;
        }
        let mut tenants = self.shared.tenants.lock().expect("lock poisoned");
        if let Some(sender) = tenants.get(&tenant) {
            if sender.receiver_count() > 0 {
                sender.send_replace(());
            } else {
                tenants.remove(&tenant);
                self.shared.has_tenants.store(!tenants.is_empty(), Ordering::Relaxed);
            }
        }
    }

    /// Notifies the subscribers of this node only.
    pub(crate) fn notify_local(&self, topic: &Topic) {
        let subscribers = self.shared.subscribers.lock().expect("lock poisoned");
        for wake in subscribers.get(topic).into_iter().flatten() {
            wake.notify_one();
        }
    }

    /// Wakes all subscribers of this node.
    pub(crate) fn notify_all(&self) {
        let subscribers = self.shared.subscribers.lock().expect("lock poisoned");
        subscribers.values().flatten().for_each(|wake| wake.notify_one());
    }

    /// Waits for topics to send to other nodes and returns all of them. Called by the task that sends them.
    pub(crate) async fn outgoing(&self) -> BTreeSet<Topic> {
        self.shared.is_sending.store(true, Ordering::Relaxed);
        loop {
            let topics = std::mem::take(&mut *self.shared.outgoing.lock().expect("lock poisoned"));
            if !topics.is_empty() {
                return topics;
            }
            self.shared.has_outgoing.notified().await;
        }
    }
}

/// A subscription to topics. It ends when it is dropped.
pub struct Subscription {
    shared: Arc<Shared>,
    topics: Vec<Topic>,
    wake: Arc<Notify>,
}

impl Subscription {
    /// Waits for a notification. Returns at once if one came since the last call.
    pub async fn notified(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut subscribers = self.shared.subscribers.lock().expect("lock poisoned");
        for topic in &self.topics {
            if let Some(wakes) = subscribers.get_mut(topic) {
                wakes.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
                if wakes.is_empty() {
                    subscribers.remove(topic);
                }
            }
        }
    }
}
