//! Servers that are killed, frozen and restarted. Each has a fixed port, so that its clients find it.

use std::path::PathBuf;

use client::Client;
use rustix::process::Signal;

use crate::support::{Fixture, Serve, Server, free_port};

pub(super) struct Nodes<'a> {
    fixture: &'a Fixture,
    /// The database URL of each node. They differ if proxies are in between.
    databases: Vec<String>,
    ports: Vec<u16>,
    servers: Vec<Server>,
    /// An older build of the program, for nodes that have not been upgraded.
    older: Option<PathBuf>,
    upgraded: usize,
}

impl<'a> Nodes<'a> {
    pub(super) async fn start(fixture: &'a Fixture, databases: Vec<String>) -> Self {
        Self::of(fixture, databases, None).await
    }

    /// Nodes of an older version.
    pub(super) async fn older(fixture: &'a Fixture, count: usize, program: PathBuf) -> Self {
        Self::of(fixture, vec![fixture.url.clone(); count], Some(program)).await
    }

    async fn of(fixture: &'a Fixture, databases: Vec<String>, older: Option<PathBuf>) -> Self {
        let ports: Vec<u16> = databases.iter().map(|_| free_port()).collect();
        let mut nodes = Self { fixture, databases, ports, servers: Vec::new(), older, upgraded: 0 };
        for number in 0..nodes.ports.len() {
            let server = nodes.serve(number).await;
            nodes.servers.push(server);
        }
        nodes
    }

    async fn serve(&self, number: usize) -> Server {
        let serve = match &self.older {
            Some(program) if number >= self.upgraded => Serve::version(self.fixture, program),
            _ => Serve::on(self.fixture),
        };
        serve.port(self.ports[number]).env("WINDLASS_DATABASE", &self.databases[number]).start().await
    }

    pub(super) fn clients(&self) -> Vec<Client> {
        self.servers.iter().map(Server::client).collect()
    }

    /// Kills a server with SIGKILL and starts another one on its port.
    pub(super) async fn kill(&mut self, number: usize) {
        self.servers[number].program.kill().await;
        self.servers[number] = self.serve(number).await;
    }

    /// Stops the next older node gracefully and starts this version on its port.
    pub(super) async fn upgrade(&mut self) {
        let number = self.upgraded;
        assert_eq!(self.servers[number].program.terminate().await, Some(0), "the server stops gracefully");
        self.upgraded += 1;
        self.servers[number] = self.serve(number).await;
    }

    pub(super) fn freeze(&self, number: usize) {
        self.servers[number].program.signal(Signal::STOP);
    }

    pub(super) fn thaw(&self, number: usize) {
        self.servers[number].program.signal(Signal::CONT);
    }

    pub(super) fn last(&self) -> &Server {
        self.servers.last().expect("there is a node")
    }

    pub(super) fn count(&self) -> usize {
        self.servers.len()
    }
}
