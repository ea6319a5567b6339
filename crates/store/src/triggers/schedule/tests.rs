use super::*;
use domain::triggers::trigger::Missed;
use proptest::prelude::*;

fn slots(schedule: &str, timezone: &str) -> Slots {
    let schedule = Schedule { schedule: schedule.into(), timezone: timezone.into(), missed: Missed::Skip };
    Slots::read(&schedule).unwrap_or_else(|fault| panic!("{fault}"))
}

fn time(text: &str) -> Time {
    Time::from_micros(text.parse::<Timestamp>().expect("a time").as_microsecond())
}

fn texts(times: &[Time]) -> Vec<String> {
    let text = |time: &Time| Timestamp::from_microsecond(time.micros()).expect("a time").to_string();
    times.iter().map(text).collect()
}

#[track_caller]
fn check(schedule: &str, timezone: &str, after: &str, expected: &[&str]) {
    assert_eq!(texts(&slots(schedule, timezone).next(time(after), expected.len())), expected);
}

/// Requirement T10.
#[test]
fn a_schedule_is_evaluated_in_its_time_zone() {
    check(
        "30 9 * * 1-5",
        "America/New_York",
        "2026-01-02T00:00:00Z",
        &["2026-01-02T14:30:00Z", "2026-01-05T14:30:00Z"],
    );
    check("0 0 29 2 *", "UTC", "2026-01-01T00:00:00Z", &["2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z"]);
    check("*/20 * * * * *", "UTC", "2026-01-01T00:00:01Z", &["2026-01-01T00:00:20Z", "2026-01-01T00:00:40Z"]);
}

/// Requirement T10.
#[test]
fn in_spring_a_fixed_time_inside_the_gap_fires_at_its_end() {
    // On 29 March 2026 Berlin goes from 02:00 to 03:00.
    let expected = ["2026-03-28T01:30:00Z", "2026-03-29T01:00:00Z", "2026-03-30T00:30:00Z"];
    check("30 2 * * *", "Europe/Berlin", "2026-03-28T00:00:00Z", &expected);
    check("*/15 2 * * *", "Europe/Berlin", "2026-03-28T01:50:00Z", &["2026-03-30T00:00:00Z"]);
}

/// Requirement T10.
#[test]
fn in_autumn_a_fixed_time_fires_once_and_an_interval_continues() {
    // On 25 October 2026 Berlin goes from 03:00 back to 02:00.
    let expected = ["2026-10-24T00:30:00Z", "2026-10-25T00:30:00Z", "2026-10-26T01:30:00Z"];
    check("30 2 * * *", "Europe/Berlin", "2026-10-24T00:00:00Z", &expected);
    let expected = ["2026-10-25T00:00:00Z", "2026-10-25T00:30:00Z", "2026-10-25T01:00:00Z", "2026-10-25T01:30:00Z"];
    check("*/30 * * * *", "Europe/Berlin", "2026-10-24T23:59:00Z", &expected);
}

/// Requirement T10.
#[test]
fn an_invalid_schedule_or_time_zone_names_the_field() {
    let fault = |schedule: &str, timezone: &str| {
        let schedule = Schedule { schedule: schedule.into(), timezone: timezone.into(), missed: Missed::Skip };
        Slots::read(&schedule).err().map(|fault| fault.field)
    };
    for bad in ["", "* * * *", "61 * * * *", "a b c d e", "0 0 30 2 *", "* * * * * * 2030", &"*".repeat(1000)] {
        assert_eq!(fault(bad, "UTC").as_deref(), Some("schedule"), "{bad}");
    }
    for bad in ["Mars/Olympus", "", "../../etc/passwd"] {
        assert_eq!(fault("* * * * *", bad).as_deref(), Some("timezone"), "{bad}");
    }
}

/// Requirement T10.
#[test]
fn the_latest_missed_slots_are_returned() {
    let hourly = slots("0 * * * *", "UTC");
    let (from, until) = (time("2026-01-01T00:00:00Z"), time("2026-01-01T05:30:00Z"));
    let expected = ["2026-01-01T04:00:00Z", "2026-01-01T05:00:00Z"];
    assert_eq!(texts(&hourly.between(from, until, 2)), expected);
    assert_eq!(hourly.between(from, until, 100).len(), 6, "both ends count");
    assert_eq!(hourly.between(until, from, 100), []);
    let every_second = slots("* * * * * *", "UTC");
    let found = every_second.between(time("2020-01-01T00:00:00Z"), until, 100);
    assert_eq!((found.len(), found[99]), (100, until), "the lookup does not iterate over years of missed slots");
}

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "America/New_York",
    "Australia/Lord_Howe",
    "America/St_Johns",
    "Asia/Kathmandu",
    "Africa/Casablanca",
    "Pacific/Apia",
    "America/Sao_Paulo",
    "Asia/Tehran",
];
const SCHEDULES: &[&str] =
    &["* * * * *", "*/7 * * * *", "0 * * * *", "30 2 * * *", "0 0 * * *", "15 1-3 * * 0", "59 23 L * *"];

proptest! {
    /// Around clock changes, slots strictly increase, and a later lookup of missed slots finds the same ones.
    /// Requirement T10.
    #[test]
    fn slots_increase_in_every_time_zone_and_missed_slots_match(
        zone in 0..ZONES.len(), schedule in 0..SCHEDULES.len(), at in 1_577_836_800i64..1_893_456_000
    ) {
        let slots = slots(SCHEDULES[schedule], ZONES[zone]);
        let zone = TimeZone::get(ZONES[zone]).expect("a zone");
        // Start near the next clock change, if there is one.
        let moment = Timestamp::from_second(at).expect("a time");
        let change = zone.following(moment).next().map_or(moment, |change| change.timestamp());
        let from = Time::from_seconds(change.as_second() - 3 * 3_600);
        let found = slots.next(from, 40);
        prop_assert!(found.windows(2).all(|pair| pair[0] < pair[1]));
        prop_assert!(found.iter().all(|slot| *slot > from));
        let last = *found.last().expect("slots");
        let back = slots.between(Time::from_micros(from.micros() + 1), last, 1_000);
        prop_assert_eq!(back, found);
    }
}

/// Requirement T10.
#[test]
fn an_invalid_cron_expression_names_its_wrong_field() {
    let refused = |schedule: &str| {
        let schedule = Schedule { schedule: schedule.into(), timezone: "UTC".into(), missed: Missed::Skip };
        Slots::read(&schedule).map(drop).expect_err("it is refused").to_string()
    };
    for (schedule, part) in [
        ("61 * * * *", "invalid minute `61`"),
        ("* 25 * * *", "invalid hour `25`"),
        ("* * 32 * *", "invalid day of the month `32`"),
        ("* * * 13 *", "invalid month `13`"),
        ("* * * * someday", "invalid day of the week `someday`"),
        ("99 * * * * *", "invalid second `99`"),
        ("* * *", "has 3 fields; a cron expression has five"),
        ("every minute", "has 2 fields"),
        ("@sometimes", "@sometimes is unknown"),
    ] {
        let error = refused(schedule);
        assert!(error.contains(part), "{schedule}: {error}");
    }
}
