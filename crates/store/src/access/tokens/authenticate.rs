//! Authenticates a token or a page session against an in-memory cache. The server calls it for every request, which
//! costs one hash and one map lookup.
//!
//! A node trusts its cache for at most `MAX_CACHE_AGE` (250 ms). Once an entry is older than `REFRESH_AFTER`, the next
//! request starts a background refresh, which reads the version in the table `access` and drops the cached tokens if it
//! has moved. Requests therefore normally do not wait for the database.
//!
//! A revocation waits `MAX_CACHE_AGE` before it returns. After that no node accepts the token, even if every
//! notification was lost.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use domain::limits::{TOKEN_CACHE_REFRESH_AFTER_MS, TOKEN_CACHE_TTL_MS, TOKENS_CACHED};
use domain::{TenantId, Time, TokenId, TokenText};

use crate::access::sessions::FindSession;
use crate::access::tenants::quota;
use crate::access::tenants::quota::Quota;
use crate::access::tokens::{Hash, Token, hash, read, version};
use crate::db::tx::{Column, Operation, Param, Sql, Tx};
use crate::error::StoreError;
use crate::store::Store;

/// Maximum age of the token cache. Older state is refreshed before a request is answered.
pub(crate) const MAX_CACHE_AGE: Duration = Duration::from_millis(TOKEN_CACHE_TTL_MS);
/// Age at which a request starts a refresh in the background.
const REFRESH_AFTER: Duration = Duration::from_millis(TOKEN_CACHE_REFRESH_AFTER_MS);
/// Precision of the stored time of a token's last use.
const USE_PRECISION_MS: i64 = 60_000;

/// Result of authenticating a request.
#[derive(Clone, Debug)]
pub enum Authentication {
    /// No token has ever been created, so every caller is trusted.
    Open,
    Token(AuthenticatedToken),
    /// Tokens exist, and the request carries none.
    Missing,
    /// The token is malformed, unknown, expired or revoked.
    Refused,
}

/// A token that was valid when the request was authenticated.
#[derive(Clone, Debug)]
pub struct AuthenticatedToken {
    pub token: Arc<Token>,
    /// When the page session received its current secret. `None` if the request carried the token itself.
    pub session_since: Option<Time>,
    hash: Hash,
}

#[derive(Default)]
pub(crate) struct TokenCache {
    cached: RwLock<CachedTokens>,
    /// Held during a refresh, so that concurrent requests wait for one refresh instead of starting their own.
    refresh_lock: tokio::sync::Mutex<()>,
    refreshing_in_background: AtomicBool,
    /// Tokens used since the last refresh. The refresh stores their time of last use.
    recently_used: Mutex<Vec<TokenId>>,
}

#[derive(Default)]
struct CachedTokens {
    version: i64,
    /// When the last refresh began. `None` before the first refresh and after an invalidation.
    refreshed_at: Option<Instant>,
    /// Number of invalidations. A refresh that began before the latest invalidation does not count as fresh.
    invalidations: u64,
    /// How far the database clock is ahead of the local clock.
    clock_offset_ms: i64,
    /// Keyed by the hash of the token text or of a page session's secret.
    tokens: HashMap<Hash, CachedToken>,
    quotas: HashMap<TenantId, Quota>,
}

struct CachedToken {
    token: Arc<Token>,
    session_since: Option<Time>,
    used_ms: i64,
}

impl TokenCache {
    /// Returns the age of the last refresh, and whether it found that no token has ever been created.
    fn age_and_openness(&self) -> (Option<Duration>, bool) {
        let cached = self.cached.read().expect("lock poisoned");
        (cached.refreshed_at.map(|at| at.elapsed()), cached.version == 0)
    }

    /// Returns the tenant's quota as of the last refresh. `None` means unlimited.
    pub(crate) fn quota(&self, tenant: TenantId) -> Option<Quota> {
        self.cached.read().expect("lock poisoned").quotas.get(&tenant).copied()
    }

    /// Clears the cache. The next request reads the database.
    pub(crate) fn invalidate(&self) {
        let mut cached = self.cached.write().expect("lock poisoned");
        cached.tokens.clear();
        cached.refreshed_at = None;
        cached.invalidations += 1;
    }
}

impl Store {
    /// Authenticates a caller by the token text that it sent, if any.
    pub async fn authenticate(&self, text: Option<&str>) -> Result<Authentication, StoreError> {
        let is_open = self.refresh_token_cache().await?;
        let Some(text) = text else { return Ok(if is_open { Authentication::Open } else { Authentication::Missing }) };
        if is_open {
            return Ok(Authentication::Open);
        }
        match TokenText::parse(text) {
            Ok(text) => self.find_token(hash(&text)).await,
            Err(_) => Ok(Authentication::Refused),
        }
    }

    /// Authenticates a caller from the cache alone, whatever its age. Returns `None` if the cache cannot decide.
    ///
    /// Use it only for responses that are allowed while the database is unavailable: it does not see revocations.
    pub fn cached_authentication(&self, text: Option<&str>) -> Option<Authentication> {
        let (refreshed_at, version) = {
            let cached = self.tokens().cached.read().expect("lock poisoned");
            (cached.refreshed_at, cached.version)
        };
        refreshed_at?;
        if version == 0 {
            return Some(Authentication::Open);
        }
        let text = TokenText::parse(text?).ok()?;
        match self.check_expiry(self.cached_token(&hash(&text))?) {
            Authentication::Token(authenticated) => Some(Authentication::Token(authenticated)),
            _ => None,
        }
    }

    /// Authenticates a page session by the hash of its secret. Returns `Missing` if the session has ended.
    pub async fn authenticate_session(&self, hash: Hash) -> Result<Authentication, StoreError> {
        if self.refresh_token_cache().await? {
            return Ok(Authentication::Open);
        }
        Ok(match self.find_session(hash).await? {
            Authentication::Token(authenticated) => Authentication::Token(authenticated),
            _ => Authentication::Missing,
        })
    }

    /// Returns true if the caller would still be authenticated. A caller without a token is accepted only while no token
    /// exists. Long polls call this while they wait.
    pub async fn is_still_authenticated(&self, authenticated: Option<&AuthenticatedToken>) -> Result<bool, StoreError> {
        let is_open = self.refresh_token_cache().await?;
        match authenticated {
            Some(authenticated) if authenticated.session_since.is_some() => {
                Ok(matches!(self.find_session(authenticated.hash).await?, Authentication::Token(_)))
            }
            Some(authenticated) => Ok(matches!(self.find_token(authenticated.hash).await?, Authentication::Token(_))),
            None => Ok(is_open),
        }
    }

    /// Returns true if no token has ever been created. Reads the database.
    pub async fn is_open(&self) -> Result<bool, StoreError> {
        Ok(self.read(ReadAccessVersion).await?.0 == 0)
    }

    async fn find_token(&self, hash: Hash) -> Result<Authentication, StoreError> {
        if let Some(authenticated) = self.cached_token(&hash) {
            return Ok(self.check_expiry(authenticated));
        }
        let (version, found) = self.read(FindToken { hash }).await?;
        Ok(self.insert_cached(version, hash, found, None))
    }

    async fn find_session(&self, hash: Hash) -> Result<Authentication, StoreError> {
        if let Some(authenticated) = self.cached_token(&hash) {
            return Ok(self.check_expiry(authenticated));
        }
        let (version, found) = self.read(FindSession { hash }).await?;
        let (token, since) = found.unzip();
        Ok(self.insert_cached(version, hash, token, since))
    }

    fn check_expiry(&self, authenticated: AuthenticatedToken) -> Authentication {
        if authenticated.token.is_alive(self.database_now()) {
            Authentication::Token(authenticated)
        } else {
            Authentication::Refused
        }
    }

    fn insert_cached(
        &self,
        version: i64,
        hash: Hash,
        found: Option<Token>,
        session_since: Option<Time>,
    ) -> Authentication {
        let Some(token) = found.map(Arc::new) else { return Authentication::Refused };
        if !token.is_alive(self.database_now()) {
            return Authentication::Refused;
        }
        let mut cached = self.tokens().cached.write().expect("lock poisoned");
        // A token read at another version may already be outdated. It serves this request but is not cached.
        if cached.version == version {
            if cached.tokens.len() >= TOKENS_CACHED {
                cached.tokens.clear();
            }
            let used_ms = token.used_at.map_or(0, Time::millis);
            cached.tokens.insert(hash, CachedToken { token: token.clone(), session_since, used_ms });
        }
        Authentication::Token(AuthenticatedToken { token, session_since, hash })
    }

    fn cached_token(&self, hash: &Hash) -> Option<AuthenticatedToken> {
        let now_ms = self.clock().now().millis();
        let (authenticated, used_ms) = {
            let cached = self.tokens().cached.read().expect("lock poisoned");
            let entry = cached.tokens.get(hash)?;
            let authenticated =
                AuthenticatedToken { token: entry.token.clone(), session_since: entry.session_since, hash: *hash };
            (authenticated, entry.used_ms)
        };
        if now_ms - used_ms >= USE_PRECISION_MS {
            if let Some(entry) = self.tokens().cached.write().expect("lock poisoned").tokens.get_mut(hash) {
                entry.used_ms = now_ms;
            }
            self.tokens().recently_used.lock().expect("lock poisoned").push(authenticated.token.id);
        }
        Some(authenticated)
    }

    /// Estimates the database clock from the local clock and the offset measured by the last refresh.
    fn database_now(&self) -> Time {
        let clock_offset_ms = self.tokens().cached.read().expect("lock poisoned").clock_offset_ms;
        self.clock().now().plus_ms(clock_offset_ms)
    }

    /// Makes sure that the cache is at most `MAX_CACHE_AGE` old. Returns true if no token has ever been created.
    pub(crate) async fn refresh_token_cache(&self) -> Result<bool, StoreError> {
        let cache = self.tokens();
        let (age, is_open) = cache.age_and_openness();
        match age {
            Some(age) if age < REFRESH_AFTER => Ok(is_open),
            Some(age) if age < MAX_CACHE_AGE => {
                if !cache.refreshing_in_background.swap(true, Ordering::AcqRel) {
                    let store = self.clone();
                    self.carry_on(async move {
                        // The error is dropped: the first request after `MAX_CACHE_AGE` refreshes again and reports it.
                        let _ = store.refresh().await;
                        store.tokens().refreshing_in_background.store(false, Ordering::Release);
                    });
                }
                Ok(is_open)
            }
            _ => {
                self.refresh().await?;
                Ok(cache.age_and_openness().1)
            }
        }
    }

    async fn refresh(&self) -> Result<(), StoreError> {
        let cache = self.tokens();
        let _guard = cache.refresh_lock.lock().await;
        if cache.age_and_openness().0.is_some_and(|age| age < REFRESH_AFTER) {
            return Ok(());
        }
        // The age counts from before the query, because its result is at least as new as that moment.
        let began = Instant::now();
        let invalidations = cache.cached.read().expect("lock poisoned").invalidations;
        let (version, now) = self.read(ReadAccessVersion).await?;
        let moved =
            cache.cached.read().expect("lock poisoned").version != version || cache.age_and_openness().0.is_none();
        let quotas = if moved { Some(self.read(quota::ListQuotas).await?) } else { None };
        {
            let mut cached = cache.cached.write().expect("lock poisoned");
            if cached.version != version {
                cached.tokens.clear();
            }
            cached.version = version;
            if let Some(quotas) = quotas {
                cached.quotas = quotas;
            }
            cached.refreshed_at = Some(began).filter(|_| cached.invalidations == invalidations);
            cached.clock_offset_ms = now.millis() - self.clock().now().millis();
        }
        let recently_used = std::mem::take(&mut *cache.recently_used.lock().expect("lock poisoned"));
        if !recently_used.is_empty() {
            let store = self.clone();
            // The time of last use is informational, so no request waits for this write.
            self.carry_on(async move { store.write(RecordTokenUse { tokens: recently_used }).await });
        }
        Ok(())
    }
}

struct ReadAccessVersion;

impl Operation for ReadAccessVersion {
    type Output = (i64, Time);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(i64, Time), StoreError> {
        Ok((version(tx).await?, tx.now()))
    }
}

struct FindToken {
    hash: Hash,
}

const FIND: Sql = Sql::both(&["select t.id, t.tenant, n.name as tenant_name, t.name, t.role, t.rights, t.queues,
         t.serves, t.parent, t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from tokens t join tenants n on n.id = t.tenant where t.hash = $1"]);

impl Operation for FindToken {
    type Output = (i64, Option<Token>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        // Read the version first. A token that changes between the two reads is then newer than its version, never older.
        let version = version(tx).await?;
        let row = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await?;
        Ok((version, row.as_ref().map(read).transpose()?))
    }
}

struct RecordTokenUse {
    tokens: Vec<TokenId>,
}

const USED: Sql = Sql::new(
    &["update tokens set used_at = $2 where id = $1"],
    "update tokens set used_at = $2 where id = any($1::uuid[])",
);

impl Operation for RecordTokenUse {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let mut tokens: Vec<_> = self.tokens.iter().map(|token| token.uuid()).collect();
        tokens.sort_unstable();
        tx.execute_each(&USED, &[Column::uuids(tokens)], &[Param::Time(tx.now())]).await.map(|_| ())
    }
}
