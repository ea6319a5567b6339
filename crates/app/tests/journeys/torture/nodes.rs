//! Servers that are killed, frozen and started again, each on a port of its own so that its clients find it.

use client::Client;
use rustix::process::Signal;

use crate::support::{Place, Serve, Server, free_port};

pub(super) struct Nodes<'a> {
    place: &'a Place,
    /// Where each finds the database: not the same for all when there is a network between.
    databases: Vec<String>,
    ports: Vec<u16>,
    servers: Vec<Server>,
}

impl<'a> Nodes<'a> {
    pub(super) async fn start(place: &'a Place, databases: Vec<String>) -> Self {
        let ports: Vec<u16> = databases.iter().map(|_| free_port()).collect();
        let mut nodes = Self { place, databases, ports, servers: Vec::new() };
        for number in 0..nodes.ports.len() {
            let server = nodes.serve(number).await;
            nodes.servers.push(server);
        }
        nodes
    }

    async fn serve(&self, number: usize) -> Server {
        let serve = Serve::on(self.place).port(self.ports[number]);
        serve.env("WINDLASS_DATABASE", &self.databases[number]).start().await
    }

    pub(super) fn clients(&self) -> Vec<Client> {
        self.servers.iter().map(Server::client).collect()
    }

    /// kill -9, and a new one in its place.
    pub(super) async fn kill(&mut self, number: usize) {
        self.servers[number].program.kill().await;
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
