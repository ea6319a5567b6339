use super::*;

fn facts(state: JobState) -> Facts<'static> {
    Facts {
        now: Time::from_seconds(1_000),
        state,
        queue: "q",
        affinity: None,
        attempt: 0,
        max_attempts: 3,
        run_at: Time::from_seconds(1_000),
        started_at: None,
        finished_at: None,
        phase: None,
        error: None,
        actor: None,
        said_kind: None,
        said_summary: None,
        obstacle: None,
        standing: None,
        eta: None,
        foretold: None,
    }
}

fn standing(ahead: u64) -> Standing {
    Standing { ahead, workers: 1, ..Standing::default() }
}

fn check(facts: &Facts<'_>, expected: &str) {
    assert_eq!(facts.summary(), expected);
}

#[test]
fn s1_a_waiting_job_says_its_place_what_is_loaded_and_when_it_is_done() {
    let by_affinity = vec![("llama3".to_owned(), 2)];
    let line = Standing { ahead_by_affinity: by_affinity, loaded: vec!["mistral".into()], ..standing(2) };
    let queued = Facts {
        affinity: Some("mistral"),
        standing: Some(line),
        eta: Some(Eta { p50_s: 40.0, p90_s: 60.0 }),
        ..facts(JobState::Queued)
    };
    check(&queued, "3rd in line behind 2 llama3 jobs; model mistral is loaded; done in about 40 s.");
    let alone = Facts { standing: Some(Standing { workers: 0, ..standing(0) }), ..facts(JobState::Queued) };
    check(&alone, "Next in line; no live worker serves it.");
    let unknown = Facts { standing: Some(standing(1)), ..facts(JobState::Queued) };
    check(&unknown, "2nd in line behind 1 job; too little is known of its kind to say when it is done.");
    let far = Facts { standing: Some(Standing { is_estimate: true, ..standing(41_233) }), eta: queued.eta, ..unknown };
    check(&far, "About 41234th in line behind 41233 jobs; done in about 40 s.");
}

#[test]
fn s1_an_obstacle_is_told_in_place_of_a_line_and_makes_the_signal_blocked_or_unavailable() {
    let paused = Facts {
        obstacle: Some(Obstacle::Paused { reason: "deploy".into() }),
        standing: Some(standing(4)),
        ..facts(JobState::Queued)
    };
    check(&paused, "The queue is paused: deploy.");
    assert_eq!(paused.kind(), SignalKind::Blocked);
    let until = Some(Time::from_seconds(1_009));
    let backoff = Obstacle::Backoff { cause: "the model phi could not be loaded".into(), until };
    let told = "The model phi could not be loaded; it is tried again in about 9 s.";
    check(&Facts { obstacle: Some(backoff), ..paused.clone() }, told);
    let lost = Facts { obstacle: Some(Obstacle::Lost { detail: "the node b is lost".into() }), ..paused };
    check(&lost, "The node b is lost.");
    assert_eq!(lost.kind(), SignalKind::Unavailable);
}

#[test]
fn s8_what_is_foretold_comes_with_its_evidence() {
    let foretold = Foretold {
        error_code: Some("LAYER_EXTRACT_FAILED".into()),
        phase: Some("analyze".into()),
        likely_cause: Some("registry rate limiting".into()),
        mttr_p50_s: Some(300.0),
        evidence: Some(Evidence { failed: 3, of: 5, by: "image" }),
    };
    let expected = "3 of the last 5 with this image failed in analyze: LAYER_EXTRACT_FAILED; usually registry rate \
                    limiting; clears in about 5 min";
    assert_eq!(foretold.sentence(), expected);
}

#[test]
fn s1_running_and_ended_jobs_say_what_they_did() {
    let running = Facts {
        attempt: 1,
        started_at: Some(Time::from_seconds(990)),
        phase: Some("fetch"),
        eta: Some(Eta { p50_s: 20.0, p90_s: 30.0 }),
        ..facts(JobState::Working)
    };
    check(&running, "Attempt 1 of 3 has been running for 10 s; phase fetch; about 20 s left.");
    assert_eq!(running.kind(), SignalKind::Phase);
    let error = JobError { code: "boom".into(), message: "it broke\nat line 7".into(), retryable: true };
    let failed = Facts {
        attempt: 3,
        error: Some(&error),
        finished_at: Some(Time::from_seconds(1_000)),
        ..Facts { state: JobState::Failed, ..running }
    };
    check(&failed, "Failed with boom on attempt 3 in fetch after 10 s; it broke.");
}

#[test]
fn s2_an_end_is_told_by_the_state_whatever_was_said_before() {
    for said in SignalKind::ALL {
        let ended = Facts { said_kind: Some(said), said_summary: Some("still at it"), ..facts(JobState::Succeeded) };
        assert_eq!(ended.kind(), SignalKind::Succeeded);
        check(&ended, "Succeeded on attempt 0.");
    }
}

#[test]
fn numbers_in_line_have_their_endings() {
    let told = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal);
    assert_eq!(told, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]);
}
