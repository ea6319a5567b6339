//! A DNS resolver that returns only addresses that outbound calls may reach.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use domain::address::Allowed;
use reqwest::dns::{Addrs, Name, Resolve as ReqwestResolve, Resolving};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Resolves host names.
pub trait DnsResolver: Send + Sync + 'static {
    fn resolve(&self, host: String) -> BoxFuture<io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
pub struct SystemResolver;

impl DnsResolver for SystemResolver {
    fn resolve(&self, host: String) -> BoxFuture<io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// The host resolves to an address that outbound calls may not reach.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} is a private or special address, which outbound calls must not reach; allow its network with \
     --allow-network"
)]
pub(super) struct Refused {
    address: IpAddr,
}

/// Checks the addresses of a host. A single forbidden address refuses the host, because the client could connect to any
/// of them.
pub(super) fn check_addresses(allowed: &Allowed, addresses: &[IpAddr]) -> Result<(), Refused> {
    match addresses.iter().find(|address| !allowed.permits(**address)) {
        Some(address) => Err(Refused { address: *address }),
        None => Ok(()),
    }
}

pub(super) struct Guard {
    pub(super) resolver: Arc<dyn DnsResolver>,
    pub(super) allowed: Arc<Allowed>,
}

impl ReqwestResolve for Guard {
    fn resolve(&self, name: Name) -> Resolving {
        let (resolving, allowed) = (self.resolver.resolve(name.as_str().to_owned()), self.allowed.clone());
        Box::pin(async move {
            let addresses = resolving.await?;
            if addresses.is_empty() {
                return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into());
            }
            check_addresses(&allowed, &addresses)?;
            // The client connects to exactly these addresses and does not resolve again.
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
