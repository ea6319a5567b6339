//! Where secrets are in JSON that is otherwise kept as it came: webhooks of jobs, filters and targets of triggers.
//!
//! One reader for whoever seals them, hides them in an answer, or puts back what a caller left as it was shown.

use domain::{TenantId, TriggerId, Webhook};
use serde_json::Value;

use super::{Purpose, is_sealed};
use crate::error::StoreError;
use crate::expression::is_template;
use crate::jobs::enqueue::NewJob;
use crate::store::Store;
use crate::triggers::NewTrigger;

/// A secret's place, and where what it signs goes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spot {
    /// A JSON pointer.
    pub pointer: String,
    /// Of a hook's filter there is none: that is called, and calls nobody.
    pub url: Option<String>,
}

/// In a job's webhook, or in that of a template, at `base`.
fn in_webhook(value: &Value, base: &str) -> Vec<Spot> {
    let Some(webhook) = value.pointer(base) else { return Vec::new() };
    let url = webhook["url"].as_str().map(str::to_owned);
    let one = webhook["secret"].is_string().then(|| format!("{base}/secret"));
    let more = webhook["secrets"].as_array().map_or(0, Vec::len);
    let more = (0..more).map(|number| format!("{base}/secrets/{number}"));
    one.into_iter().chain(more).map(|pointer| Spot { pointer, url: url.clone() }).collect()
}

/// In a trigger's filter.
pub fn in_filter(filter: &Value) -> Vec<Spot> {
    let secret = filter["secret"].is_string().then(|| Spot { pointer: "/secret".into(), url: None });
    secret.into_iter().collect()
}

/// In a trigger's target. What a header says may be a password, unless it is worked out from the event.
pub fn in_target(target: &Value) -> Vec<Spot> {
    let http = &target["http"];
    let url = http["url"].as_str().map(str::to_owned);
    let secret = http["secret"].is_string().then(|| "/http/secret".to_owned());
    let headers = http["headers"].as_object().into_iter().flatten();
    let fixed = headers.filter(|(_, value)| value.as_str().is_some_and(|value| !is_template(value)));
    let headers = fixed.map(|(name, _)| format!("/http/headers/{}", name.replace('~', "~0").replace('/', "~1")));
    let own = secret.into_iter().chain(headers).map(|pointer| Spot { pointer, url: url.clone() });
    own.chain(in_webhook(target, "/job/webhook")).collect()
}

impl Store {
    /// Seals the secrets of jobs' webhooks. Jobs without any, nearly all, cost a look.
    pub(crate) async fn seal_webhooks(&self, tenant: TenantId, jobs: &mut [NewJob]) -> Result<(), StoreError> {
        let webhooks = jobs.iter_mut().filter_map(|job| job.extras.as_mut()?.webhook.as_mut());
        for webhook in webhooks {
            self.seal_within(tenant, webhook, None, |value| in_webhook(value, "")).await?;
        }
        Ok(())
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
        spots: impl Fn(&Value) -> Vec<Spot>,
    ) -> Result<(), StoreError> {
        // What holds no secret is kept to the byte.
        if !text.contains("\"secret") && !text.contains("\"headers\"") {
            return Ok(());
        }
        let Ok(mut value) = serde_json::from_str::<Value>(text) else { return Ok(()) };
        let mut changed = false;
        for Spot { pointer, url } in spots(&value) {
            let Some(place) = value.pointer_mut(&pointer) else { continue };
            let Some(secret) = place.as_str().filter(|secret| !is_sealed(secret)) else { continue };
            let purpose = match (&url, hook) {
                (Some(url), _) => Purpose::Webhook { url },
                (None, Some(trigger)) => Purpose::Hook { trigger },
                (None, None) => continue,
            };
            *place = self.seal(tenant, purpose, secret).await?.into();
            changed = true;
        }
        if changed {
            *text = value.to_string();
        }
        Ok(())
    }
}
