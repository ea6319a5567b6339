//! Caches shared by all groups.

pub(crate) mod stale_while_revalidate;
