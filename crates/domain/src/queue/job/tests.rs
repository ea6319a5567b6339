//! The complete transition table, and random sequences of events.

use super::*;
use crate::limits::RETRY_MAX_S;
use proptest::prelude::*;
use uuid::Uuid;

fn worker(n: u128) -> WorkerId {
    WorkerId::new(Uuid::from_u128(n))
}

fn at(seconds: i64) -> Time {
    Time::from_seconds(seconds)
}

fn boom() -> JobError {
    JobError { code: "boom".into(), message: "it broke".into(), retryable: true }
}

fn queued() -> Job {
    Job {
        state: State::Queued { since: at(0) },
        epoch: Epoch(7),
        attempt: 0,
        max_attempts: 3,
        retry: RetryPolicy::NONE,
        wait_s: None,
    }
}

fn claimed() -> Job {
    queued().apply(Event::Claim { worker: worker(1), loads: false }, at(1)).expect("a queued job can be claimed")
}

fn held(epoch: i64) -> ClaimRef {
    ClaimRef { worker: worker(1), epoch: Epoch(epoch) }
}

fn in_every_state() -> Vec<Job> {
    let with = |state| Job { state, ..claimed() };
    let claim = Claim { worker: worker(1), epoch: Epoch(8), at: at(1), waiting_since: at(0), begun: false };
    vec![
        with(State::Waiting { run_at: at(0) }),
        with(State::Scheduled { run_at: at(50) }),
        with(State::Queued { since: at(0) }),
        with(State::Loading(claim)),
        with(State::Working(claim)),
        with(State::Ended { at: at(2), outcome: Outcome::Succeeded }),
        with(State::Ended { at: at(2), outcome: Outcome::Failed(boom()) }),
        with(State::Ended { at: at(2), outcome: Outcome::Canceled }),
    ]
}

fn every_event(by: ClaimRef) -> Vec<(&'static str, Event)> {
    vec![
        ("wake", Event::Wake),
        ("due", Event::Due),
        ("claim", Event::Claim { worker: worker(2), loads: false }),
        ("claim and load", Event::Claim { worker: worker(2), loads: true }),
        ("load", Event::Load { by }),
        ("work", Event::Work { by }),
        ("finish", Event::Finish { by }),
        ("fail", Event::Fail { by, error: boom(), random_unit: 0.0, retry_at: None }),
        ("snooze", Event::Snooze { by, delay_ms: 1_000 }),
        ("release", Event::Release { by }),
        ("expire", Event::Expire { by }),
        ("time out", Event::TimeOut { by, timeout_s: 5, random_unit: 0.0 }),
        ("pass deadline", Event::PassDeadline { deadline_s: 9 }),
        ("interrupt", Event::Interrupt),
        ("cancel", Event::Cancel),
        ("cancel claimed", Event::CancelClaimed { by }),
    ]
}

/// The complete transition table. A dash is a refusal.
/// Requirement Q2.
#[test]
fn the_transition_table_matches_its_specification() {
    let table = in_every_state()
        .iter()
        .map(|job| {
            let after = every_event(held(8)).into_iter().map(|(name, event)| match job.apply(event, at(60)) {
                Ok(next) => format!("{name}: {}", next.job_state()),
                Err(_) => format!("{name}: -"),
            });
            format!("{} | {}", job.job_state(), after.collect::<Vec<_>>().join(", "))
        })
        .collect::<Vec<_>>();
    let claimed_row = "wake: -, due: -, claim: -, claim and load: -, load: loading, work: working, finish: succeeded, fail: scheduled, \
                       snooze: scheduled, release: queued, expire: queued, time out: scheduled, pass deadline: failed, interrupt: queued, \
                       cancel: canceled, cancel claimed: canceled";
    let ended_row = "wake: -, due: -, claim: -, claim and load: -, load: -, work: -, finish: -, fail: -, snooze: -, release: -, expire: -, \
                     time out: -, pass deadline: -, interrupt: -, cancel: -, cancel claimed: -";
    let unclaimed = |wake: &str, due: &str, claim: &str, load: &str| {
        format!(
            "wake: {wake}, due: {due}, claim: {claim}, claim and load: {load}, load: -, work: -, finish: -, fail: -, snooze: -, release: -, expire: -, \
             time out: -, pass deadline: failed, interrupt: -, cancel: canceled, cancel claimed: -"
        )
    };
    assert_eq!(
        table,
        [
            format!("waiting | {}", unclaimed("queued", "-", "-", "-")),
            format!("scheduled | {}", unclaimed("-", "queued", "-", "-")),
            format!("queued | {}", unclaimed("-", "-", "working", "loading")),
            format!("loading | {claimed_row}"),
            format!("working | {claimed_row}"),
            format!("succeeded | {ended_row}"),
            format!("failed | {ended_row}"),
            format!("canceled | {ended_row}"),
        ]
    );
}

#[test]
fn a_woken_job_goes_to_the_end_of_the_queue_or_stays_until_its_time() {
    let woken = |run_at, now| {
        let waiting = Job { state: State::Waiting { run_at: at(run_at) }, ..queued() };
        waiting.apply(Event::Wake, at(now)).expect("a waiting job can be woken")
    };
    assert_eq!(woken(5, 60).state, State::Queued { since: at(60) });
    assert_eq!(woken(90, 60).state, State::Scheduled { run_at: at(90) });
    assert_eq!(woken(5, 60).attempt, 0);
}

#[test]
fn a_worker_that_lost_its_claim_cannot_fail_the_job() {
    let event = Event::Fail { by: held(7), error: boom(), random_unit: 0.0, retry_at: None };
    assert_eq!(claimed().apply(event, at(1)), Err(Refusal::ClaimLost));
}

/// Requirement Q2.
#[test]
fn a_working_job_cannot_return_to_loading() {
    let by = held(8);
    let loading = claimed().apply(Event::Load { by }, at(2)).expect("a fresh claim may load");
    let working = loading.apply(Event::Work { by }, at(3)).expect("then work");
    assert_eq!(working.apply(Event::Load { by }, at(4)), Err(Refusal::Illegal { state: JobState::Working }));
}

/// Requirement X3.
#[test]
fn the_current_epoch_from_another_worker_is_claim_lost() {
    let by = ClaimRef { worker: worker(2), epoch: Epoch(8) };
    assert_eq!(claimed().apply(Event::Finish { by }, at(1)), Err(Refusal::ClaimLost));
}

#[test]
fn a_second_outcome_is_already_ended_and_a_stale_one_is_claim_lost() {
    let ended = claimed().apply(Event::Finish { by: held(8) }, at(2)).expect("finishes");
    assert_eq!(ended.apply(Event::Finish { by: held(8) }, at(3)), Err(Refusal::AlreadyEnded));
    assert_eq!(ended.apply(Event::Finish { by: held(7) }, at(3)), Err(Refusal::ClaimLost));
}

/// Requirement Q7.
#[test]
fn release_and_snooze_return_the_attempt_and_expiry_does_not() {
    let attempt = |event| claimed().apply(event, at(2)).expect("applies").attempt;
    assert_eq!(attempt(Event::Release { by: held(8) }), 0);
    assert_eq!(attempt(Event::Snooze { by: held(8), delay_ms: 5 }), 0);
    assert_eq!(attempt(Event::Expire { by: held(8) }), 1);
    assert_eq!(attempt(Event::Fail { by: held(8), error: boom(), random_unit: 0.0, retry_at: None }), 1);
}

/// Requirement Q7.
#[test]
fn a_released_or_expired_job_keeps_its_queue_position() {
    let after = |event| claimed().apply(event, at(99)).expect("applies").state;
    assert_eq!(after(Event::Release { by: held(8) }), State::Queued { since: at(0) });
    assert_eq!(after(Event::Expire { by: held(8) }), State::Queued { since: at(0) });
}

#[test]
fn a_failed_expired_or_timed_out_last_attempt_ends_the_job() {
    let last = Job { attempt: 3, ..claimed() };
    let after = |event| last.apply(event, at(2)).expect("applies").job_state();
    assert_eq!(after(Event::Fail { by: held(8), error: boom(), random_unit: 0.0, retry_at: None }), JobState::Failed);
    assert_eq!(after(Event::Expire { by: held(8) }), JobState::Failed);
    assert_eq!(after(Event::TimeOut { by: held(8), timeout_s: 1, random_unit: 0.0 }), JobState::Failed);
    assert_eq!(after(Event::Release { by: held(8) }), JobState::Queued);
}

/// Requirement Q8.
#[test]
fn a_non_retryable_failure_ends_the_job_immediately() {
    let error = JobError { retryable: false, ..boom() };
    let after = claimed()
        .apply(Event::Fail { by: held(8), error: error.clone(), random_unit: 0.0, retry_at: None }, at(2))
        .expect("applies");
    assert_eq!(after.state, State::Ended { at: at(2), outcome: Outcome::Failed(error) });
}

#[test]
fn a_timeout_increments_the_epoch_and_fences_the_late_outcome() {
    let after =
        claimed().apply(Event::TimeOut { by: held(8), timeout_s: 1, random_unit: 0.0 }, at(2)).expect("applies");
    assert_eq!(after.epoch, Epoch(9));
    assert_eq!(after.apply(Event::Finish { by: held(8) }, at(3)), Err(Refusal::ClaimLost));
}

fn any_event() -> impl Strategy<Value = (usize, i64, u128)> {
    (0usize..13, -1i64..2, 1u128..3)
}

proptest! {
    /// For any sequence of events, the epoch only grows, attempts stay in bounds, and terminal states are final.
    #[test]
    fn no_sequence_of_events_breaks_the_job_invariants(events in proptest::collection::vec(any_event(), 1..80)) {
        let mut job = Job { epoch: Epoch(0), ..queued() };
        let mut now = at(0);
        for (which, off, by) in events {
            now = now.plus_s(1);
            let by = ClaimRef { worker: worker(by), epoch: Epoch(job.epoch.0 + off) };
            let event = every_event(by).swap_remove(which).1;
            let before = job.clone();
            if let Ok(after) = job.apply(event, now) {
                prop_assert!(!before.job_state().is_terminal());
                prop_assert!(after.epoch >= before.epoch);
                prop_assert!((0..=after.max_attempts).contains(&after.attempt));
                if let State::Scheduled { run_at } = after.state {
                    prop_assert!(run_at >= now && run_at <= now.plus_s(RETRY_MAX_S));
                }
                job = after;
            } else {
                prop_assert_eq!(&before, &job);
            }
        }
    }
}

#[test]
fn a_failing_worker_may_choose_the_time_of_the_next_attempt() {
    let fail = |error: JobError, at_s: i64| {
        let retry_at = Some(at(at_s));
        let event = Event::Fail { by: held(8), error, random_unit: 0.0, retry_at };
        claimed().apply(event, at(60)).expect("applies")
    };
    let failed = fail(boom(), 7_200);
    assert_eq!((failed.state, failed.wait_s), (State::Scheduled { run_at: at(7_200) }, claimed().wait_s));
    assert_eq!(fail(boom(), 5).state, State::Scheduled { run_at: at(60) }, "never in the past");
    let permanent = fail(JobError { retryable: false, ..boom() }, 7_200);
    assert_eq!(permanent.job_state(), JobState::Failed, "a permanent error still ends the job");
}

#[test]
fn an_error_is_summarized_by_its_code_and_the_first_line_of_its_message() {
    let error = |message: &str| JobError { message: message.into(), ..boom() }.summary();
    assert_eq!(error("BMC did not answer\nat 10.0.0.7"), "boom: BMC did not answer");
    assert_eq!(error(""), "boom");
    assert_eq!(error(&"x".repeat(10_000)).len(), crate::limits::REASON_BYTES);
}

#[test]
fn an_interrupt_takes_the_claim_and_its_attempt_back() {
    let before = claimed();
    let after = before.apply(Event::Interrupt, at(9)).expect("applies");
    assert_eq!(after.state, State::Queued { since: at(9) });
    assert_eq!((after.epoch, after.attempt), (before.epoch.next(), before.attempt - 1));
}

#[test]
fn a_job_past_its_deadline_fails_for_good() {
    let after = claimed().apply(Event::PassDeadline { deadline_s: 60 }, at(9)).expect("applies");
    let error = after.failure().expect("failed");
    assert_eq!((error.code.as_str(), error.retryable), ("deadline", false));
    assert_eq!(error.message, "the job did not end within its deadline of 60 s");
}
