//! The machines themselves, simulated: power, an agent that beats, a disk, and what is wrong with each.

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
    /// The first two power-ons come to nothing.
    HardToStart,
    /// Its agent stops as soon as it has begun, until the machine is power-cycled.
    FallsSilent,
    /// No installation will ever succeed.
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
    beating: bool,
    beats: u32,
}

/// All machines, by id.
#[derive(Clone, Default)]
pub struct Fleet(Arc<BTreeMap<String, Machine>>);

impl Fleet {
    /// Machines of which the first four have one flaw each, as far as there are so many.
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

    /// Every machine arrives: it becomes a subject, and its agent gets a credential for that subject alone.
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
            let credential = client.make_subject_credential(&machine.id).await?;
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

    /// Power on, or off and on again. Gives whether it came up.
    pub fn power_cycle(&self) -> bool {
        let mut state = self.state();
        state.power_ons += 1;
        let up = !(self.flaw == Flaw::HardToStart && state.power_ons < 3);
        state.beating = up;
        up
    }

    /// Whether the agent would beat now. One that falls silent does so after its first beat, until it is power-cycled.
    fn beats(&self) -> bool {
        let mut state = self.state();
        if !state.beating {
            return false;
        }
        if self.flaw == Flaw::FallsSilent && state.power_ons < 2 && state.beats > 0 {
            state.beating = false;
            return false;
        }
        state.beats += 1;
        true
    }
}

/// The program on the machine that says it is alive. Its credential can set this machine's facts and nothing else.
async fn run_agent(fleet: Fleet, id: String, client: Client, beat: Duration, stop: CancellationToken) {
    let mut clock = tokio::time::interval(beat);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            _ = clock.tick() => {}
        }
        if fleet.machine(&id).is_some_and(Machine::beats) {
            let said: Result<(), ClientError> = client.report_facts(&id, &json!({"heartbeat": true})).await;
            if let Err(error) = said {
                eprintln!("{id} could not say that it is alive: {error}");
            }
        }
    }
}
