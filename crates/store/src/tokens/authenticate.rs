//! Who a token is: one hash and one look into memory for a request.
//!
//! A node goes by what it remembers for a quarter of a second at most; then, or a little before if it is being asked, it
//! looks whether the version of `access` has moved. Whoever revokes a token waits that long before saying so: from then
//! on no node takes it, whatever became of hints, and no request waits for the database in the usual run of things.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::{Duration, Instant};

use domain::limits::{TOKEN_LOOK_AHEAD_MS, TOKEN_TRUST_MS, TOKENS_CACHED};
use domain::{TenantId, Time, TokenId, TokenText};

use crate::error::StoreError;
use crate::sessions::FindSession;
use crate::store::Store;
use crate::tenants::quota::{self, Quota};
use crate::tokens::{Hash, Token, hash, read, version};
use crate::tx::{Column, Operation, Param, Sql, Tx};

pub(crate) const TRUST: Duration = Duration::from_millis(TOKEN_TRUST_MS);
const LOOK_AHEAD: Duration = Duration::from_millis(TOKEN_LOOK_AHEAD_MS);
/// How exactly the last use of a token is kept.
const USED_MS: i64 = 60_000;

/// What the store knows of a caller.
#[derive(Clone, Debug)]
pub enum Caller {
    /// No token was ever made: whoever gets here is trusted.
    Anyone,
    Token(Known),
    /// There are tokens, and the caller has none.
    Nobody,
    /// What the caller has is no token, or one that has expired or was revoked.
    Refused,
}

/// A token that was good when it was asked about.
#[derive(Clone, Debug)]
pub struct Known {
    pub token: Arc<Token>,
    /// When the page session through which it came got its secret; none when it came by itself.
    pub session_since: Option<Time>,
    hash: Hash,
}

#[derive(Default)]
pub(crate) struct TokenCache {
    remembered: RwLock<Remembered>,
    /// One look at a time; the others wait for it.
    looking: tokio::sync::Mutex<()>,
    looking_ahead: AtomicBool,
    /// Tokens used since the last look.
    used: Mutex<Vec<TokenId>>,
}

#[derive(Default)]
struct Remembered {
    version: i64,
    /// When the last look began; none before the first.
    looked: Option<Instant>,
    /// How often all was forgotten: a look that began before says nothing of what is now.
    forgotten: u64,
    /// What the database's clock is ahead of ours.
    ahead_ms: i64,
    /// By the hash of their text, or of the secret of a page session.
    tokens: HashMap<Hash, Entry>,
    quotas: HashMap<TenantId, Quota>,
}

struct Entry {
    token: Arc<Token>,
    session_since: Option<Time>,
    used_ms: i64,
}

impl TokenCache {
    /// How old the last look is, and whether it found that no token was ever made.
    fn glance(&self) -> (Option<Duration>, bool) {
        let remembered = self.remembered.read().expect("no reader panics");
        (remembered.looked.map(|looked| looked.elapsed()), remembered.version == 0)
    }

    pub(crate) fn quota(&self, tenant: TenantId) -> Option<Quota> {
        self.remembered.read().expect("no reader panics").quotas.get(&tenant).copied()
    }

    /// The next request looks at the database.
    pub(crate) fn forget(&self) {
        let mut remembered = self.remembered.write().expect("no writer panics");
        remembered.tokens.clear();
        remembered.looked = None;
        remembered.forgotten += 1;
    }
}

impl Store {
    /// Who the caller is. `text` is what it calls its token, if it has one.
    pub async fn authenticate(&self, text: Option<&str>) -> Result<Caller, StoreError> {
        let is_open = self.look_at_tokens().await?;
        let Some(text) = text else { return Ok(if is_open { Caller::Anyone } else { Caller::Nobody }) };
        if is_open {
            return Ok(Caller::Anyone);
        }
        match TokenText::parse(text) {
            Ok(text) => self.find_token(hash(&text)).await,
            Err(_) => Ok(Caller::Refused),
        }
    }

    /// Who the caller was when this process last knew, however long ago that was. For what may be told while the database is
    /// away, and for nothing else: a revocation is not heard of here.
    pub fn remembered_caller(&self, text: Option<&str>) -> Option<Caller> {
        let (looked, version) = {
            let remembered = self.tokens().remembered.read().expect("no reader panics");
            (remembered.looked, remembered.version)
        };
        looked?;
        if version == 0 {
            return Some(Caller::Anyone);
        }
        let text = TokenText::parse(text?).ok()?;
        match self.judge(self.remembered_token(&hash(&text))?) {
            Caller::Token(known) => Some(Caller::Token(known)),
            _ => None,
        }
    }

    /// Who the caller is whose page session has a secret with this hash. One that has ended is nobody's.
    pub async fn authenticate_session(&self, hash: Hash) -> Result<Caller, StoreError> {
        if self.look_at_tokens().await? {
            return Ok(Caller::Anyone);
        }
        Ok(match self.find_session(hash).await? {
            Caller::Token(known) => Caller::Token(known),
            _ => Caller::Nobody,
        })
    }

    /// Whether a caller would still be let in; one without a token while there are none. A long-poll asks while it waits.
    pub async fn is_still_good(&self, known: Option<&Known>) -> Result<bool, StoreError> {
        let is_open = self.look_at_tokens().await?;
        match known {
            Some(known) if known.session_since.is_some() => {
                Ok(matches!(self.find_session(known.hash).await?, Caller::Token(_)))
            }
            Some(known) => Ok(matches!(self.find_token(known.hash).await?, Caller::Token(_))),
            None => Ok(is_open),
        }
    }

    /// Whether no token was ever made.
    pub async fn is_open(&self) -> Result<bool, StoreError> {
        Ok(self.read(Version).await?.0 == 0)
    }

    async fn find_token(&self, hash: Hash) -> Result<Caller, StoreError> {
        if let Some(known) = self.remembered_token(&hash) {
            return Ok(self.judge(known));
        }
        let (version, found) = self.read(Find { hash }).await?;
        Ok(self.remember(version, hash, found, None))
    }

    async fn find_session(&self, hash: Hash) -> Result<Caller, StoreError> {
        if let Some(known) = self.remembered_token(&hash) {
            return Ok(self.judge(known));
        }
        let (version, found) = self.read(FindSession { hash }).await?;
        let (token, since) = found.unzip();
        Ok(self.remember(version, hash, token, since))
    }

    fn judge(&self, known: Known) -> Caller {
        if known.token.is_alive(self.database_now()) { Caller::Token(known) } else { Caller::Refused }
    }

    fn remember(&self, version: i64, hash: Hash, found: Option<Token>, session_since: Option<Time>) -> Caller {
        let Some(token) = found.map(Arc::new) else { return Caller::Refused };
        if !token.is_alive(self.database_now()) {
            return Caller::Refused;
        }
        let mut remembered = self.tokens().remembered.write().expect("no writer panics");
        // Read at another version, it may be out of date already: then it is good for this request alone.
        if remembered.version == version {
            if remembered.tokens.len() >= TOKENS_CACHED {
                remembered.tokens.clear();
            }
            let used_ms = token.used_at.map_or(0, Time::millis);
            remembered.tokens.insert(hash, Entry { token: token.clone(), session_since, used_ms });
        }
        Caller::Token(Known { token, session_since, hash })
    }

    fn remembered_token(&self, hash: &Hash) -> Option<Known> {
        let now_ms = self.clock().now().millis();
        let (known, used_ms) = {
            let remembered = self.tokens().remembered.read().expect("no reader panics");
            let entry = remembered.tokens.get(hash)?;
            let known = Known { token: entry.token.clone(), session_since: entry.session_since, hash: *hash };
            (known, entry.used_ms)
        };
        if now_ms - used_ms >= USED_MS {
            if let Some(entry) = self.tokens().remembered.write().expect("no writer panics").tokens.get_mut(hash) {
                entry.used_ms = now_ms;
            }
            self.tokens().used.lock().expect("nobody panics with it in hand").push(known.token.id);
        }
        Some(known)
    }

    /// Our clock, as far from the database's as it was at the last look.
    fn database_now(&self) -> Time {
        let ahead_ms = self.tokens().remembered.read().expect("no reader panics").ahead_ms;
        self.clock().now().plus_ms(ahead_ms)
    }

    /// Sees to it that what is remembered may be gone by. Gives whether no token was ever made.
    pub(crate) async fn look_at_tokens(&self) -> Result<bool, StoreError> {
        let cache = self.tokens();
        let (age, is_open) = cache.glance();
        match age {
            Some(age) if age < LOOK_AHEAD => Ok(is_open),
            Some(age) if age < TRUST => {
                if !cache.looking_ahead.swap(true, Ordering::AcqRel) {
                    let store = self.clone();
                    self.carry_on(async move {
                        // A failure is met again, and told, by whoever asks when the trust is over.
                        let _ = store.look_now().await;
                        store.tokens().looking_ahead.store(false, Ordering::Release);
                    });
                }
                Ok(is_open)
            }
            _ => {
                self.look_now().await?;
                Ok(cache.glance().1)
            }
        }
    }

    async fn look_now(&self) -> Result<(), StoreError> {
        let cache = self.tokens();
        let _turn = cache.looking.lock().await;
        if cache.glance().0.is_some_and(|age| age < LOOK_AHEAD) {
            return Ok(());
        }
        // What is read is at least as new as the moment before the question.
        let began = Instant::now();
        let forgotten = cache.remembered.read().expect("no reader panics").forgotten;
        let (version, now) = self.read(Version).await?;
        let moved = cache.remembered.read().expect("no reader panics").version != version || cache.glance().0.is_none();
        let quotas = if moved { Some(self.read(quota::All).await?) } else { None };
        {
            let mut remembered = cache.remembered.write().expect("no writer panics");
            if remembered.version != version {
                remembered.tokens.clear();
            }
            remembered.version = version;
            if let Some(quotas) = quotas {
                remembered.quotas = quotas;
            }
            remembered.looked = Some(began).filter(|_| remembered.forgotten == forgotten);
            remembered.ahead_ms = now.millis() - self.clock().now().millis();
        }
        let used = std::mem::take(&mut *cache.used.lock().expect("nobody panics with it in hand"));
        if !used.is_empty() {
            let store = self.clone();
            // When a token was last used is a courtesy: nobody waits for it.
            self.carry_on(async move { store.write(Used { tokens: used }).await });
        }
        Ok(())
    }
}

struct Version;

impl Operation for Version {
    type Output = (i64, Time);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(i64, Time), StoreError> {
        Ok((version(tx).await?, tx.now()))
    }
}

struct Find {
    hash: Hash,
}

const FIND: Sql = Sql::both(&["select t.id, t.tenant, n.name, t.name, t.role, t.rights, t.queues, t.serves, t.parent,
         t.created_by, t.created_at, t.expires_at, t.revoked_at, t.revoked_by, t.used_at
     from tokens t join tenants n on n.id = t.tenant where t.hash = $1"]);

impl Operation for Find {
    type Output = (i64, Option<Token>);

    async fn run(&self, tx: &mut Tx<'_>) -> Result<Self::Output, StoreError> {
        // The version first: a token that changes between the two is then read newer than its version says, never older.
        let version = version(tx).await?;
        let row = tx.query_opt(&FIND, &[Param::Blob(&self.hash)]).await?;
        Ok((version, row.as_ref().map(read).transpose()?))
    }
}

struct Used {
    tokens: Vec<TokenId>,
}

const USED: Sql = Sql::new(
    &["update tokens set used_at = $2 where id = $1"],
    "update tokens set used_at = $2 where id = any($1::uuid[])",
);

impl Operation for Used {
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Result<(), StoreError> {
        let mut tokens: Vec<_> = self.tokens.iter().map(|token| token.uuid()).collect();
        tokens.sort_unstable();
        tx.execute_each(&USED, &[Column::uuids(tokens)], &[Param::Time(tx.now())]).await.map(|_| ())
    }
}
