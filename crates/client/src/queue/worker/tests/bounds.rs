//! Limits for outcomes are reported to the handler.

use super::*;

fn on_a_subject() -> ClaimedJob {
    ClaimedJob { subject: Some("machine-7".into()), ..job(7) }
}

/// The code and the message of a permanent failure.
async fn failure(outcome: impl Future<Output = OutcomeRequest>) -> (String, String) {
    let error = outcome.await.error.unwrap();
    assert!(!error.retryable, "{error:?}");
    (error.code, error.message)
}

#[tokio::test(start_paused = true)]
async fn facts_are_sent_only_with_a_success() {
    let outcome = outcome_on(on_a_subject(), |job| async move { job.fact("healthy", &true) }).await;
    assert_eq!(outcome.facts.unwrap()["healthy"].get(), "true");
    let outcome = outcome_on(on_a_subject(), |job| async move {
        job.fact("healthy", &true)?;
        Err::<(), _>(HandlerError::retryable("boom", ""))
    });
    assert!(outcome.await.facts.is_none());
}

#[tokio::test(start_paused = true)]
async fn an_invalid_fact_is_an_error_at_the_call() {
    let (code, message) = failure(outcome_of(|job| async move { job.fact("healthy", &true) })).await;
    assert_eq!(code, "invalid_fact");
    assert_eq!(message, "Invalid fact \"healthy\": the job has no subject.");
    let named = outcome_on(on_a_subject(), |job| async move { job.fact("is healthy", &true) });
    assert_eq!(failure(named).await.0, "invalid_fact");
    let large = outcome_on(on_a_subject(), |job| async move { job.fact("log", &"x".repeat(16 << 10)) });
    assert_eq!(failure(large).await.0, "invalid_fact");
}

#[tokio::test(start_paused = true)]
async fn a_rejected_fact_does_not_affect_other_facts_or_the_success() {
    let outcome = outcome_on(on_a_subject(), |job| async move {
        job.fact("healthy", &true)?;
        assert!(job.fact("", &true).is_err());
        Ok(())
    });
    let outcome = outcome.await;
    assert_eq!((outcome.outcome, outcome.facts.unwrap().len()), (OutcomeKind::Finish, 1));
}

#[tokio::test(start_paused = true)]
async fn a_result_over_the_limit_fails_with_result_too_large() {
    let largest = outcome_of(|_| async { Ok("x".repeat((1 << 20) - 2)) }).await;
    assert_eq!(largest.outcome, OutcomeKind::Finish);
    let (code, message) = failure(outcome_of(|_| async { Ok("x".repeat((1 << 20) - 1)) })).await;
    assert_eq!(code, "result_too_large");
    assert!(message.contains("has 1048577 bytes"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn an_error_code_is_normalized_to_the_servers_format() {
    let code_of = async |code: String| {
        let outcome = outcome_of(move |_| {
            let code = code.clone();
            async move { Err::<(), _>(HandlerError::retryable(code, "")) }
        });
        outcome.await.error.unwrap()
    };
    assert_eq!(code_of("two\nlines".into()).await.code, "two lines");
    assert_eq!(code_of("ä".repeat(100)).await.code.len(), 128);
    let empty = code_of(String::new()).await;
    assert_eq!((empty.code.as_str(), empty.retryable), ("error", true));
}
