//! Host checks for callers without a token (protection against DNS rebinding). Called by `auth`.
//!
//! Without tokens the server listens on loopback only, where any web page in the user's browser can reach it. A page
//! that points its own host name at 127.0.0.1 still sends that name as `Host` and is refused. `cross_site` refuses the
//! pages of other origins.

use std::net::{IpAddr, Ipv6Addr};

use axum::http::header::HOST;
use axum::http::{HeaderMap, Uri};

use crate::error::ApiError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostCheck {
    /// Accept only names and addresses of this machine.
    Loopback,
    /// Accept any name: access is controlled by tokens.
    Off,
}

/// Checks a request without a token. Requests with one are not checked.
pub(crate) fn check(check: HostCheck, uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    match check {
        HostCheck::Loopback => allow(uri, headers),
        HostCheck::Off => Ok(()),
    }
}

fn allow(uri: &Uri, headers: &HeaderMap) -> Result<(), ApiError> {
    let host_headers = headers.get_all(HOST).iter().map(|host| host.to_str().unwrap_or_default());
    let mut hosts = host_headers.chain(uri.authority().map(|authority| authority.as_str())).peekable();
    if hosts.peek().is_none() || !hosts.all(is_loopback) {
        let detail = "without tokens this server accepts only the host localhost; create a token to use other names";
        return Err(ApiError::host_not_allowed(detail));
    }
    Ok(())
}

/// Accepts `localhost`, 127.0.0.0/8 and `[::1]`, with or without a port.
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

    /// Requirement X7.
    #[test]
    fn only_loopback_names_and_addresses_count_as_loopback() {
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
