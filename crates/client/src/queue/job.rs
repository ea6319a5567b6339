//! Jobs by type: a payload, its queue and kind, and the type of its result.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::to_raw_value;
use wire::JobRequest;

/// A job as a type: the payload with its queue, its kind and the type of its result.
///
/// ```
/// #[derive(serde::Serialize, serde::Deserialize)]
/// struct Welcome {
///     user: u64,
/// }
///
/// impl client::Job for Welcome {
///     const QUEUE: &str = "mail";
///     const KIND: &str = "welcome";
///     type Output = String;
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// The queue of the job.
    const QUEUE: &str;
    /// The kind of the job: the name of its handler.
    const KIND: &str;
    /// The result.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The request that enqueues the job. Change it to set a priority, a unique key or any other field.
    fn request(&self) -> Result<JobRequest, serde_json::Error> {
        Ok(JobRequest {
            queue: Self::QUEUE.into(),
            kind: Self::KIND.into(),
            payload: Some(to_raw_value(self)?),
            ..JobRequest::default()
        })
    }
}
