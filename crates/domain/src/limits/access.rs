//! Limits of tenants, tokens and sessions.

/// Keys that one query finds for the deletion of a tenant.
pub const TENANT_DELETE_KEYS: usize = 50_000;
/// Rows that one transaction deletes for the deletion of a tenant.
pub const TENANT_DELETE_ROWS: usize = 500;
/// Random letters and digits in a token: 256 bits.
pub const TOKEN_RANDOM_CHARS: usize = 43;
/// Queues that a token can be restricted to, and tenants that it can serve.
pub const TOKEN_SCOPE_ITEMS: usize = 100;
/// Active tokens of one tenant.
pub const TOKENS_PER_TENANT: usize = 10_000;
/// How long revoked and expired tokens stay listed.
pub const ENDED_TOKEN_RETENTION_S: i64 = 366 * 24 * 3_600;
pub const TENANTS: usize = 10_000;
/// Tokens that one node caches.
pub const TOKENS_CACHED: usize = 10_000;
/// How long a node uses its token cache without asking the database. A revocation waits this long before it returns, so
/// that no node accepts the token afterwards.
pub const TOKEN_CACHE_TTL_MS: u64 = 250;
/// Age at which a request refreshes the token cache in the background, before it expires.
pub const TOKEN_CACHE_REFRESH_AFTER_MS: u64 = 100;
/// Idle timeout of a dashboard session.
pub const SESSION_IDLE_S: i64 = 12 * 3_600;
/// Age at which a session's secret is rotated.
pub const SESSION_ROTATE_S: i64 = 3_600;
/// How long the previous secret stays valid after a rotation.
pub const SESSION_GRACE_S: i64 = 60;
pub const SESSIONS_PER_TOKEN: usize = 100;
