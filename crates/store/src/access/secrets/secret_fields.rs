//! Locates secrets in JSON that is otherwise stored verbatim: webhooks of jobs, filters and targets of triggers.
//!
//! Three callers share it: sealing before a write, redaction in responses, and restoring a secret when a client sends the
//! redacted placeholder back.

use domain::{TenantId, TriggerId, Webhook};
use serde_json::Value;

use super::{Purpose, is_sealed};
use crate::error::StoreError;
use crate::queue::enqueue::NewJob;
use crate::store::Store;
use crate::triggers::NewTrigger;
use crate::triggers::expression::is_template;

/// The location of a secret, and the URL that it is used for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SecretField {
    /// A JSON pointer.
    pub pointer: String,
    /// `None` in the filter of a hook: a hook only receives requests.
    pub url: Option<String>,
}

/// Finds the secrets of a webhook at `base`, in a job or a job template.
fn in_webhook(value: &Value, base: &str) -> Vec<SecretField> {
    let Some(webhook) = value.pointer(base) else { return Vec::new() };
    let url = webhook["url"].as_str().map(str::to_owned);
    let one = webhook["secret"].is_string().then(|| format!("{base}/secret"));
    let more = webhook["secrets"].as_array().map_or(0, Vec::len);
    let more = (0..more).map(|number| format!("{base}/secrets/{number}"));
    one.into_iter().chain(more).map(|pointer| SecretField { pointer, url: url.clone() }).collect()
}

/// Finds the secret in a trigger's filter.
pub fn in_filter(filter: &Value) -> Vec<SecretField> {
    let secret = filter["secret"].is_string().then(|| SecretField { pointer: "/secret".into(), url: None });
    secret.into_iter().collect()
}

/// Finds the secrets in a trigger's target. A header value counts as a secret unless it is a template over the event.
pub fn in_target(target: &Value) -> Vec<SecretField> {
    let http = &target["http"];
    let url = http["url"].as_str().map(str::to_owned);
    let secret = http["secret"].is_string().then(|| "/http/secret".to_owned());
    let headers = http["headers"].as_object().into_iter().flatten();
    let fixed = headers.filter(|(_, value)| value.as_str().is_some_and(|value| !is_template(value)));
    let headers = fixed.map(|(name, _)| format!("/http/headers/{}", name.replace('~', "~0").replace('/', "~1")));
    let own = secret.into_iter().chain(headers).map(|pointer| SecretField { pointer, url: url.clone() });
    own.chain(in_webhook(target, "/job/webhook")).collect()
}

impl Store {
    /// Seals the secrets of jobs' webhooks. A job without a webhook costs one check.
    pub(crate) async fn seal_webhooks(&self, tenant: TenantId, jobs: &mut [NewJob]) -> Result<(), StoreError> {
        let webhooks = jobs.iter_mut().filter_map(|job| job.extras.as_mut()?.webhook.as_mut());
        for webhook in webhooks {
            self.seal_within(tenant, webhook, None, |value| in_webhook(value, "")).await?;
        }
        Ok(())
    }

    /// Seals the secrets of a stored webhook.
    pub(crate) async fn seal_webhook_text(&self, tenant: TenantId, webhook: &mut String) -> Result<(), StoreError> {
        self.seal_within(tenant, webhook, None, |value| in_webhook(value, "")).await
    }

    /// Seals the secrets of a trigger's filter and target.
    pub(crate) async fn seal_trigger(
        &self,
        tenant: TenantId,
        id: TriggerId,
        trigger: &mut NewTrigger,
    ) -> Result<(), StoreError> {
        self.seal_within(tenant, &mut trigger.filter, Some(id), in_filter).await?;
        self.seal_within(tenant, &mut trigger.target, None, in_target).await
    }

    /// Seals the secrets of a queue's webhook.
    pub(crate) async fn seal_webhook(&self, tenant: TenantId, webhook: &mut Webhook) -> Result<(), StoreError> {
        for secret in &mut webhook.secrets {
            *secret = self.seal(tenant, Purpose::Webhook { url: &webhook.url }, secret).await?;
        }
        Ok(())
    }

    async fn seal_within(
        &self,
        tenant: TenantId,
        text: &mut String,
        hook: Option<TriggerId>,
        secret_fields: impl Fn(&Value) -> Vec<SecretField>,
    ) -> Result<(), StoreError> {
        // Text without a secret is stored byte for byte, without a parse and a serialization.
        if !text.contains("\"secret") && !text.contains("\"headers\"") {
            return Ok(());
        }
        let Ok(mut value) = serde_json::from_str::<Value>(text) else { return Ok(()) };
        let mut changed = false;
        for SecretField { pointer, url } in secret_fields(&value) {
            let Some(field) = value.pointer_mut(&pointer) else { continue };
            let Some(secret) = field.as_str().filter(|secret| !is_sealed(secret)) else { continue };
            let purpose = match (&url, hook) {
                (Some(url), _) => Purpose::Webhook { url },
                (None, Some(trigger)) => Purpose::Hook { trigger },
                (None, None) => continue,
            };
            *field = self.seal(tenant, purpose, secret).await?.into();
            changed = true;
        }
        if changed {
            *text = value.to_string();
        }
        Ok(())
    }
}
