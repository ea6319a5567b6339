//! Wake-ups: someone may have work, an answer or a cancel for you.
//!
//! A hint is never the truth: whoever gets one looks at the database, and looks there from time to time without one.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use domain::{JobId, Name, TenantId, Time, WorkerId};
use tokio::sync::{Notify, broadcast};

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Topic {
    /// The queue may have a job that can run.
    Ready(TenantId, Name),
    /// The job has ended.
    Ended(JobId),
    /// The worker has a cancel or a drain to hear of.
    Worker(WorkerId),
    /// A job is due at another time than the promoter knows of.
    Due,
    /// Something is to be sent. Any node may send it, so none but this one hears.
    Deliveries,
    /// A subject may be eligible, or will be at another time than the scan knows of.
    Scan,
    /// Something is to be started.
    Outbox,
    /// A batch may go on.
    Batches,
    /// An operation on a runtime is to be done, or a runtime has changed.
    Runtimes,
}

/// What waits in a queue: the lanes that have a job, and the newest of their first ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Heads {
    pub(crate) lanes: i64,
    pub(crate) newest: Time,
}

#[derive(Clone, Default)]
pub struct Hints {
    shared: Arc<Shared>,
}

/// Changes that a follower may lag behind by; whoever lags more looks at everything once.
const CHANGES: usize = 4_096;

struct Shared {
    listeners: Mutex<HashMap<Topic, Vec<Arc<Notify>>>>,
    /// What other nodes should hear of, since the last time it was sent.
    outgoing: Mutex<BTreeSet<Topic>>,
    sender: Notify,
    /// Whether anybody sends it: on one node there are no others.
    is_sent: AtomicBool,
    /// Whether those of other nodes are heard.
    is_relayed: AtomicBool,
    /// What the last look found in the queues that are waited for.
    found: Mutex<HashMap<Topic, Heads>>,
    /// Jobs that this node changed, for those who follow signals.
    changes: broadcast::Sender<JobId>,
}

impl Default for Shared {
    fn default() -> Self {
        Self {
            listeners: Mutex::default(),
            outgoing: Mutex::default(),
            sender: Notify::new(),
            is_sent: AtomicBool::new(false),
            is_relayed: AtomicBool::new(false),
            found: Mutex::default(),
            changes: broadcast::Sender::new(CHANGES),
        }
    }
}

impl Hints {
    /// Subscribe before looking: what is committed between the two would otherwise wait for a full poll.
    pub fn listen(&self, topics: impl IntoIterator<Item = Topic>) -> Listener {
        let wake = Arc::new(Notify::new());
        let topics: Vec<Topic> = topics.into_iter().collect();
        let mut listeners = self.shared.listeners.lock().expect("no listener panics");
        for topic in &topics {
            listeners.entry(topic.clone()).or_default().push(wake.clone());
        }
        Listener { shared: self.shared.clone(), topics, wake }
    }

    /// Tells this node and, soon, the others.
    pub(crate) fn tell(&self, topic: Topic) {
        self.wake(&topic);
        let others_hear = self.shared.is_sent.load(Ordering::Relaxed);
        if others_hear && matches!(topic, Topic::Ready(..) | Topic::Worker(_)) {
            let mut outgoing = self.shared.outgoing.lock().expect("no sender panics");
            if outgoing.insert(topic) && outgoing.len() == 1 {
                self.shared.sender.notify_one();
            }
        }
    }

    /// Whether this node hears others at once; where it does not, its own looks find what they did.
    pub fn are_relayed(&self) -> bool {
        self.shared.is_relayed.load(Ordering::Relaxed)
    }

    pub(crate) fn set_relayed(&self, is_relayed: bool) {
        self.shared.is_relayed.store(is_relayed, Ordering::Relaxed);
    }

    /// What is waited for on this node, of that which any node may bring about.
    pub(crate) fn awaited(&self) -> Vec<Topic> {
        let listeners = self.shared.listeners.lock().expect("no listener panics");
        let of_jobs = |topic: &&Topic| matches!(topic, Topic::Ready(..) | Topic::Worker(_) | Topic::Ended(_));
        listeners.keys().filter(of_jobs).cloned().collect()
    }

    /// The queues of which this is news. Where the same jobs wait as at the last look, nobody could take them: room for them is
    /// told by who makes it. While other nodes are not heard, all of it is news.
    pub(crate) fn news(&self, found: HashMap<Topic, Heads>) -> Vec<Topic> {
        let mut last = self.shared.found.lock().expect("no look panics");
        let is_news = |(topic, heads): &(&Topic, &Heads)| !self.are_relayed() || last.get(*topic) != Some(*heads);
        let news = found.iter().filter(is_news).map(|(topic, _)| topic.clone()).collect();
        *last = found;
        news
    }

    /// Another delivery may have its turn.
    pub fn deliveries_changed(&self) {
        self.wake(&Topic::Deliveries);
    }

    /// A runtime has changed, or an operation is done.
    pub fn runtimes_changed(&self) {
        self.wake(&Topic::Runtimes);
    }

    /// Jobs that this node changes from now on.
    pub fn changes(&self) -> broadcast::Receiver<JobId> {
        self.shared.changes.subscribe()
    }

    /// Tells those who follow signals on this node; costs nothing while nobody does.
    pub(crate) fn tell_changed(&self, job: JobId) {
        if self.shared.changes.receiver_count() > 0 {
            let _nobody_listens = self.shared.changes.send(job);
        }
    }

    /// Tells this node only.
    pub(crate) fn wake(&self, topic: &Topic) {
        let listeners = self.shared.listeners.lock().expect("no listener panics");
        for wake in listeners.get(topic).into_iter().flatten() {
            wake.notify_one();
        }
    }

    pub(crate) fn wake_all(&self) {
        let listeners = self.shared.listeners.lock().expect("no listener panics");
        listeners.values().flatten().for_each(|wake| wake.notify_one());
    }

    /// Waits until there is something for other nodes and takes all of it.
    pub(crate) async fn outgoing(&self) -> BTreeSet<Topic> {
        self.shared.is_sent.store(true, Ordering::Relaxed);
        loop {
            let taken = std::mem::take(&mut *self.shared.outgoing.lock().expect("no sender panics"));
            if !taken.is_empty() {
                return taken;
            }
            self.shared.sender.notified().await;
        }
    }
}

pub struct Listener {
    shared: Arc<Shared>,
    topics: Vec<Topic>,
    wake: Arc<Notify>,
}

impl Listener {
    /// Returns at once if a hint came since the last call.
    pub async fn hint(&self) {
        self.wake.notified().await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        let mut listeners = self.shared.listeners.lock().expect("no listener panics");
        for topic in &self.topics {
            if let Some(waiting) = listeners.get_mut(topic) {
                waiting.retain(|wake| !Arc::ptr_eq(wake, &self.wake));
                if waiting.is_empty() {
                    listeners.remove(topic);
                }
            }
        }
    }
}
