//! Outbound requests: the guard against forbidden addresses, and webhook deliveries to misbehaving receivers.

mod deliver;
mod guard;
mod nodes;
