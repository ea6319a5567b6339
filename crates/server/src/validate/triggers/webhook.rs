//! Validation of webhook settings, for jobs, queues and triggers.

use domain::Webhook;
use domain::limits::WEBHOOK_SECRETS;
use engine::outbound::{parse_url, sign};
use wire::WebhookSettings;

use crate::error::ApiError;
use crate::validate::FieldPath;

/// Maximum length of a URL that browsers and proxies still accept.
const URL_BYTES: usize = 2_048;
const SECRET_BYTES: usize = 256;

pub(crate) fn webhook(path: FieldPath, webhook: &WebhookSettings) -> Result<Webhook, ApiError> {
    url(path, "webhook.url", &webhook.url)?;
    let mut secrets = Vec::new();
    if let Some(given) = &webhook.secret {
        secrets.push(secret(path, "webhook.secret", given)?);
    }
    let additional = webhook.secrets.as_deref().unwrap_or_default();
    path.at_most("webhook.secrets", additional.len(), WEBHOOK_SECRETS, "secrets")?;
    for (number, given) in additional.iter().enumerate() {
        secrets.push(secret(path, &format!("webhook.secrets[{number}]"), given)?);
    }
    Ok(Webhook { url: webhook.url.clone(), secrets })
}

/// Returns the settings as stored with a job.
pub(crate) fn stored(path: FieldPath, settings: &WebhookSettings) -> Result<String, ApiError> {
    webhook(path, settings)?;
    Ok(serde_json::to_string(settings).expect("plain data has a JSON form"))
}

pub(crate) fn url(path: FieldPath, member: &str, url: &str) -> Result<(), ApiError> {
    if url.len() > URL_BYTES {
        return Err(path.refuse(member, format_args!("may have at most {URL_BYTES} bytes; it has {}", url.len())));
    }
    // The parser escapes control characters in its own copy. The text is stored unchanged, and PostgreSQL refuses NUL.
    if let Some(control) = url.chars().find(|c| c.is_control()) {
        return Err(path.refuse(member, format_args!("contains the control character U+{:04X}", control as u32)));
    }
    match parse_url(url) {
        Ok(_) => Ok(()),
        Err(error) => Err(path.refuse(member, format_args!("must be an http or https URL: {error}"))),
    }
}

fn secret(path: FieldPath, member: &str, secret: &str) -> Result<String, ApiError> {
    if secret.len() > SECRET_BYTES || sign::key(secret).is_none() {
        return Err(path.refuse(member, "must be whsec_ followed by base64"));
    }
    Ok(secret.to_owned())
}
