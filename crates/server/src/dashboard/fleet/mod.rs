//! Pages for subjects.

pub(crate) mod subjects;
