//! Pages for subjects.

pub mod subjects;
