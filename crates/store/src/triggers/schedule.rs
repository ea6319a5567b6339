//! Computes the slots of a schedule: a cron expression in a time zone, with daylight saving time.
//!
//! A fixed time in the spring gap fires at the end of the gap. A fixed time that occurs twice in autumn fires once, at the
//! first occurrence. A step like `*/15 2 * * *` has no slots in the gap.

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use domain::Time;
use jiff::Timestamp;
use jiff::tz::{TimeZone, TimeZoneDatabase};

use crate::triggers::fault::Fault;
use crate::triggers::filter::Schedule;

/// Maximum length of a cron expression.
const SCHEDULE_BYTES: usize = 256;

/// A parsed schedule.
pub struct Slots {
    cron: Cron,
    zone: TimeZone,
}

impl Slots {
    /// Parses and validates a schedule.
    pub fn read(schedule: &Schedule) -> Result<Self, Fault> {
        if schedule.schedule.len() > SCHEDULE_BYTES {
            return Err(Fault::new("schedule", format!("may have at most {SCHEDULE_BYTES} bytes")));
        }
        let cron = parse(&schedule.schedule).map_err(|reason| Fault::new("schedule", reason))?;
        // Use the bundled time zone database, so that a zone means the same on every node and after a system update.
        let zone = TimeZoneDatabase::bundled()
            .get(&schedule.timezone)
            .map_err(|_| Fault::new("timezone", "must be an IANA name like Europe/Berlin, or UTC"))?;
        let slots = Self { cron, zone };
        match slots.after(Time::from_seconds(0)) {
            Some(_) => Ok(slots),
            None => Err(Fault::new("schedule", "has no slots")),
        }
    }

    /// Returns the first slot after `time`.
    pub fn after(&self, time: Time) -> Option<Time> {
        let zoned = Timestamp::from_microsecond(time.micros()).ok()?.to_zoned(self.zone.clone());
        let next = self.cron.find_next_occurrence(&zoned, false).ok()?.timestamp();
        Some(Time::from_micros(next.as_microsecond())).filter(|next| *next > time)
    }

    /// Returns the next `count` slots after `after`.
    pub fn next(&self, after: Time, count: usize) -> Vec<Time> {
        std::iter::successors(self.after(after), |slot| self.after(*slot)).take(count).collect()
    }

    /// Returns the latest slots from `from` to `until`, oldest first, at most `limit` of them.
    ///
    /// It only iterates forward: backward iteration in the cron library misses slots next to some clock changes. It starts
    /// with the last minute and doubles the window until the window has enough slots or reaches `from`.
    pub fn between(&self, from: Time, until: Time, limit: usize) -> Vec<Time> {
        let mut window_ms = 60_000;
        loop {
            let start = from.max(until.plus_ms(-window_ms));
            let first = self.after(Time::from_micros(start.micros().saturating_sub(1)));
            let slots = std::iter::successors(first, |slot| self.after(*slot)).take_while(|slot| *slot <= until);
            let mut latest: Vec<Time> = slots.collect();
            if latest.len() >= limit || start == from {
                return latest.split_off(latest.len().saturating_sub(limit));
            }
            window_ms = window_ms.saturating_mul(2);
        }
    }
}

const FIELDS: [&str; 6] = ["second", "minute", "hour", "day of the month", "month", "day of the week"];

/// Parses a cron expression. An error names the field that is wrong.
fn parse(text: &str) -> Result<Cron, String> {
    let parser = CronParser::builder().seconds(Seconds::Optional).year(Year::Disallowed).build();
    let error = match parser.parse(text) {
        Ok(cron) => return Ok(cron),
        Err(error) => error,
    };
    let fields: Vec<&str> = text.split_whitespace().collect();
    if text.starts_with('@') {
        return Err(format!(
            "is not a cron expression: {text} is unknown; use @hourly, @daily, @weekly or five fields"
        ));
    }
    if !matches!(fields.len(), 5 | 6) {
        let names = FIELDS[1..].join(", ");
        return Err(format!(
            "has {} fields; a cron expression has five: {names}; or six with seconds first",
            fields.len()
        ));
    }
    let names = &FIELDS[FIELDS.len() - fields.len()..];
    for (place, (field, name)) in fields.iter().zip(names).enumerate() {
        // Every other field accepts any value, so the error is about this field.
        let alone: Vec<&str> = (0..fields.len()).map(|other| if other == place { *field } else { "*" }).collect();
        if let Err(error) = parser.parse(&alone.join(" ")) {
            return Err(format!("has an invalid {name} `{field}`: {error}"));
        }
    }
    Err(format!("is not a cron expression: {error}"))
}

#[cfg(test)]
mod tests;
