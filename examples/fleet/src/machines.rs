//! Simulated machines: power, an agent that sends heartbeats, a disk, and a flaw.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use client::wire::SubjectRequest;
use client::{Client, ClientError};
use serde_json::json;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flaw {
    None,
    /// The first two power-ons fail.
    HardToStart,
    /// The agent stops after its first heartbeat until the machine is power-cycled.
    FallsSilent,
    /// Every installation fails.
    DeadDisk,
}

#[derive(Debug)]
pub struct Machine {
    pub id: String,
    pub flaw: Flaw,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    power_ons: u32,
    is_beating: bool,
    beats: u32,
}

/// All machines, by id.
#[derive(Clone, Default)]
pub struct Fleet(Arc<BTreeMap<String, Machine>>);

impl Fleet {
    /// Creates machines. Each of the first four has a different flaw or none.
    pub fn new(machines: usize) -> Self {
        let flaws = [Flaw::None, Flaw::HardToStart, Flaw::FallsSilent, Flaw::DeadDisk];
        let machine = |number: usize| {
            let id = format!("machine-{number:02}");
            let flaw = flaws.get(number).copied().unwrap_or(Flaw::None);
            (id.clone(), Machine { id, flaw, state: Mutex::default() })
        };
        Self(Arc::new((0..machines).map(machine).collect()))
    }

    pub fn machines(&self) -> impl Iterator<Item = &Machine> {
        self.0.values()
    }

    pub fn machine(&self, id: &str) -> Option<&Machine> {
        self.0.get(id)
    }

    /// Registers every machine as a subject and starts its agent with a credential for that subject only.
    pub async fn arrive(
        &self,
        client: &Client,
        url: &str,
        beat: Duration,
        tasks: &TaskTracker,
        stop: &CancellationToken,
    ) -> anyhow::Result<()> {
        for machine in self.machines() {
            let facts = json!({"state": "provided", "rack": machine.id.len() % 3});
            let request =
                SubjectRequest { kind: Some("machine".into()), facts: serde_json::from_str(&facts.to_string())? };
            client.set_subject(&machine.id, &request).await?;
            let credential = client.create_subject_credential(&machine.id).await?;
            let agent = Client::builder(url).token(credential.token).build()?;
            tasks.spawn(run_agent(self.clone(), machine.id.clone(), agent, beat, stop.clone()));
        }
        Ok(())
    }
}

impl Machine {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Turns the machine on, or off and on again. Returns true if it started.
    pub fn power_cycle(&self) -> bool {
        let mut state = self.state();
        state.power_ons += 1;
        let up = !(self.flaw == Flaw::HardToStart && state.power_ons < 3);
        state.is_beating = up;
        up
    }

    /// True if the agent sends a heartbeat now.
    fn beats(&self) -> bool {
        let mut state = self.state();
        if !state.is_beating {
            return false;
        }
        if self.flaw == Flaw::FallsSilent && state.power_ons < 2 && state.beats > 0 {
            state.is_beating = false;
            return false;
        }
        state.beats += 1;
        true
    }
}

/// The agent on a machine. Its credential can only set this machine's facts.
async fn run_agent(fleet: Fleet, id: String, client: Client, beat: Duration, stop: CancellationToken) {
    let mut clock = tokio::time::interval(beat);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        if fleet.machine(&id).is_some_and(Machine::beats) {
            let reported: Result<(), ClientError> = client.report_facts(&id, &json!({"heartbeat": true})).await;
            if let Err(error) = reported {
                eprintln!("{id} cannot report its heartbeat: {error}");
            }
        }
    }
}
