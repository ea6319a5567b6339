//! When a schedule fires: cron expressions in a time zone, with daylight saving as people expect it (T10).
//!
//! A fixed time that the spring gap leaves out fires at the end of the gap; one that the autumn brings twice fires once,
//! the first time. A step like `*/15 2 * * *` has no slots in the gap.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use domain::Time;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::triggers::fault::Fault;
use crate::triggers::filter::Schedule;

/// Longest text of an expression.
const SCHEDULE_BYTES: usize = 256;

pub struct Slots {
    cron: Cron,
    zone: TimeZone,
}

impl Slots {
    pub fn read(schedule: &Schedule) -> Result<Self, Fault> {
        if schedule.schedule.len() > SCHEDULE_BYTES {
            return Err(Fault::new("schedule", format!("may have at most {SCHEDULE_BYTES} bytes")));
        }
        let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
        let cron = parser
            .parse(&schedule.schedule)
            .map_err(|error| Fault::new("schedule", format!("is not a cron expression: {error}")))?;
        // The program's own copy: on every node, and after every change of the system, a zone is the same one.
        let zone = TimeZoneDatabase::bundled()
            .get(&schedule.timezone)
            .map_err(|_| Fault::new("timezone", "must be an IANA name like Europe/Berlin, or UTC"))?;
        let slots = Self { cron, zone };
        match slots.after(Time::from_seconds(0)) {
            Some(_) => Ok(slots),
            None => Err(Fault::new("schedule", "never comes")),
        }
    }

    /// The first slot after this moment.
    pub fn after(&self, time: Time) -> Option<Time> {
        let zoned = Timestamp::from_microsecond(time.micros()).ok()?.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&zoned, false).ok()?.timestamp();
        Some(Time::from_micros(next.as_microsecond())).filter(|next| *next > time)
    }

    /// The next slots after this moment.
    pub fn next(&self, after: Time, count: usize) -> Vec<Time> {
        std::iter::successors(self.after(after), |slot| self.after(*slot)).take(count).collect()
    }

    /// The latest slots from `from` to `until`, oldest first, at most `most` of them.
    ///
    /// Only ever forward: looking back, the library misses slots beside some changes of the clocks. So it looks at the
    /// last minute, then at twice as much and so on, until that holds enough slots or all there are.
    pub fn between(&self, from: Time, until: Time, most: usize) -> Vec<Time> {
        let mut window_ms = 60_000;
        loop {
            let start = from.max(until.plus_ms(-window_ms));
            let before = self.after(Time::from_micros(start.micros().saturating_sub(1)));
            let slots = std::iter::successors(before, |slot| self.after(*slot)).take_while(|slot| *slot <= until);
            let mut latest: Vec<Time> = slots.collect();
            if latest.len() >= most || start == from {
                return latest.split_off(latest.len().saturating_sub(most));
            }
            window_ms = window_ms.saturating_mul(2);
        }
    }
}

#[cfg(test)]
mod tests;
