//! Where to send changes of state, for a job and for a queue alike.

use domain::Webhook;
use domain::limits::WEBHOOK_SECRETS;
use engine::outbound::{parse_url, sign};
use wire::WebhookSettings;

use super::Place;
use crate::error::ApiError;

/// A URL that a browser and a proxy still take.
const URL_BYTES: usize = 2_048;
const SECRET_BYTES: usize = 256;

pub(crate) fn webhook(place: Place, webhook: &WebhookSettings) -> Result<Webhook, ApiError> {
    url(place, "webhook.url", &webhook.url)?;
    let mut secrets = Vec::new();
    if let Some(given) = &webhook.secret {
        secrets.push(secret(place, "webhook.secret", given)?);
    }
    let more = webhook.secrets.as_deref().unwrap_or_default();
    place.at_most("webhook.secrets", more.len(), WEBHOOK_SECRETS, "secrets")?;
    for (number, given) in more.iter().enumerate() {
        secrets.push(secret(place, &format!("webhook.secrets[{number}]"), given)?);
    }
    Ok(Webhook { url: webhook.url.clone(), secrets })
}

/// As a job keeps it.
pub(crate) fn stored(place: Place, settings: &WebhookSettings) -> Result<String, ApiError> {
    webhook(place, settings)?;
    Ok(serde_json::to_string(settings).expect("plain data has a JSON form"))
}

pub(crate) fn url(place: Place, member: &str, url: &str) -> Result<(), ApiError> {
    if url.len() > URL_BYTES {
        return Err(place.refuse(member, format_args!("may have at most {URL_BYTES} bytes; it has {}", url.len())));
    }
    // The parser escapes them in its own copy; what is kept is the text as it came, and PostgreSQL takes no NUL.
    if let Some(odd) = url.chars().find(|c| c.is_control()) {
        return Err(place.refuse(member, format_args!("holds the control character U+{:04X}", odd as u32)));
    }
    match parse_url(url) {
        Ok(_) => Ok(()),
        Err(error) => Err(place.refuse(member, format_args!("must be an http or https URL: {error}"))),
    }
}

fn secret(place: Place, member: &str, secret: &str) -> Result<String, ApiError> {
    if secret.len() > SECRET_BYTES || sign::key(secret).is_none() {
        return Err(place.refuse(member, "must be whsec_ followed by base64"));
    }
    Ok(secret.to_owned())
}
