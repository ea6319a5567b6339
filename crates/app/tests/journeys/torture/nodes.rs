//! Servers that are killed, frozen and started again, each on a port of its own so that its clients find it.

use std::path::PathBuf;

use client::Client;
use rustix::process::Signal;

use crate::support::{Place, Serve, Server, free_port};

pub(super) struct Nodes<'a> {
    place: &'a Place,
    /// Where each finds the database: not the same for all when there is a network between.
    databases: Vec<String>,
    ports: Vec<u16>,
    servers: Vec<Server>,
    /// Another version of the program that those start with which have not been upgraded.
    older: Option<PathBuf>,
    upgraded: usize,
}

impl<'a> Nodes<'a> {
    pub(super) async fn start(place: &'a Place, databases: Vec<String>) -> Self {
        Self::of(place, databases, None).await
    }

    /// Nodes of an older version.
    pub(super) async fn older(place: &'a Place, count: usize, program: PathBuf) -> Self {
        Self::of(place, vec![place.url.clone(); count], Some(program)).await
    }

    async fn of(place: &'a Place, databases: Vec<String>, older: Option<PathBuf>) -> Self {
        let ports: Vec<u16> = databases.iter().map(|_| free_port()).collect();
        let mut nodes = Self { place, databases, ports, servers: Vec::new(), older, upgraded: 0 };
        for number in 0..nodes.ports.len() {
            let server = nodes.serve(number).await;
            nodes.servers.push(server);
        }
        nodes
    }

    async fn serve(&self, number: usize) -> Server {
        let serve = match &self.older {
            Some(program) if number >= self.upgraded => Serve::version(self.place, program),
            _ => Serve::on(self.place),
        };
        serve.port(self.ports[number]).env("WINDLASS_DATABASE", &self.databases[number]).start().await
    }

    pub(super) fn clients(&self) -> Vec<Client> {
        self.servers.iter().map(Server::client).collect()
    }

    /// kill -9, and a new one in its place.
    pub(super) async fn kill(&mut self, number: usize) {
        self.servers[number].program.kill().await;
        self.servers[number] = self.serve(number).await;
    }

    /// The next one of the older version ends in good order, and this version takes its place.
    pub(super) async fn upgrade(&mut self) {
        let number = self.upgraded;
        assert_eq!(self.servers[number].program.terminate().await, Some(0), "it ends in good order");
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
