//! What a server would not take is told to the handler that says it.

use super::*;

fn on_a_subject() -> ClaimedJob {
    ClaimedJob { subject: Some("machine-7".into()), ..job(7) }
}

/// The code and the message of what a handler failed with for good.
async fn failure(outcome: impl Future<Output = OutcomeRequest>) -> (String, String) {
    let error = outcome.await.error.unwrap();
    assert!(!error.retryable, "{error:?}");
    (error.code, error.message)
}

#[tokio::test(start_paused = true)]
async fn facts_go_with_success_alone() {
    let outcome = outcome_on(on_a_subject(), |job| async move { job.fact("healthy", &true) }).await;
    assert_eq!(outcome.facts.unwrap()["healthy"].get(), "true");
    let outcome = outcome_on(on_a_subject(), |job| async move {
        job.fact("healthy", &true)?;
        Err::<(), _>(HandlerError::retryable("boom", ""))
    });
    assert!(outcome.await.facts.is_none());
}

#[tokio::test(start_paused = true)]
async fn a_fact_that_cannot_be_set_is_an_error_where_it_is_said() {
    let (code, message) = failure(outcome_of(|job| async move { job.fact("healthy", &true) })).await;
    assert_eq!(code, "invalid_fact");
    assert_eq!(message, "The fact \"healthy\" has nowhere to go: the job has no subject.");
    let named = outcome_on(on_a_subject(), |job| async move { job.fact("is healthy", &true) });
    assert_eq!(failure(named).await.0, "invalid_fact");
    let large = outcome_on(on_a_subject(), |job| async move { job.fact("log", &"x".repeat(16 << 10)) });
    assert_eq!(failure(large).await.0, "invalid_fact");
}

#[tokio::test(start_paused = true)]
async fn a_fact_that_was_refused_leaves_the_others_and_the_success() {
    let outcome = outcome_on(on_a_subject(), |job| async move {
        job.fact("healthy", &true)?;
        assert!(job.fact("", &true).is_err());
        Ok(())
    });
    let outcome = outcome.await;
    assert_eq!((outcome.outcome, outcome.facts.unwrap().len()), (OutcomeKind::Finish, 1));
}

#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large_fails_by_name() {
    let largest = outcome_of(|_| async { Ok("x".repeat((1 << 20) - 2)) }).await;
    assert_eq!(largest.outcome, OutcomeKind::Finish);
    let (code, message) = failure(outcome_of(|_| async { Ok("x".repeat((1 << 20) - 1)) })).await;
    assert_eq!(code, "result_too_large");
    assert!(message.contains("it has 1048577"), "{message}");
}

#[tokio::test(start_paused = true)]
async fn a_code_is_told_as_the_server_takes_it() {
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
