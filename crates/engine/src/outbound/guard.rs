//! Names become addresses here, and only addresses that may be reached come out.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;

use domain::address::Allowed;
use reqwest::dns::{Addrs, Name, Resolve as ReqwestResolve, Resolving};

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Who knows the addresses of a name.
pub trait Resolve: Send + Sync + 'static {
    fn resolve(&self, host: String) -> BoxFuture<io::Result<Vec<IpAddr>>>;
}

/// The operating system's resolver.
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, host: String) -> BoxFuture<io::Result<Vec<IpAddr>>> {
        Box::pin(async move { Ok(tokio::net::lookup_host((host, 0)).await?.map(|address| address.ip()).collect()) })
    }
}

/// It leads to an address that outbound calls may not reach.
#[derive(Debug, thiserror::Error)]
#[error(
    "{address} is a private or special address, which outbound calls may not reach; --allow-network opens a network"
)]
pub(super) struct Refused {
    address: IpAddr,
}

/// A name with one bad address is refused whole: a public one beside it may be there to be tried first.
pub(super) fn judge(allowed: &Allowed, addresses: &[IpAddr]) -> Result<(), Refused> {
    match addresses.iter().find(|address| !allowed.permits(**address)) {
        Some(address) => Err(Refused { address: *address }),
        None => Ok(()),
    }
}

pub(super) struct Guard {
    pub(super) resolver: Arc<dyn Resolve>,
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
            judge(&allowed, &addresses)?;
            // What was judged is what is connected to: the client asks nobody else.
            let addresses: Addrs = Box::new(addresses.into_iter().map(|address| SocketAddr::new(address, 0)));
            Ok(addresses)
        })
    }
}
