//! Live signals: their subscriptions and their rendering.

pub(crate) mod answer_sampler;
pub(crate) mod estimate;
pub(crate) mod streams;
pub(crate) mod view;
