//! First signals: what is happening to a job, told from its row, from what was said of it, and from what surrounds it.

pub mod calibration;
pub mod figures;
pub mod list;
pub mod read;
pub mod refine;
pub mod sources;
pub mod surroundings;
pub mod versions;
