//! Who may be spoken to under which name (X7).
//!
//! Without tokens the server answers on loopback only, where any web page in the user's browser can reach it. A page
//! that points its own host name at 127.0.0.1 still sends that name as Host, and a page of another origin says so in
//! Origin: both are refused.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::{HOST, ORIGIN};
use axum::http::{HeaderMap, Method, Uri};

use crate::auth::changes;
use crate::error::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCheck {
    /// Only names of this very machine.
    Loopback,
    /// Any name: tokens decide.
    Off,
}

/// For callers without a token; whoever has one may call us what they like.
pub(crate) fn check(check: HostCheck, method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    match check {
        HostCheck::Loopback => allow(method, uri, headers),
        HostCheck::Off => Ok(()),
    }
}

fn allow(method: &Method, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let named = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut hosts = named.chain(uri.authority().map(|authority| authority.as_str())).peekable();
    if hosts.peek().is_none() || !hosts.all(is_loopback) {
        let detail = "without tokens this server answers to localhost only; make a token to serve under other names";
        return Err(ApiError::host_not_allowed(detail));
    }
    if let (true, Some(origin)) = (changes(method), headers.get(ORIGIN)) {
        let host = origin.to_str().ok().and_then(|origin| origin.split_once("://")).map(|(_, host)| host);
        if !host.is_some_and(is_loopback) {
            return Err(ApiError::host_not_allowed("pages of other origins may not change anything here"));
        }
    }
    Ok(())
}

/// `localhost`, 127.0.0.0/8 or `[::1]`, with or without a port.
fn is_loopback(host: &str) -> bool {
    let (name, port) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, port)) => {
            return address.parse::<Ipv6Addr>().is_ok_and(|address| address.is_loopback()) && is_port(port);
        }
        None => host.split_once(':').map_or((host, ""), |(name, _)| (name, &host[name.len()..])),
    };
    let loopback = name.eq_ignore_ascii_case("localhost")
        || name.parse::<IpAddr>().is_ok_and(|address| address.is_ipv4() && address.is_loopback());
    loopback && is_port(port)
}

fn is_port(text: &str) -> bool {
    let number = |port: &str| port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok();
    text.is_empty() || text.strip_prefix(':').is_some_and(|port| port.is_empty() || number(port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn x7_only_names_of_this_machine_are_loopback() {
        for host in ["localhost", "LOCALHOST:7717", "127.0.0.1", "127.8.9.1:80", "[::1]", "[::1]:7717"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.1",
            "0.0.0.0",
            "10.0.0.1",
            "[::2]",
            "::1",
            "[::1",
            "localhost:80@evil.example",
            "localhost:x",
            "localhost:99999",
            "[::1]evil",
            "2130706433",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
