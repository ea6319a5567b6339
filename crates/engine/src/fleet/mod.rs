//! Background tasks of the fleet.

pub(crate) mod scan_subjects;
