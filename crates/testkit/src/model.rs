//! The reference model; see `Model`.
