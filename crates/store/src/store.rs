//! The store: opens either database and runs operations on it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use domain::limits::{FIGURES_KEPT, FIGURES_MS, SURROUNDINGS_KEPT, SURROUNDINGS_MS};
use domain::{Name, TenantId};
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::batch::Batchers;
use crate::clock::Clock;
use crate::deliveries::paces::Paces;
use crate::error::StoreError;
use crate::floors::Floors;
use crate::habits::Habits;
use crate::hints::Hints;
use crate::in_hand::InHand;
use crate::jobs::prune::Looks;
use crate::kept::Kept;
use crate::lanes::LaneCache;
use crate::lines::Lines;
use crate::secrets::SecretKeys;
use crate::signals::figures::{EndedFeed, Figure, FigureKey};
use crate::signals::surroundings::Surroundings;
use crate::signatures::index::SignatureIndex;
use crate::tenants::quota::QuotaUse;
use crate::tokens::authenticate::TokenCache;
use crate::triggers::cache::TriggerCache;
use crate::tx::{Operation, Postgres, Sqlite};
use crate::workers::serve::Turn;

/// Where a database is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatabaseUrl {
    Sqlite(PathBuf),
    Postgres(String),
}

impl DatabaseUrl {
    /// `sqlite:PATH`, `postgres://…`, `postgresql://…`, or a bare path.
    pub fn parse(text: &str) -> Result<Self, StoreError> {
        if let Some(path) = text.strip_prefix("sqlite:") {
            let path = path.strip_prefix("//").unwrap_or(path);
            if path.is_empty() || path == ":memory:" {
                return Err(StoreError::Unusable("a SQLite database needs a file: sqlite:PATH".into()));
            }
            return Ok(Self::Sqlite(path.into()));
        }
        if text.starts_with("postgres://") || text.starts_with("postgresql://") {
            return Ok(Self::Postgres(text.into()));
        }
        match text.split_once(':') {
            Some((scheme, _)) => Err(StoreError::Unusable(format!(
                "`{scheme}:` is not a database this program knows: use sqlite:PATH or postgres://…"
            ))),
            None if text.is_empty() => Err(StoreError::Unusable("the database URL is empty".into())),
            None => Ok(Self::Sqlite(text.into())),
        }
    }

    /// The folder for what belongs to this database and is not in it, unless another is named: `windlass-data` beside
    /// `windlass.db`.
    pub fn data_dir(&self) -> PathBuf {
        match self {
            Self::Sqlite(path) => {
                let mut name = path.file_stem().unwrap_or_default().to_owned();
                name.push("-data");
                path.with_file_name(name)
            }
            Self::Postgres(_) => PathBuf::from("windlass-data"),
        }
    }
}

/// The key file's name, in the folder that belongs to a database.
pub const KEY_FILE: &str = "secret.key";

#[derive(Clone, Debug, Default)]
pub struct StoreOptions {
    pub clock: Clock,
    /// Serve on a database that could lose acknowledged work.
    pub unsafe_durability: bool,
    /// Another server or engine on the same SQLite file is refused.
    pub exclusive: bool,
    /// What secrets are sealed with; `secret.key` in the folder that belongs to the database, unless given. It is made when
    /// the first secret is sealed.
    pub key_file: Option<PathBuf>,
}

/// A handle on the database; cheap to clone.
#[derive(Clone)]
pub struct Store {
    inner: Arc<Inner>,
}

struct Inner {
    backend: Backend,
    clock: Clock,
    hints: Hints,
    lines: Lines,
    lanes: LaneCache,
    floors: Floors,
    habits: Habits,
    in_hand: InHand,
    batchers: Batchers,
    carried_on: TaskTracker,
    tokens: TokenCache,
    surroundings: Kept<(TenantId, Name), Surroundings>,
    signatures: Kept<TenantId, SignatureIndex>,
    ended: EndedFeed,
    figures: Kept<(TenantId, FigureKey), Figure>,
    quota_use: QuotaUse,
    secret_keys: SecretKeys,
    turn: Turn,
    paces: Paces,
    looks: Looks,
}

enum Backend {
    Sqlite(Sqlite),
    Postgres(Postgres),
}

impl Store {
    /// Opens the database without touching its schema.
    pub async fn open(url: &DatabaseUrl, options: StoreOptions) -> Result<Self, StoreError> {
        let key_file = options.key_file.clone().unwrap_or_else(|| url.data_dir().join(KEY_FILE));
        let backend = match url {
            DatabaseUrl::Sqlite(path) => Backend::Sqlite(Sqlite::open(path, options.clock.clone(), options.exclusive)?),
            DatabaseUrl::Postgres(url) => {
                let postgres = Postgres::connect(url, options.clock.clone()).await?;
                if !options.unsafe_durability {
                    refuse_less_than_durable(&postgres).await?;
                }
                Backend::Postgres(postgres)
            }
        };
        let is_postgres = matches!(backend, Backend::Postgres(_));
        Ok(Self {
            inner: Arc::new(Inner {
                backend,
                clock: options.clock,
                hints: Hints::default(),
                lines: Lines::default(),
                lanes: LaneCache::default(),
                floors: Floors::default(),
                habits: Habits::default(),
                in_hand: InHand::default(),
                batchers: if is_postgres { Batchers::on_postgres() } else { Batchers::on_sqlite() },
                carried_on: TaskTracker::new(),
                tokens: TokenCache::default(),
                surroundings: Kept::new(Duration::from_millis(SURROUNDINGS_MS), SURROUNDINGS_KEPT),
                signatures: Kept::new(Duration::from_millis(SURROUNDINGS_MS), SURROUNDINGS_KEPT),
                ended: EndedFeed::default(),
                figures: Kept::new(Duration::from_millis(FIGURES_MS), FIGURES_KEPT),
                quota_use: QuotaUse::default(),
                secret_keys: SecretKeys::in_file(key_file),
                turn: Turn::default(),
                paces: Paces::default(),
                looks: Looks::default(),
            }),
        })
    }

    /// Runs an operation in a transaction of its own (on SQLite: in a commit shared with others).
    pub async fn write<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        self.write_late(|| operation).await
    }

    /// The same for an operation that is put together once there is a transaction for it.
    pub(crate) async fn write_late<O: Operation>(
        &self,
        make: impl FnOnce() -> O + Send + 'static,
    ) -> Result<O::Output, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => sqlite.write(make).await,
            Backend::Postgres(postgres) => postgres.write(make).await,
        }
    }

    /// Runs an operation that only reads.
    pub async fn read<O: Operation>(&self, operation: O) -> Result<O::Output, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => sqlite.read(operation).await,
            Backend::Postgres(postgres) => postgres.read(operation).await,
        }
    }

    pub fn is_postgres(&self) -> bool {
        matches!(self.inner.backend, Backend::Postgres(_))
    }

    /// Has done at once what PostgreSQL would do by itself after many changes: measurements begin so.
    pub async fn vacuum(&self) -> Result<(), StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(_) => Ok(()),
            Backend::Postgres(postgres) => postgres.vacuum().await,
        }
    }

    /// Whether a pooler stands between us and PostgreSQL, so that nothing may live in a session.
    pub fn is_behind_a_pooler(&self) -> bool {
        match &self.inner.backend {
            Backend::Sqlite(_) => false,
            Backend::Postgres(postgres) => postgres.is_behind_a_pooler(),
        }
    }

    /// The file, on SQLite.
    pub fn sqlite_path(&self) -> Option<&std::path::Path> {
        match &self.inner.backend {
            Backend::Sqlite(sqlite) => Some(sqlite.path()),
            Backend::Postgres(_) => None,
        }
    }

    pub fn clock(&self) -> &Clock {
        &self.inner.clock
    }

    pub fn hints(&self) -> &Hints {
        &self.inner.hints
    }

    /// Of those who wait for something to claim.
    pub fn lines(&self) -> &Lines {
        &self.inner.lines
    }

    pub(crate) fn lanes(&self) -> &LaneCache {
        &self.inner.lanes
    }

    pub(crate) fn floors(&self) -> &Floors {
        &self.inner.floors
    }

    pub(crate) fn habits(&self) -> &Habits {
        &self.inner.habits
    }

    pub(crate) fn in_hand(&self) -> &InHand {
        &self.inner.in_hand
    }

    pub(crate) fn triggers_cache(&self) -> &TriggerCache {
        &self.inner.lanes.triggers
    }

    pub(crate) fn batchers(&self) -> &Batchers {
        &self.inner.batchers
    }

    /// Does what is to be done even if whoever waits for it leaves.
    pub fn carry_on<F>(&self, work: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.inner.carried_on.spawn(work)
    }

    pub(crate) fn tokens(&self) -> &TokenCache {
        &self.inner.tokens
    }

    pub(crate) fn kept_surroundings(&self) -> &Kept<(TenantId, Name), Surroundings> {
        &self.inner.surroundings
    }

    pub(crate) fn kept_signatures(&self) -> &Kept<TenantId, SignatureIndex> {
        &self.inner.signatures
    }

    pub(crate) fn ended_feed(&self) -> &EndedFeed {
        &self.inner.ended
    }

    pub(crate) fn kept_figures(&self) -> &Kept<(TenantId, FigureKey), Figure> {
        &self.inner.figures
    }

    pub(crate) fn secret_keys(&self) -> &SecretKeys {
        &self.inner.secret_keys
    }

    pub(crate) fn turn(&self) -> &Turn {
        &self.inner.turn
    }

    pub(crate) fn paces(&self) -> &Paces {
        &self.inner.paces
    }

    pub(crate) fn looks(&self) -> &Looks {
        &self.inner.looks
    }

    pub(crate) fn quota_use(&self) -> &QuotaUse {
        &self.inner.quota_use
    }

    /// A PostgreSQL setting, as the server tells it.
    pub async fn postgres_setting(&self, name: &str) -> Result<Option<String>, StoreError> {
        match &self.inner.backend {
            Backend::Sqlite(_) => Ok(None),
            Backend::Postgres(postgres) => postgres.show(name).await.map(Some),
        }
    }
}

/// X2: an acknowledged write survives a power cut, or this program does not serve.
async fn refuse_less_than_durable(postgres: &Postgres) -> Result<(), StoreError> {
    for (setting, bad) in [("fsync", &["off"][..]), ("synchronous_commit", &["off"]), ("full_page_writes", &["off"])] {
        let value = postgres.show(setting).await?;
        if bad.contains(&value.as_str()) {
            return Err(StoreError::Unusable(format!(
                "PostgreSQL runs with {setting}={value}, which can lose acknowledged work; set it to on, \
                 or accept the loss with --unsafe"
            )));
        }
    }
    Ok(())
}
