use super::*;

fn facts(state: JobState) -> SignalFacts<'static> {
    SignalFacts {
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
        reported_kind: None,
        reported_summary: None,
        obstacle: None,
        position: None,
        eta: None,
        prediction: None,
        likely_cause: None,
    }
}

fn position(ahead: u64) -> QueuePosition {
    QueuePosition { ahead, workers: 1, ..QueuePosition::default() }
}

fn check(facts: &SignalFacts<'_>, expected: &str) {
    assert_eq!(facts.summary(), expected);
}

/// Requirement S1.
#[test]
fn the_summary_of_a_queued_job_has_position_loaded_model_and_eta() {
    let by_affinity = vec![("llama3".to_owned(), 2)];
    let position_2 = QueuePosition { ahead_by_affinity: by_affinity, loaded: vec!["mistral".into()], ..position(2) };
    let queued = SignalFacts {
        affinity: Some("mistral"),
        position: Some(position_2),
        eta: Some(Eta { p50_s: 40.0, p90_s: 60.0 }),
        ..facts(JobState::Queued)
    };
    check(&queued, "3rd in line behind 2 llama3 jobs; model mistral is loaded; done in about 40 s.");
    let alone = SignalFacts { position: Some(QueuePosition { workers: 0, ..position(0) }), ..facts(JobState::Queued) };
    check(&alone, "Next in line; no live worker serves it.");
    let unknown = SignalFacts { position: Some(position(1)), ..facts(JobState::Queued) };
    check(&unknown, "2nd in line behind 1 job; no ETA: too few completed jobs of this kind.");
    let far = SignalFacts {
        position: Some(QueuePosition { is_estimate: true, ..position(41_233) }),
        eta: queued.eta,
        ..unknown
    };
    check(&far, "About 41234th in line behind 41233 jobs; done in about 40 s.");
}

/// Requirement S1.
#[test]
fn an_obstacle_replaces_the_queue_position_in_the_signal() {
    let paused = SignalFacts {
        obstacle: Some(Obstacle::Paused { reason: "deploy".into() }),
        position: Some(position(4)),
        ..facts(JobState::Queued)
    };
    check(&paused, "The queue is paused: deploy.");
    assert_eq!(paused.kind(), SignalKind::Blocked);
    let until = Some(Time::from_seconds(1_009));
    let backoff = Obstacle::Backoff { cause: "the model phi could not be loaded".into(), until };
    let expected = "The model phi could not be loaded; retry in about 9 s.";
    check(&SignalFacts { obstacle: Some(backoff), ..paused.clone() }, expected);
    let lost = SignalFacts { obstacle: Some(Obstacle::Lost { detail: "the node b is lost".into() }), ..paused };
    check(&lost, "The node b is lost.");
    assert_eq!(lost.kind(), SignalKind::Unavailable);
}

/// Requirement S8.
#[test]
fn a_failure_prediction_includes_its_evidence() {
    let prediction = FailurePrediction {
        error_code: Some("LAYER_EXTRACT_FAILED".into()),
        phase: Some("analyze".into()),
        likely_cause: Some("registry rate limiting".into()),
        mttr_p50_s: Some(300.0),
        evidence: Some(Evidence { failed: 3, of: 5, by: "image" }),
    };
    let expected = "3 of the last 5 with this image failed in analyze: LAYER_EXTRACT_FAILED; usually registry rate \
                    limiting; clears in about 5 min";
    assert_eq!(prediction.sentence(), expected);
}

/// Requirement S1.
#[test]
fn the_summary_of_a_running_or_ended_job_describes_its_attempt() {
    let running = SignalFacts {
        attempt: 1,
        started_at: Some(Time::from_seconds(990)),
        phase: Some("fetch"),
        eta: Some(Eta { p50_s: 20.0, p90_s: 30.0 }),
        ..facts(JobState::Working)
    };
    check(&running, "Attempt 1 of 3 has been running for 10 s; phase fetch; about 20 s left.");
    assert_eq!(running.kind(), SignalKind::Phase);
    let error = JobError { code: "boom".into(), message: "it broke\nat line 7".into(), retryable: true };
    let failed = SignalFacts {
        attempt: 3,
        error: Some(&error),
        finished_at: Some(Time::from_seconds(1_000)),
        ..SignalFacts { state: JobState::Failed, ..running }
    };
    check(&failed, "Failed with boom on attempt 3 in fetch after 10 s; it broke.");
}

/// Requirement S2.
#[test]
fn the_signal_of_an_ended_job_follows_its_state() {
    for reported in SignalKind::ALL {
        let ended = SignalFacts {
            reported_kind: Some(reported),
            reported_summary: Some("still at it"),
            ..facts(JobState::Succeeded)
        };
        assert_eq!(ended.kind(), SignalKind::Succeeded);
        check(&ended, "Succeeded on attempt 0.");
    }
}

#[test]
fn ordinals_have_their_english_suffixes() {
    let ordinals = [1, 2, 3, 4, 11, 12, 13, 21, 102, 111].map(ordinal);
    assert_eq!(ordinals, ["1st", "2nd", "3rd", "4th", "11th", "12th", "13th", "21st", "102nd", "111th"]);
}
